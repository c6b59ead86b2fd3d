"""Questions to people: who may answer, what an answer leads to, what time and others do to it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group

from ledger import clock, states, sweeper
from ledger.errors import (
    ApprovalClosed,
    DigestMismatch,
    InvalidInput,
    LeaseLost,
    NotAllowed,
    NotFound,
    WrongStatus,
)
from ledger.events import Actor
from ledger.ids import make_id
from ledger.models import Approval, Event, StepOutput, Task
from ledger.transitions import approvals, holder, operators
from ledger.workflows import AskApproval, Workflow
from tests.factories import CLIENT, LEASE, OPERATOR, ask, attempt, claim, make_unit, submit
from tests.factories import make_workflow as make
from tests.ledger.replay import check_columns
from tests.ledger.stages import APPROVER

SECOND = Actor("user", "4")


def advance(seconds: float) -> None:
    """Let time pass."""
    clock.offset += seconds


def answer(request: Approval, decision: str = "approve", **options: Any) -> Approval:
    given: dict[str, Any] = {"actor": APPROVER, "digest": request.digest}
    return approvals.decide_approval(request.pk, decision=decision, **(given | options))


def read(request: Approval) -> Task:
    """The task of the request, and all that must hold of it."""
    task = Task.objects.get(pk=request.task_id)
    check_columns(task)
    return task


@pytest.fixture
def request_(flow: Workflow) -> Approval:
    """An open question of the first of three steps; it can be sent back."""
    submit(flow)
    return ask_at_first(flow, send_back_to="a")


def ask_at_first(flow: Workflow, **options: Any) -> Approval:
    found = ask(claim(flow), flow, **options)
    assert isinstance(found, Approval)
    return found


def test_asking_stores_the_unit_and_holds_nobody(request_: Approval) -> None:
    task = read(request_)
    assert (task.status, task.status_reason, task.lease_owner) == ("waiting", "approval", "")
    assert (task.step_name, task.turn) == ("a", 0)
    assert StepOutput.objects.get(task=task).step_name == "a"
    assert request_.expires_at - request_.requested_at == dt.timedelta(days=7)


# --- What an answer leads to ----------------------------------------------------------------------


def test_a_yes_goes_on_with_the_next_step(request_: Approval, flow: Workflow) -> None:
    answer(request_, values={"n": 1}, comment="fine")
    held = claim(flow)
    assert (held.step_name, held.turn, held.round) == ("b", 0, 0)
    assert held.answer is not None
    assert held.answer["decision"] == "approve"
    assert (held.answer["values"], held.answer["comment"], held.answer["by"]) == (
        {"n": 1}, "fine", "user:2",
    )  # fmt: skip


def test_a_yes_may_lead_to_the_same_step_again(flow: Workflow) -> None:
    submit(flow)
    answer(ask_at_first(flow, then="again"))
    held = claim(flow)
    assert (held.step_name, held.turn) == ("a", 1)
    assert held.answer is not None


def test_a_yes_on_the_last_step_completes_with_its_output(db: None) -> None:
    flow = make("single", steps=1)
    submit(flow)
    request = ask_at_first(flow)
    answer(request)
    task = read(request)
    assert (task.status, task.result) == (states.COMPLETED, {"ok": True})


def test_a_no_fails_the_task_unless_the_workflow_says_more(
    request_: Approval, flow: Workflow
) -> None:
    answer(request_, "reject", comment="never")
    task = read(request_)
    assert (task.status, task.status_reason) == (states.FAILED, states.APPROVAL_REJECTED)
    assert task.error is not None
    assert "never" in task.error["message"]
    submit(flow)
    other = ask_at_first(flow, on_reject="a")
    answer(other, "reject", comment="shorter")
    held = claim(flow)
    assert (held.step_name, held.round, held.feedback["comment"]) == ("a", 1, "shorter")


def test_sending_back_restarts_with_the_comment_and_counts_as_a_persons(
    request_: Approval, flow: Workflow
) -> None:
    answer(request_, "send_back", comment="colder")
    held = claim(flow)
    assert (held.step_name, held.turn, held.round, held.repair_count) == ("a", 0, 1, 0)
    assert held.feedback == {"comment": "colder", "values": None, "by": "user:2"}
    assert StepOutput.objects.get().superseded_in_round == 1


def test_without_a_step_to_go_back_to_there_is_no_sending_back(flow: Workflow) -> None:
    submit(flow)
    request = ask_at_first(flow)
    with pytest.raises(InvalidInput, match="sent back"):
        answer(request, "send_back")
    assert read(request).status == states.WAITING


# --- Who may answer, and what ---------------------------------------------------------------------


def test_nobody_answers_for_what_they_submitted(request_: Approval) -> None:
    with pytest.raises(NotAllowed):
        answer(request_, actor=CLIENT)
    flow = make("own", self_approval=True)
    submit(flow)
    answer(ask_at_first(flow), actor=CLIENT)


def test_an_answer_is_to_what_was_shown(request_: Approval) -> None:
    with pytest.raises(DigestMismatch):
        answer(request_, digest="0" * 64)
    with pytest.raises(InvalidInput, match="decision"):
        answer(request_, "maybe")
    with pytest.raises(NotFound):
        approvals.decide_approval(make_id(), decision="approve", actor=APPROVER, digest="")
    assert not request_.votes.exists()


def test_several_votes_are_different_peoples_and_one_no_is_enough(request_: Approval) -> None:
    Approval.objects.filter(pk=request_.pk).update(votes_needed=2)
    answer(request_)
    assert read(request_).status_reason == states.APPROVAL
    with pytest.raises(ApprovalClosed, match="user:2"):
        answer(request_)
    answer(request_, "reject", actor=SECOND)
    assert read(request_).status == states.FAILED


# --- Time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "no", "status", "reason"),
    [
        ("dead", "fail", states.DEAD, states.APPROVAL_EXPIRED),
        ("reject", "fail", states.FAILED, states.APPROVAL_REJECTED),
        ("reject", "a", states.QUEUED, ""),
        ("a", "fail", states.QUEUED, ""),
    ],
)
def test_silence_is_never_a_yes(
    rule: str, no: str, status: str, reason: str, flow: Workflow
) -> None:
    submit(flow)
    request = ask_at_first(flow, expires=30, on_expiry=rule, on_reject=no)
    advance(31)
    assert sweeper.sweep().expired == 1
    task = read(request)
    assert (task.status, task.status_reason, task.step_name) == (status, reason, "a")
    request.refresh_from_db()
    assert (request.status, request.decided_by) == ("expired", "system")


@pytest.mark.case(47)
def test_a_deadline_holds_with_every_sweeper_stopped(flow: Workflow) -> None:
    submit(flow)
    request = ask_at_first(flow, expires=30)
    advance(31)
    with pytest.raises(ApprovalClosed, match="expired"):
        answer(request)
    assert read(request).status_reason == states.APPROVAL
    assert not request.votes.exists()


def test_a_decision_acts_when_nobody_can_undo_it_any_more(
    request_: Approval, flow: Workflow
) -> None:
    answer(request_, undo_seconds=8)
    assert read(request_).status_reason == states.DECIDED
    advance(7)
    assert sweeper.sweep().applied == 0
    advance(2)
    with pytest.raises(ApprovalClosed):
        approvals.undo_decision(request_.pk, actor=APPROVER)
    assert sweeper.sweep().applied == 1
    kinds = list(Event.objects.filter(task=request_.task_id).values_list("kind", flat=True))
    assert kinds[-2:] == ["approval_decided", "promoted"]
    assert claim(flow).step_name == "b"


@pytest.mark.parametrize("options", [{}, {"assignees": ["user:7"]}])
def test_who_may_not_answer_may_not_undo(options: dict[str, Any], flow: Workflow) -> None:
    submit(flow)
    asked = ask(claim(flow), flow, **options)
    by = Actor("user", "7")
    give = {"digest": asked.digest, "undo_seconds": 8.0}
    approvals.decide_approval(asked.pk, decision="reject", actor=by, **give)
    for stranger in (CLIENT, SECOND) if options else (CLIENT,):
        with pytest.raises(NotAllowed):
            approvals.undo_decision(asked.pk, actor=stranger)
    asked.refresh_from_db()
    assert asked.status == "rejected"
    approvals.undo_decision(asked.pk, actor=by)


def test_a_decision_is_undone_with_its_votes(request_: Approval, flow: Workflow) -> None:
    answer(request_, "reject", undo_seconds=8)
    approvals.undo_decision(request_.pk, actor=SECOND)
    assert read(request_).status_reason == states.APPROVAL
    request_.refresh_from_db()
    assert (request_.status, request_.decision, request_.decided_by) == ("open", "", "")
    answer(request_)
    assert claim(flow).step_name == "b"
    with pytest.raises(ApprovalClosed):
        approvals.undo_decision(request_.pk, actor=SECOND)


@pytest.mark.parametrize("options", [{"risk": "high"}, {"money": True}, {"outside_effect": True}])
def test_what_can_not_be_taken_back_has_no_undo(options: dict[str, Any], flow: Workflow) -> None:
    submit(flow)
    request = ask_at_first(flow, **options)
    answer(request, undo_seconds=8)
    assert read(request).status == states.QUEUED


def test_a_decided_question_does_not_expire(flow: Workflow) -> None:
    submit(flow)
    request = ask_at_first(flow, expires=5)
    answer(request, undo_seconds=8)
    advance(9)
    swept = sweeper.sweep()
    assert (swept.expired, swept.applied) == (0, 1)
    assert read(request).status == states.QUEUED


# --- What others do meanwhile ---------------------------------------------------------------------


def test_a_pause_waits_for_the_answer_and_a_resume_takes_it_back(
    request_: Approval, flow: Workflow
) -> None:
    operators.pause_task(request_.task_id, actor=OPERATOR)
    assert read(request_).status == states.WAITING
    answer(request_)
    task = read(request_)
    assert (task.status, task.step_name) == (states.PAUSED, "b")
    operators.resume_task(task.pk, actor=OPERATOR)
    assert claim(flow).step_name == "b"


def test_a_cancel_voids_the_question(request_: Approval) -> None:
    operators.cancel_task(request_.task_id, actor=OPERATOR)
    assert read(request_).status == states.CANCELLED
    with pytest.raises(ApprovalClosed, match="void by user:1"):
        answer(request_)


def test_the_second_of_two_answers_learns_who_was_first(request_: Approval) -> None:
    answer(request_, undo_seconds=8)
    with pytest.raises(ApprovalClosed, match="approved by user:2"):
        answer(request_, "reject", actor=SECOND)


def test_a_restart_voids_a_decision_that_has_not_acted(request_: Approval, flow: Workflow) -> None:
    answer(request_, undo_seconds=8)
    operators.restart_task(request_.task_id, to_step="a", note="first this", actor=OPERATOR)
    with pytest.raises(ApprovalClosed, match="void"):
        approvals.undo_decision(request_.pk, actor=APPROVER)
    advance(9)
    assert sweeper.sweep().applied == 0
    held = claim(flow)
    assert (held.step_name, held.turn, held.answer) == ("a", 0, None)


def test_a_retry_waits_for_no_answer(request_: Approval) -> None:
    with pytest.raises(WrongStatus):
        operators.retry_task(request_.task_id, actor=OPERATOR)


@pytest.mark.parametrize("end", ["reject", "expire"])
def test_a_retry_after_a_no_asks_anew_and_keeps_the_first_output(end: str, flow: Workflow) -> None:
    submit(flow)
    request = ask_at_first(flow, expires=30)
    if end == "reject":
        answer(request, "reject")
    else:
        advance(31)
        sweeper.sweep()
    operators.retry_task(request.task_id, actor=OPERATOR)
    held = claim(flow)
    assert (held.step_name, held.turn, held.answer) == ("a", 1, None)
    again = ask(held, flow)
    assert again.status == "open"
    assert StepOutput.objects.filter(task=request.task_id).count() == 2
    answer(again)
    assert claim(flow).step_name == "b"


def test_an_answer_is_forgotten_with_its_question_and_kept_without(flow: Workflow) -> None:
    """A repair to before the question asks it again; one to after it relies on the answer."""
    submit(flow)
    answer(ask_at_first(flow), comment="kept")
    held = claim(flow)
    holder.repair_task(held, make_unit(held, flow), to_index=1, to_name="b", feedback="x")
    held = claim(flow)
    assert held.answer is not None
    assert held.answer["comment"] == "kept"
    holder.repair_task(held, make_unit(held, flow), to_index=0, to_name="a", feedback="x")
    assert claim(flow).answer is None


def test_asking_again_closes_the_question_before(request_: Approval, flow: Workflow) -> None:
    answer(request_, "send_back")
    ask(claim(flow), flow)
    assert Approval.objects.filter(status="open").count() == 1
    with pytest.raises(ApprovalClosed):
        answer(request_)


def test_a_task_that_is_to_be_cancelled_asks_nobody(flow: Workflow) -> None:
    task = submit(flow)
    held = claim(flow)
    operators.cancel_task(task.pk, actor=OPERATOR)
    assert ask(held, flow) is None
    assert not Approval.objects.exists()
    task.refresh_from_db()
    assert (task.status, task.outputs.count()) == (states.CANCELLED, 1)


def test_a_lost_worker_asks_nobody(flow: Workflow) -> None:
    submit(flow)
    held = claim(flow)
    advance(LEASE + 1)
    sweeper.sweep()
    with pytest.raises(LeaseLost):
        ask(held, flow)
    assert not Approval.objects.exists()
    assert not StepOutput.objects.exists()


def test_a_failed_attempt_of_an_answered_step_keeps_the_answer(
    request_: Approval, flow: Workflow
) -> None:
    answer(request_)
    holder.record_failure(claim(flow), attempt(), retries=3, backoff=1)
    advance(2)
    sweeper.sweep()
    held = claim(flow)
    assert held.answer is not None


def test_a_yes_without_values_means_the_proposal(flow: Workflow) -> None:
    submit(flow)
    form = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    answer(ask_at_first(flow, form=form, proposal={"n": 4}))
    held = claim(flow)
    assert held.answer is not None
    assert held.answer["values"] == {"n": 4}
    assert Approval.objects.get().values == {"n": 4}


def test_as_many_must_approve_as_the_workflow_says_and_one_no_is_enough(flow: Workflow) -> None:
    submit(flow)
    request = ask_at_first(flow, votes=2)
    assert answer(request).status == "open"
    with pytest.raises(ApprovalClosed, match="voted"):
        answer(request)
    assert read(request).status == states.WAITING
    answer(request, actor=SECOND)
    assert read(request).status == states.QUEUED
    request = ask(claim(flow), flow, votes=2)
    answer(request)
    answer(request, "reject", actor=SECOND)
    assert read(request).status == states.FAILED


def test_only_those_answer_whom_it_is_for(flow: Workflow) -> None:
    legal = Group.objects.create(name="legal")
    users = get_user_model().objects
    inside, outside = users.create_user("inside"), users.create_user("outside")
    inside.groups.add(legal)
    submit(flow)
    request = ask_at_first(flow, assignees=["group:legal", "token:t1"])
    for other in (Actor("user", str(outside.pk)), Actor("token", "t2"), Actor("cli", "x")):
        with pytest.raises(NotAllowed, match="group:legal"):
            answer(request, actor=other)
    answer(request, actor=Actor("user", str(inside.pk)))
    request = ask(claim(flow), flow, assignees=["token:t1"])
    answer(request, actor=Actor("token", "t1"))
    assert read(request).status == states.QUEUED


@pytest.mark.parametrize(
    "wrong", [{"votes": 0}, {"votes": True}, {"assignees": ["legal"]}, {"assignees": ["group:"]}]
)
def test_a_question_that_nobody_could_answer_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        AskApproval("Go on?", **wrong)
