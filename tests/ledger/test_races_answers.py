"""An answer at the instant of something else: one transaction decides, the step after runs once.

Short here; with LONGWATCH_TEST_PROOF=1 each race is run 200 times.
"""

from __future__ import annotations

import collections
import contextlib
import datetime as dt
import os
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from ledger import clock, sql, states
from ledger.errors import ApprovalClosed, LedgerError
from ledger.events import Actor
from ledger.models import Approval, Task
from ledger.transitions import approvals, holder, operators, overdue
from ledger.workflows import Workflow
from tests.crash.cluster_kit import wait_for
from tests.factories import LEASE, OPERATOR, OWNER, ask, claim, make_unit, submit
from tests.ledger.stages import APPROVER, decide, run_out
from tests.ledger.test_races import check_all
from tests.ledger.threads import PATIENCE, Crew, count_wins

PROOF = bool(os.environ.get("LONGWATCH_TEST_PROOF"))
TRIALS = 200 if PROOF else 20
pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(600 if PROOF else 120),
    pytest.mark.case(46),
]
OTHER_PERSON = Actor("user", "4")
CLOSINGS = ("approval_decided", "approval_voided", "approval_expired")


def put(flow: Workflow, **options: Any) -> Approval:
    """An open question at the first step of a new task."""
    submit(flow)
    return Approval.objects.get(pk=ask(claim(flow), flow, **options).pk)


def answer(request: Approval, decision: str, actor: Actor = APPROVER) -> Any:
    """What a person sends, by the digest of what was shown."""
    return approvals.decide_approval(
        request.pk, decision=decision, actor=actor, digest=request.digest
    )


def judge(request: Approval, flow: Workflow) -> str:
    """What became of the question, once the record of it is seen to be whole.

    The task is run a step further if it can be, and then cancelled, out of the way of the next.
    """
    request.refresh_from_db()
    task = Task.objects.get(pk=request.task_id)
    closings = list(task.events.filter(kind__in=CLOSINGS, data__approval=str(request.pk)))
    assert len(closings) == 1, [event.kind for event in closings]
    assert (request.decided_by, request.decided_at) == (closings[0].actor, closings[0].at)
    votes = request.votes.filter(voided_at=None)
    by_people = request.status in {"approved", "rejected", "sent_back"}
    assert list(votes.values_list("by", flat=True)) == [request.decided_by] * by_people
    if task.status == states.QUEUED:
        held = claim(flow)
        assert held.task_id == task.pk
        holder.settle_unit(held, make_unit(held, flow))
        live = task.outputs.filter(superseded_in_round=None, step_index=held.step_index)
        assert live.count() == 1
    if Task.objects.get(pk=task.pk).status != states.CANCELLED:
        operators.cancel_task(task.pk, actor=OPERATOR)
    return request.status


def run_trials(
    flow: Workflow, together: Crew, acts: Callable[[Approval], list[Callable[[], Any]]]
) -> tuple[collections.Counter[str], list[list[Any]]]:
    """How often the question came to each end, and what each act of each trial returned."""
    seen: collections.Counter[str] = collections.Counter()
    results = []
    for _ in range(TRIALS):
        request = put(flow)
        results.append(together(*acts(request)))
        seen[judge(request, flow)] += 1
    assert sum(seen.values()) == TRIALS
    check_all()
    return seen, results


def test_of_yes_and_no_at_the_same_instant_one_counts(flow: Workflow, together: Crew) -> None:
    seen, results = run_trials(
        flow,
        together,
        lambda request: [
            partial(answer, request, "approve"),
            partial(answer, request, "reject", OTHER_PERSON),
        ],
    )
    assert set(seen) <= {"approved", "rejected"}
    assert len(seen) == 2 or not PROOF, "neither is always first"
    for trial in results:
        assert count_wins(trial) == 1
        (lost,) = (one for one in trial if isinstance(one, LedgerError))
        (won,) = (one for one in trial if one is not lost)
        assert isinstance(lost, ApprovalClosed)
        assert str(lost) == f"This request is already {won.status} by {won.decided_by}."


def test_the_same_answer_sent_twice_counts_once(flow: Workflow, together: Crew) -> None:
    _, results = run_trials(
        flow, together, lambda request: [partial(answer, request, "approve")] * 3
    )
    for trial in results:
        assert count_wins(trial) == 1
        lost = [one for one in trial if isinstance(one, LedgerError)]
        assert {str(one) for one in lost} == {f"This request is already approved by {APPROVER}."}


def test_a_yes_comes_before_a_cancel_or_is_refused(flow: Workflow, together: Crew) -> None:
    seen, results = run_trials(
        flow,
        together,
        lambda request: [
            partial(answer, request, "approve"),
            partial(operators.cancel_task, request.task_id, actor=OPERATOR),
        ],
    )
    assert set(seen) <= {"approved", "void"}
    assert seen["void"] == sum(isinstance(yes, ApprovalClosed) for yes, _ in results)
    assert {cancelled for _, cancelled in results} == {None}, "a cancel is never too late here"
    assert set(Task.objects.values_list("status", flat=True)) == {states.CANCELLED}
    assert Task.objects.filter(outputs__step_name="b").count() == 0


