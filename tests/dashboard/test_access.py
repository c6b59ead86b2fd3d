"""Nobody sees or does anything without the scope for it, on any route."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from django.test import Client
from django.urls import URLPattern, reverse

from dashboard.actions import name_position
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
    assert response["X-Request-ID"].encode() in response.content
    part = ask(client, name, path, **PART)
    assert (part.status_code, part.content) == (403, b"")


@pytest.mark.case(70)
def test_no_refusal_is_kept_by_a_cache_or_mixed_up(sign_in: Callable[..., Client]) -> None:
    """What there is not, what is not theirs, who is not signed in; pages say it in whole pages."""
    missing = reverse("dashboard:task", args=[UUID(int=7)])
    answers = [
        (sign_in("viewer", "ann").get(missing), 404), (sign_in("viewer").get("/audit/"), 403),
        (Client().get("/"), 302), (Client().get("/", headers=PART), 401),
        (Client().get("/login/"), 200), (sign_in("approver").get(missing, headers=PART), 404),
        (sign_in("operator").get("/tasks/", headers=PART | {"HX-PTag": "old"}), 200),
    ]  # fmt: skip
    for response, status in answers:
        assert response.status_code == status
        assert "no-store" in response["Cache-Control"]
    assert "</html>" in answers[0][0].content.decode()


def test_an_address_of_nothing_keeps_the_navigation(sign_in: Callable[..., Client]) -> None:
    for client, has in ((sign_in("viewer"), True), (Client(), False)):
        response = client.get("/no/such/page/")
        text = response.content.decode()
        assert (response.status_code, 'aria-label="Main"' in text) == (404, has)
        assert "There is nothing here" in text


@pytest.mark.case(68)
@pytest.mark.both_databases
def test_a_part_of_somebody_elses_page_is_not_answered(
    sign_in: Callable[..., Client], three: Workflow
) -> None:
    """Another person signed in in the same browser; the page of the first still polls and sends."""
    client, task = sign_in("operator"), make_in(states.QUEUED, three)
    page = client.get(f"/tasks/{task.id}/").content.decode()
    me = page.partition('data-user="')[2].partition('"')[0]
    path = f"/tasks/{task.id}/pause/"
    form = {"revision": str(task.revision), "seen": name_position(task)}
    for call in (client.get, client.post):
        other = call(path, form, headers=PART | {"X-Page-User": f"{me}0"})
        assert (other.status_code, other.content) == (412, b"")
    task.refresh_from_db()
    assert task.status == states.QUEUED
    assert client.post(path, form, headers=PART | {"X-Page-User": me}).status_code == 200
    task.refresh_from_db()
    assert task.status == states.PAUSED


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
