"""What is on record of people and tokens: every write, and every refused try, within a bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from ledger import auditing, sql, states
from ledger.errors import InvalidInput
from ledger.models import ApiToken, AuditEntry, Task
from ledger.tokens import make_token, revoke_token
from ledger.transitions import operators
from ledger.workflows import Workflow, registered
from tests.api.conftest import BASE, Api
from tests.factories import LEASE, OPERATOR, ask, claim, make_in, make_unit, make_workflow, submit

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]


@pytest.fixture(autouse=True)
def _fresh_counts() -> Iterator[None]:
    auditing.forget_refusals()
    yield
    auditing.forget_refusals()


@pytest.fixture
def flow() -> Iterator[Workflow]:
    """A workflow of the steps a, b, c that this process knows."""
    workflow = make_workflow()
    with registered(workflow):
        yield workflow


def read_last(**wanted: Any) -> AuditEntry:
    """The newest entry."""
    found = AuditEntry.objects.filter(**wanted).first()
    assert found is not None
    return found


def test_what_a_token_does_is_on_record_with_address_and_request(
    api: Api, task: dict[str, Any]
) -> None:
    made = read_last(action="submitted")
    token = ApiToken.objects.get()
    assert (made.actor, made.target) == (f"token:{token.pk}", f"task:{task['id']}")
    assert made.after["lane"] == "default"
    answer = api.post(
        f"/tasks/{task['id']}/pause", {"reason": "lunch"}, **{"X-Request-ID": "abc-1"}
    )
    answer.expect(200)
    assert answer.headers["X-Request-ID"] == "abc-1"
    entry = read_last()
    assert (entry.action, entry.reason, entry.allowed) == ("paused", "lunch", True)
    assert (str(entry.task), entry.address, entry.request_id) == (task["id"], "127.0.0.1", "abc-1")
    assert entry.before == {"status": "queued", "status_reason": ""}
    assert entry.after == {"status": "paused", "status_reason": "paused_by_operator"}
    change = api.post(f"/tasks/{task['id']}/change", {"title": "New", "priority": 3})
    change.expect(200)
    assert read_last().before == {"title": "", "priority": 0}
    assert read_last().after == {"title": "New", "priority": 3}


def test_a_request_id_that_is_not_sane_is_not_taken(api: Api) -> None:
    for given in ("", "a b", "x" * 65, "<script>", "a\tb", "\xe9"):
        headers = api.headers | {"X-Request-ID": given}
        answer = api.client.get(f"{BASE}/tasks", headers=headers)
        assert len(answer.headers["X-Request-ID"]) == 16


def test_a_workers_units_write_nothing(flow: Workflow) -> None:
    submit(flow)
    submit(flow)
    AuditEntry.objects.all().delete()
    held = claim(flow)
    sql.checkpoint_unit(held, make_unit(held, flow), lease_seconds=LEASE, groups=[])
    ask(claim(flow), flow)
    assert not AuditEntry.objects.exists()


def test_what_is_rolled_back_was_not_done(flow: Workflow) -> None:
    task = make_in(states.DEAD, flow)
    Task.objects.filter(pk=task.pk).update(status_reason=states.LIMIT_UNITS, used_units=7)
    AuditEntry.objects.all().delete()
    with pytest.raises(InvalidInput):
        operators.extend_limits(task.pk, limits_given={"units": 7}, actor=OPERATOR)
    assert not AuditEntry.objects.exists()
    operators.extend_limits(task.pk, limits_given={"units": 9}, actor=OPERATOR, reason="more")
    entry = read_last()
    assert (entry.action, entry.reason) == ("limits_changed", "more")
    assert (entry.before["status"], entry.after["status"]) == ("dead", "queued")
    assert entry.after["units"] == 9


def test_an_answer_is_on_record_under_its_question(api: Api, flow: Workflow) -> None:
    asked = make_in(states.WAITING, flow).approvals.get()
    body = {"decision": "approve", "digest": asked.digest, "comment": "good"}
    api.post(f"/approvals/{asked.id}/answer", body).expect(200)
    entry = read_last(action="approval_decided")
    assert (entry.target, entry.reason) == (f"approval:{asked.id}", "good")
    assert (entry.before["status"], entry.after["decision"]) == ("waiting", "approve")
    assert entry.task == asked.task_id


def test_who_may_not_answer_is_on_record_whatever_the_door(api: Api, flow: Workflow) -> None:
    asked = make_in(states.WAITING, flow).approvals.get()
    type(asked).objects.update(assignees=["group:legal"])
    body = {"decision": "approve", "digest": asked.digest}
    api.post(f"/approvals/{asked.id}/answer", body).expect_problem(403, "not_allowed")
    entry = read_last(allowed=False)
    assert (entry.action, entry.target) == ("approval_voted", f"approval:{asked.id}")
    assert "legal" in entry.reason


def test_a_batch_is_on_record_task_by_task(api: Api, flow: Workflow) -> None:
    AuditEntry.objects.all().delete()
    api.post("/tasks/batch", {"items": [{"workflow": "three", "input": {}}] * 3}).expect(201)
    assert AuditEntry.objects.filter(action="submitted").count() == 3
    bad = [{"workflow": "three", "input": {}}, {"workflow": "nobody", "input": {}}]
    api.post("/tasks/batch", {"items": bad}).expect_problem(
        422, "unknown_workflow", "items.1.workflow"
    )
    assert AuditEntry.objects.count() == 3


def test_refused_tries_name_who_tried(login: Callable[..., Api], task: dict[str, Any]) -> None:
    weak = login("read")
    token = ApiToken.objects.get(scopes=["read"])
    weak.post(f"/tasks/{task['id']}/cancel").expect_problem(403, "not_allowed")
    entry = read_last(allowed=False)
    assert (entry.actor, str(entry.task)) == (f"token:{token.pk}", task["id"])
    assert (entry.action, entry.target) == ("POST cancel", f"{BASE}/tasks/{task['id']}/cancel")
    assert "operate" in entry.reason
    # A token that was revoked is known by its digest; a text that never was one is nobody's.
    assert revoke_token(token.pk, by="cli:me")
    weak.get("/workers").expect_problem(401, "unauthenticated")
    assert read_last(allowed=False).actor == f"token:{token.pk}"
    Api("lw_guessed").post("/tasks", {}).expect_problem(401, "unauthenticated")
    assert read_last(allowed=False).actor == "anonymous"


def test_a_session_whose_user_was_deactivated_is_named(db: None) -> None:
    user = User.objects.create_user("ann")
    user.groups.add(Group.objects.get(name="operator"))
    client = Client()
    client.force_login(user)
    assert client.get("/").status_code == 200
    User.objects.update(is_active=False)
    assert client.get("/").status_code == 302
    assert client.get(f"{BASE}/tasks").status_code == 401
    assert {entry.actor for entry in AuditEntry.objects.filter(allowed=False)} == {
        f"user:{user.pk}"
    }


def test_a_flood_of_refusals_is_counted_and_not_stored(
    login: Callable[..., Api], monkeypatch: pytest.MonkeyPatch
) -> None:
    weak = login("submit")
    for _ in range(30):
        weak.get("/workers").expect_problem(403, "not_allowed")
    refused = AuditEntry.objects.filter(allowed=False)
    assert refused.count() == 1
    for number in range(auditing.MAX_OF_ACTOR + 30):
        weak.get(f"/tasks?limit={number}").expect_problem(403, "not_allowed")
        weak.get(f"/approvals/{number:032x}").expect_problem(403, "not_allowed")
    assert refused.count() <= auditing.MAX_OF_ACTOR + 1
    assert refused.first().action == "many"  # type: ignore[union-attr]
    monkeypatch.setattr(auditing, "COUNTED_SECONDS", 0.0)
    weak.get("/stalled").expect_problem(403, "not_allowed")
    counts = [entry.after["repeated"] for entry in refused if entry.after]
    assert 29 in counts
    assert sum(counts) >= 100


def test_tokens_are_on_record_without_their_text(db: None) -> None:
    row, text = make_token("ci", ["read"], created_by="cli:me", days=2)
    entry = read_last(action="create_token")
    assert (entry.actor, entry.target, entry.after["scopes"]) == (
        "cli:me", f"token:{row.pk}", ["read"],
    )  # fmt: skip
    stored = str(list(AuditEntry.objects.values()))
    assert text not in stored
    assert row.digest not in stored


def test_an_upload_is_on_record(api: Api) -> None:
    answer = api.post("/artifacts?name=a.txt", b"hello", Content_Type="text/plain")
    answer.expect(201)
    entry = read_last(action="upload")
    assert entry.target == f"artifact:{answer.json['id']}"
    assert entry.after["size"] == 5
