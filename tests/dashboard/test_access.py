"""Nobody sees or does anything without the scope for it, on any route."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from django.test import Client
from django.urls import URLPattern, reverse

from dashboard.urls import urlpatterns
from ledger import states
from ledger.workflows import Workflow
from tests.dashboard.conftest import PART, make_user
from tests.factories import make_in

OPEN = {"login", "login-link", "logout"}
FILL: dict[str, Any] = {
    "task_id": UUID(int=7), "approval_id": UUID(int=7), "artifact_id": UUID(int=7),
    "rule_id": UUID(int=7), "owner": "host:1:b", "view_id": UUID(int=7),
    "bulk_id": UUID(int=7),
    "token_id": UUID(int=7),
    "seq": 1, "kind": "csv", "index": 0, "name": "cancel",
}  # fmt: skip
POSTED = {"answer", "undo", "alert-act", "view-act", "bulk-stop", "lane-act"}


def list_routes() -> list[tuple[str, str]]:
    """(name, path) of every page that is not about signing in."""
    found = []
    for route in urlpatterns:
        assert isinstance(route, URLPattern)
        if route.name not in OPEN:
            keys = {key: FILL[key] for key in route.pattern.converters}
            found.append((str(route.name), reverse(f"dashboard:{route.name}", kwargs=keys)))
    return found


def ask(client: Client, name: str, path: str, **headers: str) -> Any:
    """GET, or POST where a route takes nothing else."""
    call = client.post if name in POSTED else client.get
    return call(path, headers=headers)


def test_the_list_of_routes_is_the_pages() -> None:
    assert {"tasks", "task", "act", "approvals", "answer", "artifact"} <= dict(list_routes()).keys()


@pytest.mark.parametrize(("name", "path"), list_routes())
def test_a_stranger_is_asked_to_sign_in(db: None, name: str, path: str) -> None:
    response = ask(Client(), name, path)
    assert response.status_code == 302
    assert response["Location"].startswith("/login/?next=")
    assert ask(Client(), name, path, **PART).status_code == 401


@pytest.mark.parametrize(("name", "path"), list_routes())
def test_who_has_no_role_sees_nothing(sign_in: Callable[..., Client], name: str, path: str) -> None:
    client = sign_in("")
    response = ask(client, name, path)
    assert response.status_code == 403
    assert b"It takes the role" in response.content
    part = ask(client, name, path, **PART)
    assert (part.status_code, part.content) == (403, b"")


def test_no_answer_is_kept_by_a_cache_or_mixed_up(
    sign_in: Callable[..., Client], three: Workflow
) -> None:
    client, task = sign_in("superuser"), make_in(states.WAITING, three)
    asked = task.approvals.get()
    places = [
        ("tasks", []), ("task", [task.id]), ("outputs", [task.id]), ("events", [task.id]),
        ("act", [task.id, "cancel"]), ("approvals", []), ("approval", [asked.id]),
    ]  # fmt: skip
    for name, keys in places:
        for headers in ({}, PART):
            response = client.get(reverse(f"dashboard:{name}", args=keys), headers=headers)
            assert response.status_code == 200
            assert "HX-Request" in response["Vary"]
            assert "no-store" in response["Cache-Control"]


@pytest.mark.parametrize(
    ("role", "name", "allowed"),
    [
        ("viewer", "act", False), ("approver", "act", False), ("operator", "act", True),
        ("admin", "act", True), ("viewer", "answer", False), ("approver", "answer", True),
        ("operator", "answer", True), ("viewer", "undo", False), ("viewer", "task", True),
    ],
)  # fmt: skip
def test_each_role_does_what_it_may(
    sign_in: Callable[..., Client], role: str, name: str, allowed: bool
) -> None:
    response = ask(sign_in(role), name, dict(list_routes())[name])
    assert response.status_code == (404 if allowed else 403)  # there is no such task


def test_a_viewer_is_shown_no_button(sign_in: Callable[..., Client], three: Workflow) -> None:
    task = make_in(states.QUEUED, three)
    path = reverse("dashboard:task", args=[task.id])
    assert b"Pause</button>" not in sign_in("viewer").get(path).content
    assert b"Pause</button>" in sign_in("operator").get(path).content


def test_a_form_from_elsewhere_is_refused(three: Workflow, db: None) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(make_user("operator"))
    task = make_in(states.QUEUED, three)
    response = client.post(reverse("dashboard:act", args=[task.id, "pause"]))
    assert response.status_code == 403
    assert b"The form was refused" in response.content
    task.refresh_from_db()
    assert task.status == states.QUEUED
