"""One answer to many questions: by the rules of a single answer, and at most one vote on each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group

from ledger import clock, states
from ledger.access import READ
from ledger.bulk import doing
from ledger.bulk.answers import Asked, look_at
from ledger.bulk.doing import do_pending
from ledger.bulk.making import make_answers
from ledger.calls import Call, answer_call
from ledger.errors import IdempotencyConflict, InvalidInput, LedgerError, NotAllowed
from ledger.events import Actor
from ledger.models import Approval, ApprovalVote, AuditEntry, BulkItem, BulkOperation, Event, Task
from ledger.queries.bulk import list_items, show_operation
from ledger.tokens import make_token
from ledger.transitions import operators
from ledger.transitions.approvals import decide_approval, undo_decision
from ledger.transitions.overdue import expire_approval
from ledger.workflows import Workflow
from tests.factories import CLIENT, ask, claim, make_workflow, submit
from tests.ledger.threads import Crew

pytestmark = pytest.mark.django_db

ANN, BEN = Actor("cli", "ann"), Actor("cli", "ben")


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doing, "TURN_SECONDS", 600.0)


def put(flow: Workflow, **options: Any) -> Approval:
    """An open question of low risk of a new task."""
    submit(flow, priority=100)
    return Approval.objects.get(pk=ask(claim(flow), flow, **options).pk)


def choose(rows: Iterable[Approval]) -> tuple[Asked, ...]:
    return tuple(Asked(row.pk, row.digest) for row in rows)


def start(name: str, rows: Iterable[Approval], **options: Any) -> BulkOperation:
    more = {"actor": ANN} | ({"comment": "no"} if name == "reject" else {}) | options
    return make_answers(name, choose(rows), **more)[0]


def finish(operation: BulkOperation) -> dict[str, int]:
    while do_pending():
        pass
    shown = show_operation(operation.pk)
    assert shown["finished_at"], shown
    return {name: number for name, number in shown["counts"].items() if number}


def explain(operation: BulkOperation, row: Approval) -> str:
    return operation.items.get(approval=row.pk).why


def make_person(role: str) -> Actor:
    user = get_user_model().objects.create_user(role)
    user.groups.add(Group.objects.get(name=role))
    return Actor("user", str(user.pk))


@pytest.mark.parametrize(("name", "ends"), [("approve", "approved"), ("reject", "rejected")])
def test_each_question_gets_the_answer_and_each_is_on_record(
    flow: Workflow, name: str, ends: str
) -> None:
    rows = [put(flow) for _ in range(3)]
    operation = start(name, rows, comment="seen all")
    assert finish(operation) == {"done": 3}
    assert Counter(Approval.objects.values_list("status", "comment", "decided_by")) == {
        (ends, "seen all", "cli:ann"): 3
    }
    assert ApprovalVote.objects.count() == 3
    assert set(Task.objects.values_list("status", flat=True)) == {
        states.QUEUED if name == "approve" else states.FAILED
    }
    audited = AuditEntry.objects.filter(request_id=doing.name_call(operation.pk))
    assert Counter(audited.filter(action="approval_decided").values_list("target", "reason")) == {
        (f"approval:{row.pk}", "seen all"): 1 for row in rows
    }
    [entry] = AuditEntry.objects.filter(target=f"bulk:{operation.pk}")
    assert (entry.action, entry.after["approvals"], entry.reason) == ("bulk_started", 3, "seen all")
    [item, *_] = list_items(operation.pk).items
    assert (item["approval"], item["subject"]) == (str(rows[0].pk), "Go on?")


def test_only_low_risk_without_money_or_an_effect_outside_is_approved_together(
    flow: Workflow,
) -> None:
    low = put(flow)
    others = [put(flow, risk="medium"), put(flow, risk="high"), put(flow, money=True),
              put(flow, outside_effect=True)]  # fmt: skip
    operation = start("approve", [low, *others])
    # The rule is looked at again when an item is done: an item that says otherwise changes nothing.
    operation.items.update(outcome="pending", why="")
    assert finish(operation) == {"done": 1, "skipped": 4}
    assert "only low risk is approved together" in explain(operation, others[1])
    assert set(Approval.objects.exclude(pk=low.pk).values_list("status", flat=True)) == {"open"}
    with pytest.raises(InvalidInput, match="there is none to approve among the 4 chosen"):
        start("approve", others)
    assert finish(start("reject", others)) == {"done": 4}


def test_questions_of_several_kinds_are_refused_whole(flow: Workflow) -> None:
    rows = [put(flow), put(make_workflow("other"))]
    for name in ("approve", "reject"):
        with pytest.raises(InvalidInput, match="are of 2 kinds"):
            start(name, rows)
    assert not BulkOperation.objects.exists()


def test_a_question_that_was_asked_anew_is_not_answered(flow: Workflow) -> None:
    before, during, kept = (put(flow) for _ in range(3))
    stale = [*choose([before, during, kept])]
    operators.restart_task(before.task_id, to_step="a", note="again", actor=CLIENT)
    again = Approval.objects.get(pk=ask(claim(flow), flow).pk)
    assert (again.task_id, again.digest) == (before.task_id, before.digest)
    operation, _ = make_answers("approve", stale, actor=ANN)
    assert operation.items.get(approval=before.pk).outcome == "refused"
    Approval.objects.filter(pk=during.pk).update(digest="0" * 64)
    assert finish(operation) == {"done": 1, "refused": 2}
    assert "has changed since" in explain(operation, before)
    assert "has changed since" in explain(operation, during)
    assert Approval.objects.get(pk=again.pk).status == "open"
    assert list(ApprovalVote.objects.values_list("approval_id", flat=True)) == [kept.pk]


def test_nobody_answers_together_what_they_submitted_or_are_not_asked(flow: Workflow) -> None:
    ann = make_person("approver")
    token, _ = make_token("ci", ["submit"], created_by=str(ann), owner=str(ann))
    own, by_token, elsewhere, voted, free = (put(flow, votes=2 if n == 3 else 1)
                                             for n in range(5))  # fmt: skip
    Task.objects.filter(pk=own.task_id).update(submitted_by=str(ann))
    Task.objects.filter(pk=by_token.task_id).update(submitted_by=f"token:{token.pk}")
    child = put(flow)
    Task.objects.filter(pk=child.task_id).update(
        parent=own.task_id, submitted_by=f"task:{own.task_id}"
    )
    Approval.objects.filter(pk=elsewhere.pk).update(assignees=["group:board"])
    decide_approval(voted.pk, decision="approve", actor=ann, digest=voted.digest)
    rows = [own, by_token, child, elsewhere, voted, free]
    # The preview says what the answer itself would say.
    for one in look_at("approve", choose(rows), ann):
        if one.why:
            with pytest.raises(LedgerError):
                decide_approval(one.row.pk, decision="approve", actor=ann, digest=one.row.digest)
    operation = start("approve", rows, actor=ann)
    skipped = operation.items.filter(outcome="skipped")
    assert {item.approval for item in skipped} == {row.pk for row in rows[:-1]}
    skipped.update(outcome="pending", why="")
    assert finish(operation) == {"done": 1, "refused": 5}
    assert ApprovalVote.objects.count() == 2


def test_two_votes_are_of_two_people(flow: Workflow) -> None:
    row = put(flow, votes=2)
    assert finish(start("approve", [row])) == {"done": 1}
    assert Approval.objects.get().status == "open"
    with pytest.raises(InvalidInput, match="You have voted"):
        start("approve", [row])
    assert finish(start("approve", [row], actor=BEN)) == {"done": 1}
    assert Approval.objects.get().status == "approved"


def test_role_lane_and_contents_count_when_an_item_is_done(flow: Workflow) -> None:
    ann = make_person("approver")
    operation = start("approve", [put(flow), put(flow)], actor=ann)
    assert do_pending(limit=1) == 1
    get_user_model().objects.get(pk=ann.id).groups.clear()
    assert finish(operation) == {"done": 1, "refused": 1}
    row = put(flow)
    call = Call(actor=str(ann), lanes=frozenset({"night"}))
    with answer_call(call), pytest.raises(InvalidInput, match="there is no approval"):
        start("approve", [row], actor=ann)
    with answer_call(Call(actor=str(ann), payload=False)), pytest.raises(NotAllowed):
        start("approve", [row], actor=ann)


def test_an_undo_window_holds_for_each(flow: Workflow) -> None:
    first, second = put(flow), put(flow)
    operation = start("approve", [first, second], undo_seconds=60)
    finish(operation)
    assert set(Task.objects.values_list("status_reason", flat=True)) == {states.DECIDED}
    undo_decision(second.pk, actor=BEN)
    assert [Approval.objects.get(pk=row.pk).status for row in (first, second)] == [
        "approved", "open",
    ]  # fmt: skip


def test_what_is_wrong_with_a_request_begins_nothing(flow: Workflow) -> None:
    row = put(flow)
    [one] = choose([row])
    for name, asked, comment in (
        ("reject", [one], " "), ("send_back", [one], "x"), ("approve", [], ""),
        ("approve", [Asked(row.task_id, one.digest)], ""), ("approve", [one], "x" * 2_000_000),
    ):  # fmt: skip
        with pytest.raises(InvalidInput):
            make_answers(name, asked, actor=ANN, comment=comment)
    assert not BulkOperation.objects.exists()
    first, new = make_answers("approve", [one], actor=ANN, key="k")
    again, twice = make_answers("approve", [one], actor=ANN, key="k")
    assert (first.pk, new, twice) == (again.pk, True, False)
    with pytest.raises(IdempotencyConflict):
        make_answers("reject", [one], actor=ANN, key="k", comment="no")


def test_who_may_not_see_contents_is_not_shown_the_comment(flow: Workflow) -> None:
    operation = start("reject", [put(flow)], comment="a secret")
    with answer_call(Call(actor="user:9", payload=False)):
        assert "a secret" not in str(show_operation(operation.pk)["arguments"])


@pytest.mark.django_db(transaction=True)
def test_beside_single_answers_and_expiry_each_question_is_decided_once(
    flow: Workflow, together: Crew
) -> None:
    """Two operations, a person who answers one by one, and a deadline: one of them each."""
    rows = [put(flow, expires=3_600) for _ in range(12)]
    now = clock.now()
    Approval.objects.filter(pk__in=[row.pk for row in rows[8:]]).update(expires_at=now)
    start("approve", rows)
    start("reject", rows, actor=BEN)
    alone = Actor("cli", "cleo")

    def answer_alone() -> None:
        for row in rows[::2]:
            try:
                decide_approval(row.pk, decision="reject", actor=alone, digest=row.digest)
            except LedgerError:
                continue

    def sweep() -> None:
        while do_pending(3):
            pass

    def expire() -> None:
        for row in rows[8:]:
            expire_approval(row.pk)

    together(sweep, sweep, answer_alone, expire)
    sweep()
    expire()  # what was passed over because another was at it
    assert not BulkItem.objects.filter(outcome="pending").exists()
    for row in rows:
        row.refresh_from_db()
        votes = list(ApprovalVote.objects.filter(approval=row).values_list("by", flat=True))
        done = [one.operation.actor for one in BulkItem.objects.filter(approval=row.pk)
                if one.outcome == "done"]  # fmt: skip
        kinds = Counter(Event.objects.filter(task=row.task_id).values_list("kind", flat=True))
        if row in rows[8:]:
            assert (row.status, votes, done) == ("expired", [], [])
        else:
            assert votes == [row.decided_by]
            assert done == [one for one in votes if one != str(alone)]
            assert (kinds["approval_voted"], kinds["approval_decided"]) == (1, 1)
    assert set(BulkOperation.objects.values_list("status", flat=True)) == {"done"}


def test_a_token_that_only_reads_has_no_part(flow: Workflow) -> None:
    token, _ = make_token("r", [READ], created_by="cli:ann")
    operation = start("approve", [put(flow)], actor=Actor("token", str(token.pk)))
    assert finish(operation) == {"refused": 1}
