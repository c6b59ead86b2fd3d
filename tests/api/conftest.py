"""A workflow that the web side knows, and callers with scopes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.http import HttpResponseBase
from django.test import Client
from pydantic import BaseModel, ConfigDict

from ledger import registry
from ledger.access import SCOPES
from ledger.tokens import make_token
from ledger.workflows import AskApproval, Workflow

BASE = "/api/v1"


class Topic(BaseModel):
    """The input of the workflow `brief`."""

    model_config = ConfigDict(extra="forbid")

    subject: str
    size: int = 3


brief = Workflow("brief", version="2", input=Topic, description="Writes a brief.")


@brief.step
def draft(ctx: Any) -> dict[str, Any]:
    return {"draft": "text"}


@brief.step
def review(ctx: Any) -> AskApproval:
    return AskApproval("Publish it?", body="Read it.", payload={"n": 1}, send_back_to="draft")


@brief.step
def publish(ctx: Any) -> dict[str, Any]:
    return {"published": True}


class Api:
    """A caller of the API; answers are read by a strict JSON parser."""

    def __init__(self, token: str = "") -> None:
        self.client = Client(enforce_csrf_checks=True)
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    def get(self, path: str, **query: Any) -> Answer:
        """GET below the base."""
        return Answer(self.client.get(f"{BASE}{path}", query, headers=self.headers))

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        """POST `body` as JSON (bytes: as they are)."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return Answer(
            self.client.post(
                f"{BASE}{path}",
                data,
                content_type=named.pop("Content-Type", "application/json"),
                headers=self.headers | named,
            )
        )


class Answer:
    """Status, headers and the JSON of an answer."""

    def __init__(self, response: HttpResponseBase) -> None:
        self.response = response
        self.status = response.status_code
        self.headers = response.headers

    @property
    def json(self) -> Any:
        """The body, with no NaN or Infinity in it."""
        return json.loads(self.response.content, parse_constant=_refuse)

    def expect(self, status: int) -> Any:
        """The body of an answer that has this status."""
        assert self.status == status, (self.status, self.response.content[:500])
        return self.json

    def expect_problem(self, status: int, code: str, field: str | None = None) -> dict[str, Any]:
        """The problem; it has this status, code and field."""
        body = self.expect(status)
        assert self.headers["Content-Type"] == "application/problem+json"
        assert {"type", "title", "status", "detail", "code"} <= body.keys()
        assert (body["status"], body["code"], body.get("field")) == (status, code, field), body
        return dict(body)


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} in the API's JSON")


@pytest.fixture
def workflow() -> Iterator[Workflow]:
    """`brief` version 2: draft, review (asks), publish."""
    with registry.registered(brief):
        yield brief


@pytest.fixture
def login(db: None) -> Callable[..., Api]:
    """A caller with the scopes named; by default all."""

    def make(*scopes: str) -> Api:
        _, text = make_token("test", scopes or SCOPES, created_by="cli:test")
        return Api(text)

    return make


@pytest.fixture
def api(login: Callable[..., Api], workflow: Workflow) -> Api:
    """A caller with every scope; the workflow is known."""
    return login()


@pytest.fixture
def task(api: Api) -> dict[str, Any]:
    """A queued task of `brief`."""
    return api.post("/tasks", {"workflow": "brief", "input": {"subject": "bees"}}).expect(201)
