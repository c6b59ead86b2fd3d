"""Time and open questions: who is asked next, the last consequence, reminders, each once."""

from __future__ import annotations

import datetime as dt
import os
from typing import Any

import pytest

from ledger import clock, states, sweeper
from ledger.errors import ApprovalClosed, DigestMismatch, NotAllowed
from ledger.events import Actor
from ledger.models import Approval, Event, Outbox, Task
from ledger.transitions import approvals, operators, overdue
from ledger.workflows import AskApproval, Workflow, hours
from tests.factories import OPERATOR, ask, claim, submit
from tests.ledger.replay import check_columns
from tests.ledger.stages import APPROVER
from tests.ledger.test_races import check_all
from tests.ledger.threads import Crew

PROOF = bool(os.environ.get("LONGWATCH_TEST_PROOF"))
LEAD = Actor("user", "7")
CHAIN = [("user:7", hours(2)), (["user:8", "group:board"], hours(5))]


def advance(seconds: float) -> None:
    """Let time pass."""
    clock.offset += seconds


def answer(request: Approval, actor: Actor = APPROVER, **options: Any) -> Approval:
    given: dict[str, Any] = {"decision": "approve", "digest": request.digest}
    return approvals.decide_approval(request.pk, actor=actor, **(given | options))


def put(flow: Workflow, **options: Any) -> Approval:
    """An open question of a new task, for an hour."""
    submit(flow)
    return Approval.objects.get(pk=ask(claim(flow), flow, **{"expires": 3600, **options}).pk)


def read_events(request: Approval, kind: str) -> list[Event]:
    return list(Event.objects.filter(task=request.task_id, kind=kind).order_by("seq"))


def list_votes(request: Approval) -> list[tuple[str, bool]]:
    """Who voted, in order, and whether it counts."""
    return [(vote.by, vote.voided_at is None) for vote in request.votes.order_by("id")]


def check_waiting(request: Approval) -> Task:
    """The task still waits for the answer, with all that must hold of it."""
    task = Task.objects.get(pk=request.task_id)
    check_columns(task)
    assert (task.status, task.status_reason) == (states.WAITING, states.APPROVAL)
    return task


# --- Those who are asked next ---------------------------------------------------------------------


def test_a_question_nobody_answers_passes_from_one_to_the_next_and_ends_as_declared(
    flow: Workflow,
) -> None:
    request = put(flow, assignees=["user:2"], escalate=CHAIN)
    for level, (people, wait) in enumerate([(["user:7"], 2), (["user:8", "group:board"], 5)], 1):
        advance(900 + (request.expires_at - clock.read()).total_seconds())
        before = clock.read()
        assert sweeper.sweep().expired == 1
        assert sweeper.sweep().expired == 0
        request.refresh_from_db()
        check_waiting(request)
        assert (request.status, request.assignees, request.level) == ("open", people, level)
        # Each has their own whole time, however late the sweep came.
        assert abs(request.expires_at - before - dt.timedelta(hours=wait)).total_seconds() < 30
        event = read_events(request, "approval_escalated")[-1]
        assert (event.actor, event.data["to"], event.data["level"]) == ("system", people, level)
        told = Outbox.objects.filter(task=request.task_id, kind="approval_requested")
        assert told.count() == 1 + level  # the next ones are asked, too
    advance(hours(5) + 1)
    assert sweeper.sweep().expired == 1
    task = Task.objects.get(pk=request.task_id)
    assert (task.status, task.status_reason) == (states.DEAD, states.APPROVAL_EXPIRED)
    assert [event.data["before"] for event in read_events(request, "approval_escalated")] == [
        ["user:2"], ["user:7"],
    ]  # fmt: skip


def test_after_their_time_those_before_are_refused_and_the_next_may_answer_without_a_sweeper(
    flow: Workflow,
) -> None:
    request = put(flow, assignees=["user:2"], escalate=CHAIN)
    with pytest.raises(NotAllowed, match="user:2"):
        answer(request, LEAD)
    advance(3601)
    for _ in range(2):
        with pytest.raises(NotAllowed, match="user:7"):
            answer(request)
    request.refresh_from_db()
    assert (request.level, request.votes.count()) == (0, 0)  # a refusal writes nothing
    answer(request, LEAD)
    assert claim(flow).answer is not None
    kinds = list(Event.objects.filter(task=request.task_id).values_list("kind", flat=True))
    assert kinds[-3:] == ["approval_escalated", "approval_voted", "approval_decided"]


