"""Who gets in: tokens, sessions, roles, and the doors that stand open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from ledger import clock
from ledger.access import ROLES, SCOPES, list_scopes
from ledger.errors import InvalidInput
from ledger.models import ApiToken, Worker
from ledger.tokens import find_token, make_token, revoke_token
from tests.api.conftest import BASE, Api

pytestmark = pytest.mark.both_databases


def test_strangers_are_told_to_sign_in(db: None) -> None:
    for token in ("", "wrong", "lw_" + "x" * 43, "\udcff", "a b c", " "):
        api = Api()
        if token:
            api.headers = {"Authorization": f"Bearer {token}".encode("utf-8", "replace").decode()}
        for answer in (api.get("/tasks"), api.post("/tasks", {}), api.post("/artifacts", b"x")):
            answer.expect_problem(401, "unauthenticated")
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")


def test_a_token_is_hashed_scoped_and_ends(db: None) -> None:
    row, text = make_token("ci", ["submit", "read", "read"], created_by="cli:me", days=1)
    assert row.scopes == ["read", "submit"]
    assert text not in str(ApiToken.objects.values().get())
    found = find_token(text)
    assert found is not None
    assert found.pk == row.pk
    assert ApiToken.objects.get().last_used_at is not None
    ApiToken.objects.update(expires_at=clock.now(-1.0))
    assert find_token(text) is None
    ApiToken.objects.update(expires_at=None)
    assert find_token(text) is not None
    assert revoke_token(row.pk, by="cli:me")
    assert not revoke_token(row.pk, by="cli:me")
    assert find_token(text) is None


@pytest.mark.parametrize(
    ("name", "scopes", "days"),
    [("", ["read"], 1), ("x" * 101, ["read"], 1), ("a\nb", ["read"], 1), ("x", [], 1),
     ("x", ["all"], 1), ("x", ["read"], 0), ("x", ["read"], 10**9)],
)  # fmt: skip
def test_a_bad_token_is_not_made(db: None, name: str, scopes: list[str], days: int) -> None:
    with pytest.raises(InvalidInput):
        make_token(name, scopes, created_by="cli:me", days=days)
    assert not ApiToken.objects.exists()


def sign_in(name: str = "ann", group: str = "", **flags: bool) -> Client:
    user = User.objects.create_user(name, password="x", **flags)
    if group:
        user.groups.add(Group.objects.get_or_create(name=group)[0])
    client = Client(enforce_csrf_checks=True)
    client.force_login(user)
    return client


def test_a_session_reads_and_writes_with_its_csrf_token(db: None, workflow: Any) -> None:
    client = sign_in(is_superuser=True)
    assert client.get(f"{BASE}/tasks").status_code == 200
    body = '{"workflow": "brief", "input": {"subject": "x"}}'
    refused = client.post(f"{BASE}/tasks", body, content_type="application/json")
    assert (refused.status_code, refused.json()["code"]) == (403, "csrf_failed")
    client.cookies[__import__("django.conf").conf.settings.CSRF_COOKIE_NAME] = "c" * 32
    taken = client.post(
        f"{BASE}/tasks", body, content_type="application/json", headers={"X-CSRFToken": "c" * 32}
    )
    assert taken.status_code == 201, taken.content
    assert taken.json()["submitted_by"].startswith("user:")
    # A wrong token is refused though the session is good.
    wrong = client.get(f"{BASE}/tasks", headers={"Authorization": "Bearer no"})
    assert wrong.status_code == 401


def test_roles_are_groups(db: None) -> None:
    for n, (group, scopes) in enumerate(ROLES.items()):
        user = User.objects.create_user(f"u{n}")
        user.groups.add(Group.objects.get_or_create(name=group)[0])
        assert list_scopes(user) == scopes
    assert list_scopes(User.objects.create_user("nobody", is_staff=True)) == frozenset()
    assert list_scopes(User.objects.create_superuser("root")) == ROLES["admin"] > set(SCOPES)
    viewer = sign_in("vic", "viewer")
    assert viewer.get(f"{BASE}/workers").status_code == 200
    assert sign_in("nob").get(f"{BASE}/workers").json()["code"] == "not_allowed"


def test_the_docs_are_a_page_of_our_own(db: None, client: Client) -> None:
    schema = client.get(f"{BASE}/openapi.json").json()
    assert schema["openapi"].startswith("3.1")
    paths = schema["paths"]
    assert {f"{BASE}{path}" for path in (
        "/tasks", "/tasks/batch", "/tasks/delete-demo", "/tasks/{task_id}",
        "/tasks/{task_id}/spend",
        "/tasks/{task_id}/outputs", "/tasks/{task_id}/events",
        "/tasks/{task_id}/artifacts", "/tasks/{task_id}/effects", "/tasks/{task_id}/handoff",
        "/tasks/{task_id}/log", "/tasks/{task_id}/transcript",
        "/tasks/{task_id}/messages", "/tasks/{task_id}/messages/{message_id}",
        "/tasks/{task_id}/effects/{effect_id}/mark",
        *(f"/tasks/{{task_id}}/{action}" for action in (
            "cancel", "stop", "pause", "resume", "retry", "repair", "fork", "change",
            "outputs/{seq}/edit", "limits", "signals/{name}", "compensate")),
        "/approvals", "/approvals/{approval_id}", "/approvals/{approval_id}/answer",
        "/artifacts", "/artifacts/{artifact_id}", "/artifacts/{artifact_id}/content",
        "/uploads", "/uploads/{upload_id}",
        "/bulk", "/bulk/{bulk_id}", "/bulk/{bulk_id}/items", "/bulk/{bulk_id}/stop",
        "/workflows", "/workers", "/stalled", "/audit",
        *(f"/workers/{{owner}}/{action}" for action in ("drain", "undrain", "declare-dead")),
        "/lanes", "/lanes/{name}",
    )} == set(paths)  # fmt: skip
    assert {"TokenAuth", "SessionAuth"} <= schema["components"]["securitySchemes"].keys()
    page = client.get(f"{BASE}/docs")
    text = page.content.decode()
    assert page.status_code == 200
    assert "POST /api/v1/tasks" in text
    assert "SubmitIn" in text
    for loaded in ("<script", "<link", "src=", "style="):
        assert loaded not in text


def test_health_tells_what_is_missing(
    db: None, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = client.get("/readyz")
    assert (ready.status_code, ready.json()) == (200, {"status": "ok", "reasons": []})
    lonely = client.get("/healthz")
    assert (lonely.status_code, lonely.json()["reasons"]) == (503, ["no worker beats"])
    now = clock.read()
    Worker.objects.bulk_create([Worker(owner="a", host="h", pid=1, started_at=now, seen_at=now)])
    assert client.get("/healthz").status_code == 200


def test_a_database_that_is_away_is_503(
    login: Callable[..., Api], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one place where a driver's error is made up: no ring may stop its own server."""
    from django.db import OperationalError

    from ledger import queries

    def fail(*args: object, **options: object) -> None:
        raise OperationalError("server closed the connection, password=hunter2")

    api = login()
    monkeypatch.setattr(queries, "list_tasks", fail)
    answer = api.get("/tasks")
    problem = answer.expect_problem(503, "database_unavailable")
    assert "hunter2" not in str(problem)
    assert answer.headers["Retry-After"]
