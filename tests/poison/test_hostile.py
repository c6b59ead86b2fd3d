"""What strangers send to pages, admin and API is refused or taken, never a fault of ours."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from dashboard.actions import ACTIONS
from ledger.models import Approval, Task
from ledger.workflows import AskApproval, Workflow, registered
from tests.factories import ask, claim, submit

pytestmark = [pytest.mark.django_db, pytest.mark.case(40), pytest.mark.case(43)]

HOSTILE = {
    "NUL": "a%00b",
    "surrogate": "%ED%A0%80",
    "not UTF-8": "%FF%FE",
    "20 digits": "99999999999999999999",
    "2^63": "9223372036854775808",
    "5,000 digits": "9" * 5_000,
    "negative": "-1",
    "overflow": "1e400",
    "not a number": "NaN",
    "brackets": "%5B" * 1_000,
    "long": "x" * 5_000,
    "markup": "%22%3E%3Cscript%3E%E2%80%AE%0d%0aX:1",
}
"""As they stand in an address or a form."""

FIELDS = (
    "q status workflow lane tag first open range kind before after cursor limit page version back "
    "next ended stalled revision all sort name o p e reason seen to_step note comment decision "
    "digest confirmed tokens cost units wall deadline_at step input subject username password stay"
).split()

form = Workflow("form", self_approval=True)
form.step(lambda ctx: AskApproval("Well?"), name="only")


@pytest.fixture
def client() -> Client:
    """A superuser's browser, which shows a fault as the answer that people would get."""
    client = Client(raise_request_exception=False)
    client.force_login(get_user_model().objects.create_superuser("root", password="x"))
    return client


@pytest.fixture
def known(db: None) -> Iterator[dict[str, Any]]:
    """A task that waits for an answer, and the values of the routes' arguments."""
    with registered(form):
        task = submit(form)
        ask(claim(form), form, form={"type": "object", "properties": {"n": {"type": "integer"}}},
            proposal={"n": 1})  # fmt: skip
        request = Approval.objects.get(task=task)
        yield {"task_id": task.id, "approval_id": request.id, "artifact_id": uuid.uuid4()}


def list_routes(patterns: list[Any], before: str = "") -> Iterator[str]:
    """Every route as the text of its pattern."""
    for pattern in patterns:
        route = before + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from list_routes(pattern.url_patterns, route)
        elif isinstance(pattern, URLPattern):
            yield route


def fill(route: str, known: dict[str, Any], text: str, number: str) -> str:
    """The route with what is known, and with `text` and `number` elsewhere."""

    def choose(match: re.Match[str]) -> str:
        kind, name = match[1] or "str", match[2]
        if name in known:
            return str(known[name])
        return {"uuid": str(uuid.uuid4()), "int": number, "slug": "unknown"}.get(kind, text)

    plain = re.sub(r"<(?:(\w+):)?(\w+)>", choose, route)
    return "/" + re.sub(r"\^|\$|\\Z|\(\?P.*\)|\.\*", "", plain)


def list_addresses(known: dict[str, Any], *texts: str) -> list[str]:
    """Pages, admin and API, each with each text as what its address holds besides."""
    left_out = ("logout", "healthz", "readyz")  # these answer 503 without a worker
    return list({
        fill(route, known, text, "99999999999999999999"): None
        for route in list_routes(get_resolver().url_patterns)
        if not any(part in route for part in left_out)
        for text in texts
    })  # fmt: skip


def test_no_address_is_a_fault(client: Client, known: dict[str, Any]) -> None:
    addresses = list_addresses(known, "a%00b", "%ED%A0%80", "x" * 3_000, "99999999999999999999")
    assert len(addresses) > 80
    for address in addresses:
        answer = client.get(address)
        assert answer.status_code < 500, (address[:200], answer.content[-500:])


