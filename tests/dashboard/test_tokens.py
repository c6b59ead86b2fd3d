"""API tokens on their pages: made, shown once, rotated, ended; whose they are, who sees them."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.test import Client
from django.urls import reverse

from ledger import clock
from ledger.errors import ApprovalClosed, NotAllowed
from ledger.events import Actor
from ledger.models import ApiToken, Approval, AuditEntry, Task
from ledger.tokens import find_token, make_token
from ledger.transitions.approvals import decide_approval
from ledger.workflows import Workflow
from tests.dashboard.conftest import PART
from tests.factories import ask, claim, submit

pytestmark = pytest.mark.both_databases

NEW = "/tokens/new/"


@pytest.fixture
def admin(sign_in: Callable[..., Client]) -> Client:
    return sign_in("admin", "ada")


def read_form(admin: Client, path: str = NEW) -> dict[str, Any]:
    """The form as it comes, filled in as most are."""
    text = admin.get(path).content.decode()
    found = re.search(r'name="key" value="([^"]+)"', text)
    assert found
    return {"key": found[1], "name": "nightly", "scopes": ["read", "submit"], "payload": "on",
            "days": "90", "lanes": "", "owner": ""}  # fmt: skip


def read_secret(response: Any) -> str:
    found = re.search(r'id="secret"[^>]*>(lw_[^<]+)<', response.content.decode())
    assert found
    return found[1]


def test_a_token_is_shown_once_and_is_nowhere_else(
    admin: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    form = read_form(admin)
    shown = admin.post(NEW, form)
    text = read_secret(shown)
    assert shown.status_code == 200  # an answer, no address that could be opened again
    assert "no-store" in shown["Cache-Control"]
    assert "I have stored it" in shown.content.decode()
    row = find_token(text)
    assert row is not None
    assert (row.name, row.scopes, row.created_by[:5]) == ("nightly", ["read", "submit"], "user:")
    again = admin.post(NEW, form)  # a double click, or back and send again
    assert again.status_code == 409
    assert "has made its token already" in again.content.decode()
    assert ApiToken.objects.count() == 1
    kept = str([*ApiToken.objects.values(), *AuditEntry.objects.values(),
                *Session.objects.values()]) + caplog.text  # fmt: skip
    for page in ("/tokens/", "/audit/"):
        kept += admin.get(page).content.decode()
    assert text not in kept
    assert AuditEntry.objects.get(action="create_token").target == f"token:{row.pk}"


@pytest.mark.parametrize(
    ("typed", "said"),
    [({"name": ""}, "This field is required"), ({"scopes": []}, "This field is required"),
     ({"days": "0"}, "greater than or equal to 1"), ({"lanes": "a" * 101}, "takes 1 to 100 names"),
     ({"scopes": ["audit"], "lanes": "night"}, "every lane"), ({"owner": "user:999"}, "Select a")],
)  # fmt: skip
def test_a_bad_form_makes_nothing_and_says_where(
    admin: Client, typed: dict[str, Any], said: str
) -> None:
    response = admin.post(NEW, read_form(admin) | typed)
    assert response.status_code == 422
    assert said in response.content.decode()
    assert not ApiToken.objects.exists()


def test_a_token_is_rotated_with_an_overlap_and_revoked_by_its_name(admin: Client) -> None:
    row, old = make_token("ci", ["read"], created_by="user:1", owner="user:1")
    rotate = reverse("dashboard:token-act", args=[row.pk, "rotate"])
    assert admin.get(rotate, headers=PART).content.decode().lstrip().startswith("<form")
    form = {"key": read_form(admin, rotate)["key"], "overlap": "2"}
    shown = admin.post(rotate, form)
    new = read_secret(shown)
    assert "good for another 2 h" in shown.content.decode()
    assert find_token(old) is not None
    fresh = find_token(new)
    assert fresh is not None
    assert (fresh.scopes, fresh.owner) == (["read"], "user:1")
    assert admin.post(rotate, form).status_code == 409
    assert ApiToken.objects.count() == 2
    clock.offset += 7_201
    assert find_token(old) is None
    revoke = reverse("dashboard:token-act", args=[fresh.pk, "revoke"])
    wrong = admin.post(revoke, {"typed": "cd"}, headers=PART)
    assert wrong.status_code == 422
    assert "type that to go on" in wrong.content.decode()
    assert find_token(new) is not None
    assert admin.post(revoke, {"typed": "ci"}).status_code == 302
    assert find_token(new) is None
    actions = set(AuditEntry.objects.values_list("action", flat=True))
    assert {"create_token", "rotate_token", "revoke_token"} <= actions


def test_the_list_says_who_used_it_when_and_what_nobody_uses(
    admin: Client, sign_in: Callable[..., Client], client: Client
) -> None:
    vic = sign_in("viewer", "vic")
    me = f"user:{vic.session['_auth_user_id']}"
    row, text = make_token("of-vic", ["read"], created_by="cli:root", owner=me, lanes=["day"])
    idle, _ = make_token("forgotten", ["read"], created_by="cli:root")
    ApiToken.objects.filter(pk=idle.pk).update(created_at=clock.now(-91 * 86_400.0))
    headers = {"Authorization": f"Bearer {text}"}
    assert client.get("/api/v1/tasks", headers=headers).status_code == 200
    shown = admin.get("/tokens/").content.decode()
    assert "for 90 days: does anybody need it?" in shown
    assert "127.0.0.1" in shown
    rows = dict(re.findall(r'id="token-([^"]+)">(.*?)</tr>', shown, re.DOTALL))
    assert "vic" in rows[str(row.pk)]
    assert "day" in rows[str(row.pk)]
    own = vic.get("/tokens/").content.decode()
    assert "of-vic" in own
    assert "forgotten" not in own
    assert "Revoke…" not in own
    assert vic.get(reverse("dashboard:token-act", args=[row.pk, "revoke"])).status_code == 403


def test_a_use_is_noted_once_a_minute(
    db: None, client: Client, django_assert_num_queries: Any
) -> None:
    _, text = make_token("busy", ["read"], created_by="cli:root")
    with django_assert_num_queries(2):
        find_token(text)
    with django_assert_num_queries(1):
        find_token(text)
    clock.offset += 61
    with django_assert_num_queries(2):
        find_token(text)


def test_nobody_answers_what_a_token_of_theirs_submitted(db: None, three: Workflow) -> None:
    mine, _ = make_token("mine", ["submit", "approve"], created_by="cli:x", owner="user:7")
    other, _ = make_token("other", ["approve"], created_by="cli:x", owner="user:7")
    foreign, _ = make_token("foreign", ["approve"], created_by="cli:x")
    task = submit(three)
    Task.objects.filter(pk=task.pk).update(submitted_by=f"token:{mine.pk}")
    asked = Approval.objects.get(pk=ask(claim(three), three, votes=2).pk)

    def answer(kind: str, key: object) -> None:
        decide_approval(
            asked.pk, decision="approve", actor=Actor(kind, str(key)), digest=asked.digest
        )

    for kind, key in (("user", 7), ("token", mine.pk), ("token", other.pk)):
        with pytest.raises(NotAllowed, match="by a token of theirs"):
            answer(kind, key)
    answer("token", foreign.pk)
    answer("user", 8)
    asked.refresh_from_db()
    assert asked.status == "approved"


def test_a_person_and_their_token_have_one_vote(db: None, three: Workflow) -> None:
    mine, _ = make_token("mine", ["approve"], created_by="cli:x", owner="user:7")
    submit(three)
    asked = Approval.objects.get(pk=ask(claim(three), three, votes=2).pk)
    decide_approval(asked.pk, decision="approve", actor=Actor("user", "7"), digest=asked.digest)
    with pytest.raises(ApprovalClosed, match="voted on"):
        decide_approval(
            asked.pk, decision="approve", actor=Actor("token", str(mine.pk)), digest=asked.digest
        )
