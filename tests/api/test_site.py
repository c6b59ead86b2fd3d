"""What the API asks of the site around it: no open transactions, HEAD, refused bodies read."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from ledger import queries
from tests.api.conftest import BASE, Api

pytestmark = pytest.mark.both_databases


def test_a_site_with_atomic_requests_holds_no_transaction_around_a_view(
    transactional_db: None,
    login: Callable[..., Api],
    workflow: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api = login()
    seen: list[bool] = []
    show = queries.show_task

    def spy(task_id: Any) -> dict[str, Any]:
        seen.append(connection.in_atomic_block)
        return show(task_id)

    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    monkeypatch.setattr(queries, "show_task", spy)
    task = api.post("/tasks", {"workflow": "brief", "input": {"subject": "x"}}).expect(201)
    api.get(f"/tasks/{task['id']}", wait="0").expect(200)
    api.post(f"/tasks/{task['id']}/cancel").expect(200)
    assert seen == [False] * 3


def test_head_is_get_without_the_body(api: Api, task: dict[str, Any]) -> None:
    path = f"{BASE}/tasks/{task['id']}"
    whole = api.client.get(path, headers=api.headers)
    bare = api.client.head(path, headers=api.headers)
    assert (bare.status_code, bare.content) == (200, b"")
    assert bare.headers["Content-Length"] == str(len(whole.content))
    made = api.post("/artifacts?name=x", b"bytes").expect(201)
    head = api.client.head(f"{BASE}/artifacts/{made['id']}/content", headers=api.headers)
    assert (head.status_code, head.headers["Content-Length"], b"".join(head)) == (200, "5", b"")
    assert head.headers["ETag"] == f'"{made["sha256"]}"'
    assert api.client.head(f"{BASE}/nothing", headers=api.headers).status_code == 404


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer no"}, None])
def test_a_refused_body_is_read_to_its_end(api: Api, headers: dict[str, str] | None) -> None:
    """Else the connection is cut while the client still sends, and it never sees why."""
    size = 4_000_000
    sent = io.BytesIO(b"x" * size)
    response = api.client.generic(
        "POST", f"{BASE}/tasks", headers=api.headers if headers is None else headers,
        CONTENT_LENGTH=str(size), **{"wsgi.input": sent},
    )  # fmt: skip
    assert response.status_code == (413 if headers is None else 401)
    assert sent.tell() == size


def test_nothing_is_cached(api: Api) -> None:
    for path in ("/tasks", "/openapi.json", "/nothing"):
        assert "no-store" in api.get(path).headers["Cache-Control"]