def test_passing_on_voids_the_votes_of_those_before(flow: Workflow) -> None:
    """A quorum of two is two of those who are asked now; who is among both votes anew."""
    request = put(flow, votes=2, escalate=[(["user:2", "user:7"], 60)])
    answer(request)
    advance(3601)
    answer(request)
    check_waiting(request)
    assert list_votes(request) == [("user:2", False), ("user:2", True)]
    answer(request, LEAD)
    assert Task.objects.get(pk=request.task_id).status == states.QUEUED


def test_the_last_ones_deadline_holds_too(flow: Workflow) -> None:
    request = put(flow, escalate=[("user:7", 60)])
    advance(3601)
    sweeper.sweep()
    advance(61)
    with pytest.raises(ApprovalClosed, match="expired"):
        answer(request, LEAD)
    assert sweeper.sweep().expired == 1
    assert Task.objects.get(pk=request.task_id).status == states.DEAD


def test_silence_may_fail_the_task_whatever_a_rejection_does(flow: Workflow) -> None:
    request = put(flow, on_expiry="fail", on_reject="a")
    advance(3601)
    sweeper.sweep()
    task = Task.objects.get(pk=request.task_id)
    assert (task.status, task.status_reason) == (states.FAILED, states.APPROVAL_EXPIRED)
    assert task.error is not None
    assert task.error["type"] == "ApprovalExpired"


@pytest.mark.django_db(transaction=True)
def test_a_question_is_passed_on_once_by_many_sweepers(flow: Workflow, together: Crew) -> None:
    for _ in range(5):
        request = put(flow, escalate=[("user:7", 60)])
        advance(3601)
        assert sum(together(*[lambda: overdue.expire_approval(request.pk)] * 4)) == 1  # noqa: B023
        assert len(read_events(request, "approval_escalated")) == 1
        operators.cancel_task(request.task_id, actor=OPERATOR)
    check_all()


# --- Reminders ------------------------------------------------------------------------------------


def test_a_reminder_comes_at_each_time_and_an_outage_leaves_out_what_it_missed(
    flow: Workflow,
) -> None:
    request = put(flow, remind=600)
    assert request.remind_at == request.requested_at + dt.timedelta(seconds=600)
    advance(590)
    assert sweeper.sweep().reminded == 0
    advance(15)
    assert (sweeper.sweep().reminded, sweeper.sweep().reminded) == (1, 0)
    advance(1300)  # two more were due meanwhile
    assert (sweeper.sweep().reminded, sweeper.sweep().reminded) == (1, 0)
    check_waiting(request)
    request.refresh_from_db()
    assert request.remind_at == request.requested_at + dt.timedelta(seconds=2400)
    events = read_events(request, "approval_reminded")
    assert [event.data["count"] for event in events] == [1, 2]
    assert events[0].data["approval"] == str(request.pk)


def test_no_reminder_comes_after_the_answer_or_the_end(flow: Workflow) -> None:
    request = put(flow, remind=3000)
    answer(request, undo_seconds=8)
    advance(3001)
    assert sweeper.sweep().reminded == 0
    request = put(flow, remind=2000)
    advance(2001)
    assert sweeper.sweep().reminded == 1
    request.refresh_from_db()
    assert request.remind_at is None  # the next one would come after the end
    advance(1600)
    swept = sweeper.sweep()
    assert (swept.expired, swept.reminded) == (1, 0)


def test_the_next_people_are_reminded_by_their_own_time(flow: Workflow) -> None:
    request = put(flow, remind=2000, escalate=[("user:7", hours(2))])
    advance(3601)
    swept = sweeper.sweep()
    assert (swept.expired, swept.reminded) == (1, 0)
    request.refresh_from_db()
    assert request.remind_at == request.expires_at - dt.timedelta(seconds=hours(2) - 2000)
    advance(2001)
    assert sweeper.sweep().reminded == 1
    assert read_events(request, "approval_reminded")[0].data["assignees"] == ["user:7"]


def test_reminders_are_bounded(flow: Workflow) -> None:
    request = put(flow, remind=60, expires=hours(100))
    Approval.objects.update(reminders=overdue.MAX_REMINDERS - 1)
    advance(61)
    assert sweeper.sweep().reminded == 1
    request.refresh_from_db()
    assert request.remind_at is None


@pytest.mark.django_db(transaction=True)
def test_a_reminder_is_written_once_by_many_sweepers(flow: Workflow, together: Crew) -> None:
    for _ in range(5):
        request = put(flow, remind=60)
        advance(61)
        sums = together(*[lambda: sweeper.sweep().reminded] * 4)
        assert sum(sums) == 1
        assert len(read_events(request, "approval_reminded")) == 1
        operators.cancel_task(request.task_id, actor=OPERATOR)
    check_all()