def test_a_yes_comes_before_a_restart_or_is_refused(flow: Workflow, together: Crew) -> None:
    seen, results = run_trials(
        flow,
        together,
        lambda request: [
            partial(answer, request, "approve"),
            partial(
                operators.restart_task, request.task_id, to_step="a", note="again", actor=OPERATOR
            ),
        ],
    )
    assert set(seen) <= {"approved", "void"}
    assert seen["void"] == sum(isinstance(yes, ApprovalClosed) for yes, _ in results)
    assert {restarted for _, restarted in results} == {None}
    # Whichever came first, the step that asks ran again and the one after it did not run.
    assert set(Task.objects.values_list("round", flat=True)) == {1}
    assert Task.objects.filter(outputs__step_name="b").count() == 0


def test_a_yes_is_in_time_or_too_late(flow: Workflow, together: Crew) -> None:
    dice = random.Random(46)

    def acts(request: Approval) -> list[Callable[[], Any]]:
        ends = clock.read() + dt.timedelta(milliseconds=dice.uniform(1, 9))
        Approval.objects.filter(pk=request.pk).update(expires_at=ends)
        return [partial(answer, request, "approve"), partial(expire, request)]

    seen, results = run_trials(flow, together, acts)
    assert set(seen) <= {"approved", "expired"}
    for yes, expired in results:
        assert isinstance(yes, ApprovalClosed) == expired
    for request in Approval.objects.filter(status="approved"):
        assert request.decided_at is not None
        assert request.decided_at < request.expires_at


def expire(request: Approval) -> bool:
    """A sweeper that looks without pause until the question is closed; whether by its time."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if overdue.expire_approval(request.pk):
            return True
        if not Approval.objects.filter(pk=request.pk, status="open").exists():
            return False
    raise AssertionError("neither")


def test_the_last_two_votes_at_the_same_instant_decide_once(flow: Workflow, together: Crew) -> None:
    for _ in range(TRIALS):
        request = put(flow, votes=2)
        votes = together(*[partial(answer, request, "approve", Actor("user", n)) for n in "567"])
        assert count_wins(votes) == 2
        request.refresh_from_db()
        task = Task.objects.get(pk=request.task_id)
        assert (request.status, task.status, task.step_name) == ("approved", "queued", "b")
        assert task.events.filter(kind="approval_voted").count() == 2
        assert task.events.filter(kind="approval_decided").count() == 1
        operators.cancel_task(task.pk, actor=OPERATOR)
    check_all()


def try_claim(flow: Workflow) -> Any:
    """The task of the workflow that is queued, unless somebody holds its row."""
    return sql.claim_task(OWNER, [("default", flow.name, flow.version)], LEASE)


def test_an_answer_never_reaches_the_question_that_came_after(
    flow: Workflow, together: Crew
) -> None:
    """An old tab, at the instant in which another's answer leads to a step that asks the same."""

    def move_on(first: Approval) -> Approval:
        with contextlib.suppress(ApprovalClosed):
            answer(first, "approve", OTHER_PERSON)
        # The other answer may hold the row for the instant that it takes to be refused.
        held = wait_for("it is claimed", lambda: try_claim(flow))
        return Approval.objects.get(pk=ask(held, flow).pk)

    for _ in range(TRIALS):
        first = put(flow)
        second, _ = together(partial(move_on, first), partial(answer, first, "approve"))
        assert (second.step, second.digest) == ("b", first.digest), "the same text"
        second.refresh_from_db()
        assert (second.status, second.votes.count()) == ("open", 0)
        assert first.votes.count() == 1
        operators.cancel_task(second.task_id, actor=OPERATOR)
    check_all()


def test_a_limit_is_extended_by_one_of_answer_and_operator(flow: Workflow, together: Crew) -> None:
    """Or the task is cancelled; its question is closed once, and it goes on once."""
    for number in range(TRIALS):
        task = submit(flow)
        request = run_out(claim(flow), flow)
        yes, extended, *_ = together(
            partial(decide, request, values={"units": 50}),
            partial(
                operators.extend_limits, task.pk, limits_given={"units": 70}, actor=OPERATOR
            ),
            *[partial(operators.cancel_task, task.pk, actor=OPERATOR)] * (number % 2),
        )  # fmt: skip
        task.refresh_from_db()
        request.refresh_from_db()
        closed = task.events.filter(kind__in=CLOSINGS, data__approval=str(request.pk))
        assert closed.count() == 1
        assert isinstance(yes, LedgerError) == (request.status == "void")
        assert task.events.filter(kind="promoted").count() <= 1
        if task.status != states.CANCELLED:
            assert (task.status, extended) == ("queued", None)
            assert task.limit_units == 70 or request.status == "approved"
            operators.cancel_task(task.pk, actor=OPERATOR)
    check_all()


def test_in_the_instant_in_which_others_are_asked_the_first_ones_are_in_time_or_refused(
    flow: Workflow, together: Crew
) -> None:
    dice = random.Random(7)
    for _ in range(TRIALS):
        people = {"assignees": [str(APPROVER)], "escalate": [(str(OTHER_PERSON), 600.0)]}
        request = put(flow, **people)
        ends = clock.read() + dt.timedelta(milliseconds=dice.uniform(1, 9))
        Approval.objects.filter(pk=request.pk).update(expires_at=ends)
        first, other, _ = together(
            partial(answer, request, "approve"),
            partial(answer, request, "reject", OTHER_PERSON),
            partial(overdue.expire_approval, request.pk),
        )
        request.refresh_from_db()
        decided = request.status != "open"
        assert count_wins([first, other]) == decided
        if decided:
            by = APPROVER if request.status == "approved" else OTHER_PERSON
            assert (request.decided_by, request.level) == (str(by), int(by is OTHER_PERSON))
        operators.cancel_task(request.task_id, actor=OPERATOR)
    check_all()
