"""The audit log on its page, as a file, and over the API: for admins alone."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from dashboard.views.audit import write_cell
from ledger import queries
from ledger.auditing import write_entry
from ledger.models import AuditEntry
from ledger.queries import audit
from ledger.tokens import make_token
from ledger.transitions import operators
from ledger.workflows import Workflow
from tests.dashboard.conftest import make_user
from tests.factories import OPERATOR, submit

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]


@pytest.fixture
def admin(sign_in: Callable[..., Client]) -> Client:
    """An admin's browser."""
    return sign_in("admin")


def fill(count: int = 120) -> None:
    """Entries of two actors, some refused."""
    for number in range(count):
        write_entry(
            "user:9" if number % 3 else "token:x", "tried" if number % 2 else "did",
            f"thing:{number}", allowed=bool(number % 2), reason="=1+1",
            before={"title": "<b>old</b>"}, after={"title": "new"},
        )  # fmt: skip


def test_an_action_is_shown_with_who_what_and_what_changed(admin: Client, three: Workflow) -> None:
    person = make_user("operator", "Ada")
    task = submit(three, title="Tides")
    operators.change_task(
        task.pk, title="<i>Ebb</i>", reason="mistyped", actor=OPERATOR.parse(f"user:{person.pk}")
    )
    text = admin.get("/audit/").content.decode()
    for part in ("Ada", "edited", "mistyped", "Tides", "&lt;i&gt;Ebb", f"/tasks/{task.pk}/"):
        assert part in text
    assert "<i>Ebb" not in text


def test_the_log_is_narrowed_and_paged(admin: Client) -> None:
    fill()
    page = admin.get("/audit/?actor=user:9&allowed=no")
    rows = page.context["rows"]
    assert {(row["actor"], row["allowed"]) for row in rows} == {("user:9", False)}
    seen, query = [], "actor=user%3A9"
    while query:
        page = admin.get(f"/audit/?{query}")
        seen += [row["seq"] for row in page.context["rows"]]
        query = page.context["older"]
    assert len(seen) == 80
    assert seen == sorted(seen, reverse=True)
    middle = AuditEntry.objects.order_by("pk")[60]
    since = middle.at.isoformat()
    found = admin.get("/audit/", {"since": since, "action": "did"}).context["rows"]
    assert all(row["at"] >= middle.at for row in found)
    assert admin.get("/audit/?task=nonsense").status_code == 422
    assert admin.get("/audit/?since=yesterday").status_code == 422
    assert admin.get("/audit/?cursor=x").status_code == 422


def test_actions_are_told_in_words_and_the_filter_is_open_where_it_narrows(admin: Client) -> None:
    for action in ("repaired", "create_token"):
        write_entry("user:9", action, "t")
    whole = admin.get("/audit/").content.decode()
    for words, code in (("Restarted from a step", "repaired"), ("Create token", "create_token")):
        assert f'{words}<small class="mono">{code}, ' in whole
    assert '<details class="auditd">' in whole
    assert '<details class="auditd" open>' in admin.get("/audit/?action=repaired").content.decode()


def test_all_that_matches_comes_as_a_file_a_chunk_at_a_time(
    admin: Client, monkeypatch: pytest.MonkeyPatch, django_assert_max_num_queries: Any
) -> None:
    fill()
    monkeypatch.setattr(audit, "CHUNK", 50)
    response: Any = admin.get("/audit/export/csv/?actor=user:9")
    lines = list(csv.DictReader(io.StringIO(response.getvalue().decode())))
    assert len(lines) == 80
    assert lines[0]["reason"] == "'=1+1"
    assert json.loads(lines[0]["before"]) == {"title": "<b>old</b>"}
    with django_assert_max_num_queries(8):  # session, user, two of its rights; three chunks, a note
        response = admin.get("/audit/export/json/?action=tried")
        rows = json.loads(response.getvalue())
    assert len(rows) == 60
    assert "attachment" in response["Content-Disposition"]
    noted = AuditEntry.objects.filter(action="export_audit")
    assert [entry.after for entry in noted] == [{"action": "tried"}, {"actor": "user:9"}]


@pytest.mark.parametrize("text", ["=1", "+1", "-1", "@x", "\tx", "\rx"])
def test_no_cell_is_a_formula(text: str) -> None:
    assert write_cell(text) == f"'{text}"
    assert write_cell(f"a{text}") == f"a{text}"


@pytest.mark.parametrize("role", ["viewer", "approver", "operator"])
def test_the_log_is_for_admins_alone(sign_in: Callable[..., Client], role: str) -> None:
    client = sign_in(role)
    for path in ("/audit/", "/audit/export/csv/", "/api/v1/audit"):
        assert client.get(path).status_code == 403
    assert b"/audit/" not in client.get("/tasks/").content


def test_the_api_has_it_for_admins_and_tokens_made_for_it(admin: Client) -> None:
    fill(10)
    assert b"/audit/" in admin.get("/tasks/").content
    answer = admin.get("/api/v1/audit?allowed=false&limit=3").json()
    assert len(answer["items"]) == 3
    assert not any(item["allowed"] for item in answer["items"])
    again = admin.get(f"/api/v1/audit?allowed=false&cursor={answer['next_cursor']}").json()
    assert len(again["items"]) == 2
    assert again["next_cursor"] is None
    assert admin.get("/api/v1/audit?since=2026-01-01T00:00:00").status_code == 422
    for scopes, status in ((["read", "submit", "operate", "approve"], 403), (["audit"], 200)):
        _, text = make_token("t", scopes, created_by="cli:me")
        headers = {"Authorization": f"Bearer {text}"}
        assert Client().get("/api/v1/audit", headers=headers).status_code == status
    assert queries.DEFAULT_LIMIT == 50