# --- What is asked --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "floor", "risk", "by"),
    [
        ("low", "medium", "medium", "workflow"),
        ("high", "medium", "high", "step"),
        ("medium", "medium", "medium", "step"),
        ("low", "low", "low", "step"),
        ("low", "high", "high", "workflow"),
    ],
)
def test_no_question_is_below_the_floor_of_its_workflow(
    asked: Any, floor: str, risk: str, by: str, flow: Workflow
) -> None:
    flow.risk_floor = floor
    request = put(flow, risk=asked)
    assert (request.risk, request.risk_by) == (risk, by)
    assert read_events(request, "approval_requested")[0].data["risk"] == risk
    answer(request, undo_seconds=8)
    undone = Task.objects.get(pk=request.task_id).status == states.WAITING
    assert undone == (risk != "high")


def test_a_floor_is_one_of_the_risks() -> None:
    with pytest.raises(ValueError, match="risk_floor"):
        Workflow("risky", risk_floor="none")  # type: ignore[arg-type]


def test_a_request_that_is_asked_again_voids_the_votes_on_the_one_before(flow: Workflow) -> None:
    first = put(flow, votes=2, body="old")
    answer(first)
    operators.restart_task(first.task_id, to_step="a", note="other", actor=OPERATOR)
    second = ask(claim(flow), flow, votes=2, body="new")
    assert list_votes(first) == [("user:2", False)]
    with pytest.raises(DigestMismatch):
        answer(second, digest=first.digest)
    assert answer(second).status == "open"
    assert answer(second, LEAD).status == "approved"


@pytest.mark.parametrize(
    "wrong",
    [{"escalate": ["user:3"]}, {"escalate": [("leads", 60)]}, {"escalate": [("user:3", 0)]},
     {"escalate": [("user:3", 60)] * 11}, {"escalate": [([], 60)]}, {"remind": 59},
     {"remind": "x"}, {"diff": ["one"]}, {"artifacts": "one"}, {"artifacts": ["a"] * 101}],
    ids=str,
)  # fmt: skip
def test_a_question_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        AskApproval("Go on?", **wrong)


# --- What an answer in time is worth --------------------------------------------------------------


@pytest.mark.case(47)
def test_an_answer_in_time_stands_however_late_anybody_acts_on_it(flow: Workflow) -> None:
    """The undo window ends after the deadline, and no worker or sweeper is there for an hour."""
    request = put(flow)
    advance((request.expires_at - clock.read()).total_seconds() - 0.5)
    answer(request, undo_seconds=8, comment="in time")
    advance(3600)
    assert not overdue.expire_approval(request.pk)
    with pytest.raises(ApprovalClosed, match="approved by user:2"):
        answer(request, LEAD, decision="reject")
    assert sweeper.sweep().applied == 1
    told = claim(flow).answer
    assert told is not None
    request.refresh_from_db()
    assert (told["comment"], told["at"]) == ("in time", request.decided_at.isoformat())
    assert request.decided_at < request.expires_at


@pytest.mark.case(47)
@pytest.mark.timeout(900 if PROOF else 120)
@pytest.mark.django_db(transaction=True)
def test_in_the_instant_of_the_deadline_one_of_answer_and_expiry_counts(
    flow: Workflow, together: Crew
) -> None:
    closings = ("approval_decided", "approval_expired")
    seen = set()
    for number in range(500 if PROOF else 40):
        request = put(flow)
        Approval.objects.update(expires_at=clock.now(0.003 if number % 2 else 0.001))
        together(lambda: answer(request), lambda: overdue.expire_approval(request.pk))  # noqa: B023
        sweeper.sweep()
        advance(1)
        sweeper.sweep()
        kinds = [kind for one in closings for kind in read_events(request, one)]
        assert len(kinds) == 1
        task = Task.objects.get(pk=request.task_id)
        request.refresh_from_db()
        seen.add((request.status, task.status))
        operators.cancel_task(task.pk, actor=OPERATOR)
    assert seen <= {("approved", states.QUEUED), ("expired", states.DEAD)}
    check_all()


@pytest.mark.case(47)
def test_a_clock_that_steps_back_opens_nothing_again(flow: Workflow) -> None:
    request = put(flow)
    advance(3601)
    sweeper.sweep()
    advance(-3000)
    with pytest.raises(ApprovalClosed, match="expired"):
        answer(request)
    assert Task.objects.get(pk=request.task_id).status == states.DEAD