@pytest.mark.parametrize(
    "kind", ["NUL", "surrogate", "20 digits", "5,000 digits", "negative", "not a number", "markup"]
)
def test_no_query_is_a_fault(client: Client, known: dict[str, Any], kind: str) -> None:
    query = "&".join(f"{name}={HOSTILE[kind]}" for name in FIELDS)
    for address in list_addresses(known, "form"):
        answer = client.get(address, QUERY_STRING=query)
        assert answer.status_code < 500, (address[:200], answer.content[-500:])


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_form_is_a_fault(client: Client, known: dict[str, Any], kind: str) -> None:
    body = "&".join(f"{name}={HOSTILE[kind]}" for name in FIELDS)
    if kind == "brackets":
        body += "&input=" + "%5B" * 20_000
    task, request = known["task_id"], known["approval_id"]
    routes = [f"/tasks/{task}/{name}/" for name in ACTIONS]
    routes += [f"/approvals/{request}/answer/", f"/approvals/{request}/undo/", "/login/"]
    routes += ["/workflows/form/", f"/admin/longwatch_ledger/task/{task}/change/"]
    for address in routes:
        for decision in ("", "&decision=approve&field-n=" + HOSTILE[kind]):
            answer = client.post(
                address, body + decision, content_type="application/x-www-form-urlencoded"
            )
            assert answer.status_code < 500, (address, answer.content[-500:])


HOSTILE_JSON = {
    "NUL": '"a\\u0000b"',
    "surrogate": '"\\ud800"',
    "NaN": "NaN",
    "infinity": "-Infinity",
    "overflow": "1e400",
    "20 digits": "99999999999999999999",
    "5,000 digits": "9" * 5_000,
    "brackets": "[" * 20_000 + "]" * 20_000,
    "a million brackets": "[" * 500_000,
    "twice": '{"a": 1, "a": 2}',
    "100,000 keys": json.dumps({f"k{n}": n for n in range(60_000)}),
    "nothing": "null",
}
HOSTILE_VALUES = ("20 digits", "nothing")
"""Those are JSON, so it depends on the field; the others the parser refuses, whatever they are."""

JSON_FIELDS = (
    "workflow input title lane priority tags limits max_repairs not_before reason revision to_step "
    "note from_step decision values comment digest weight cap rate tasks"
).split()


@pytest.mark.parametrize("kind", HOSTILE_JSON)
def test_no_body_is_a_fault(client: Client, known: dict[str, Any], kind: str) -> None:
    """Each operation of the API that takes a body, with one hostile field and with nothing else."""
    document = client.get("/api/v1/openapi.json").json()
    paths = [path for path, ways in document["paths"].items() if "post" in ways]
    assert len(paths) >= 12
    for path in paths:
        address = path
        for name, value in known.items():
            address = address.replace(f"{{{name}}}", str(value))
        for name in JSON_FIELDS if kind in HOSTILE_VALUES else ["input", "values"]:
            body = f'{{"{name}": {HOSTILE_JSON[kind]}}}'
            answer = client.post(address, body, content_type="application/json")
            assert answer.status_code < 500, (address, name, answer.content[-500:])
            if answer.status_code >= 400:
                assert answer["Content-Type"] == "application/problem+json"


def test_nothing_of_it_was_taken(client: Client, known: dict[str, Any]) -> None:
    """A NUL in what a person says is refused by name; the task stands as it stood."""
    answer = client.post(
        f"/api/v1/approvals/{known['approval_id']}/answer",
        '{"decision": "approve", "digest": "x", "comment": "a\\u0000b"}',
        content_type="application/json",
    )
    assert (answer.status_code, answer.json()["field"]) == (400, "comment")
    answer = client.post(
        f"/api/v1/tasks/{known['task_id']}/cancel",
        '{"reason": "a\\u0000b"}',
        content_type="application/json",
    )
    assert (answer.status_code, answer.json()["field"]) == (400, "reason")
    assert Task.objects.get().status == "waiting"
