"""Everybody at once, on real connections: one winner, nothing lost, nobody waits for ever."""

from __future__ import annotations

import collections
import datetime as dt
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction

from ledger import clock, limits, sql, states, sweeper
from ledger.errors import ApprovalClosed, IdempotencyConflict, LeaseLost, LedgerError, WrongStatus
from ledger.events import Actor
from ledger.models import Approval, Event, Spend, StepOutput, Task
from ledger.runner import Engine
from ledger.sql import Claimed
from ledger.transitions import approvals, holder, operators, overdue, sweeps
from ledger.transitions.submit import submit_task
from ledger.workflows import Workflow
from tests.factories import (
    CLIENT,
    LEASE,
    OPERATOR,
    OTHER,
    OWNER,
    ask,
    claim,
    make_unit,
    submit,
)
from tests.ledger.replay import check_columns
from tests.ledger.stages import APPROVER
from tests.ledger.threads import PATIENCE, Crew, count_wins

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]
LANES = ("one", "two", "three")


def list_groups(flow: Workflow, first: int = 0) -> list[sql.Group]:
    """All lanes, one of them first."""
    lanes = LANES[first:] + LANES[:first]
    return [(lane, flow.name, flow.version) for lane in lanes]


def check_all() -> None:
    """Columns fit, numbers have no gap, no unit has two live outputs."""
    for task in Task.objects.all():
        check_columns(task)
        outputs = list(task.outputs.all())
        numbers = sorted([e.seq for e in task.events.all()] + [o.seq for o in outputs])
        assert numbers == list(range(1, task.event_seq + 1))
        live = [(o.step_index, o.turn) for o in outputs if o.superseded_in_round is None]
        assert len(live) == len(set(live))


# --- Claims ---------------------------------------------------------------------------------------


@pytest.mark.case(4)
def test_each_task_is_claimed_by_one(flow: Workflow, together: Crew) -> None:
    tasks = {submit(flow, lane=LANES[n % 3]).pk for n in range(7)}

    def claim_all(number: int) -> list[Any]:
        claimed = []
        while held := sql.claim_task(f"host:{number}:boot", list_groups(flow, number % 3), LEASE):
            claimed.append((held.task_id, held.fence))
        return claimed

    found = together(*[lambda n=n: claim_all(n) for n in range(8)])  # type: ignore[misc]
    assert sorted(one for part in found for one in part) == sorted((key, 1) for key in tasks)
    check_all()


class Fleet:
    """Workers that settle and claim as the runner does, until every task has ended."""

    def __init__(self, flow: Workflow, tasks: int) -> None:
        self.flow = flow
        self.keys = [submit(flow, lane=LANES[n % 3]).pk for n in range(tasks)]
        self.until = time.monotonic() + PATIENCE
        self.begun, self.done = threading.Event(), threading.Event()

    def work(self, number: int) -> int:
        """One worker's life; returns how many units it had accepted."""
        owner, accepted, turn = f"host:{number}:boot", 0, number
        held: Claimed | None = None
        self.begun.wait(PATIENCE)
        while not self.done.is_set():
            assert time.monotonic() < self.until, "tasks are left that nobody ends"
            turn += 1
            if held is None:
                held = sql.claim_task(owner, list_groups(self.flow, turn % 3), LEASE)
            if held is None:
                self.done.wait(0.005)
                continue
            assert held.owner == owner
            held, stored = self.settle(held, turn)
            accepted += stored
            if held is None:
                assert not Task.objects.filter(status=states.RUNNING, lease_owner=owner).exists()
        return accepted

    def settle(self, held: Claimed, turn: int) -> tuple[Claimed | None, bool]:
        """The next claim, and whether the unit of this one was accepted."""
        unit = make_unit(held, self.flow)
        groups = None if turn % 3 == 0 and unit.result is None else list_groups(self.flow, turn % 3)
        settled = sql.checkpoint_unit(held, unit, lease_seconds=LEASE, groups=groups)
        if settled is None:
            try:
                holder.settle_unit(held, unit)
            except LeaseLost:
                return None, False
            return None, True
        if settled.kept_fence is not None:
            held.fence, held.started_at = settled.kept_fence, settled.kept_at or held.started_at
            held.step_index, held.step_name = unit.next_index, unit.next_name
            return held, True
        return settled.claimed, True

    def disturb(self, rounds: int) -> int:
        """An operator who pauses, cancels, resumes and takes away, and then lets all end."""
        dice = random.Random(rounds)
        acts = [operators.pause_task, operators.resume_task, operators.retry_task]
        done = 0
        for _ in range(rounds):
            act = dice.choice([*acts, *acts, operators.cancel_task])
            try:
                act(dice.choice(self.keys), actor=OPERATOR)
                done += 1
                self.begun.set()
            except WrongStatus:
                pass
        while Task.objects.filter(finished_at__isnull=True).exists():
            assert time.monotonic() < self.until
            for key in Task.objects.filter(status=states.PAUSED).values_list("pk", flat=True):
                operators.resume_task(key, actor=OPERATOR)
            self.done.wait(0.01)
        self.done.set()
        return done


@pytest.mark.case(4)
@pytest.mark.case(53)
@pytest.mark.parametrize(("workers", "tasks", "rounds"), [(2, 10, 60), (8, 200, 150)])
def test_settle_and_claim_loses_nothing(
    workers: int, tasks: int, rounds: int, flow: Workflow, together: Crew
) -> None:
    fleet = Fleet(flow, tasks)

    def work(number: int) -> int:
        try:
            return fleet.work(number)
        finally:
            fleet.done.set()  # also when it failed: nobody waits for it

    acts: list[Callable[[], int]] = [lambda n=n: work(n) for n in range(workers)]  # type: ignore[misc]
    *accepted, disturbed = together(*acts, lambda: fleet.disturb(rounds))
    assert [one for one in [*accepted, disturbed] if isinstance(one, LedgerError)] == []
    assert sum(accepted) == StepOutput.objects.count()
    assert disturbed > 0
    statuses = collections.Counter(Task.objects.values_list("status", flat=True))
    assert set(statuses) <= {states.COMPLETED, states.CANCELLED}
    completed = Task.objects.filter(status=states.COMPLETED)
    assert StepOutput.objects.filter(task__in=completed).count() == 3 * len(completed)
    check_all()


# --- Leases ---------------------------------------------------------------------------------------


@pytest.mark.case(1)
def test_a_late_settle_and_a_reclaim_have_one_winner(flow: Workflow, together: Crew) -> None:
    won: collections.Counter[str] = collections.Counter()
    for _ in range(20):
        task = submit(flow)
        held = claim(flow)
        Task.objects.filter(pk=task.pk).update(lease_until=clock.now(-1))
        unit = make_unit(held, flow)
        settled, reclaimed, late = together(
            lambda: sql.checkpoint_unit(held, unit, lease_seconds=LEASE, groups=None),  # noqa: B023
            lambda: sweeps.reclaim_task(task.pk, LEASE),  # noqa: B023
            lambda: sql.beat_leases(OWNER, [held.lease], LEASE),  # noqa: B023
        )
        assert not (settled and reclaimed)
        assert settled or reclaimed or late
        if reclaimed:
            with pytest.raises(LeaseLost):
                holder.settle_unit(held, unit)
        won["settled" if settled else "reclaimed" if reclaimed else "beaten"] += 1
        assert StepOutput.objects.filter(task=task).count() == (settled is not None)
        operators.cancel_task(task.pk, actor=OPERATOR)
    assert sum(won.values()) == 20
    check_all()


def test_a_holder_and_an_operator_end_a_unit_once(flow: Workflow, together: Crew) -> None:
    for _ in range(10):
        task = submit(flow)
        held = claim(flow)
        unit = make_unit(held, flow)
        settled, taken, again = together(
            lambda: holder.settle_unit(held, unit),  # noqa: B023
            lambda: operators.retry_task(task.pk, actor=OPERATOR),  # noqa: B023
            lambda: holder.release_task(held, why="drain"),  # noqa: B023
        )
        assert count_wins([settled, taken, again]) == 1
        task.refresh_from_db()
        assert (task.status, task.fence) == (states.QUEUED, 1 + (taken is None))
        operators.cancel_task(task.pk, actor=OPERATOR)
    check_all()


@pytest.mark.postgresql
def test_a_lease_can_not_go_while_its_holder_writes_beside_it(
    flow: Workflow, together: Crew
) -> None:
    """An artifact's row is in before the task may be anybody else's, or not at all."""
    submit(flow)
    held = claim(flow)
    Task.objects.update(lease_until=clock.now(-1))
    with sql.hold_task(held.lease, "artifact"):
        assert together(lambda: sweeps.reclaim_task(held.task_id, LEASE)) == [None]
    assert sweeps.reclaim_task(held.task_id, LEASE) == states.QUEUED
    with pytest.raises(LeaseLost), sql.hold_task(held.lease, "artifact"):
        raise AssertionError("a lost lease was held")


# --- Answers --------------------------------------------------------------------------------------


def test_a_question_is_closed_once(flow: Workflow, together: Crew) -> None:
    """Yes, no, cancel and the end of its time, all in the same instant."""
    closings = ["approval_decided", "approval_voided", "approval_expired"]
    seen: collections.Counter[str] = collections.Counter()
    for number in range(60):
        submit(flow)
        request = ask(claim(flow), flow, expires=0.02 if number % 2 else 60)
        no = Actor("user", "4")
        given = {"digest": request.digest, "undo_seconds": 8.0 if number % 3 == 0 else 0.0}
        decide = approvals.decide_approval
        together(
            lambda: decide(request.pk, decision="approve", actor=APPROVER, **given),  # noqa: B023
            lambda: decide(request.pk, decision="reject", actor=no, **given),  # noqa: B023
            lambda: operators.cancel_task(request.task_id, actor=OPERATOR),  # noqa: B023
            lambda: overdue.expire_approval(request.pk),  # noqa: B023
        )
        task = Task.objects.get(pk=request.task_id)
        kinds = list(task.events.filter(kind__in=closings).values_list("kind", flat=True))
        request.refresh_from_db()
        assert kinds[0] in closings
        # A decision that has not acted yet may still be voided; nothing else follows on anything.
        assert kinds[1:] in ([], ["approval_voided"])
        assert kinds[1:] == [] or (kinds[0], request.status) == ("approval_decided", "void")
        assert task.status in {states.CANCELLED, states.DEAD, states.FAILED}
        assert Approval.objects.filter(task=task, status="open").count() == 0
        seen[kinds[0]] += 1
        if task.status != states.CANCELLED:
            operators.cancel_task(task.pk, actor=OPERATOR)
    assert sum(seen.values()) == 60
    check_all()


def test_the_loser_of_two_answers_is_told(flow: Workflow, together: Crew) -> None:
    for _ in range(10):
        submit(flow)
        request = ask(claim(flow), flow)
        results = together(*[
            lambda n=n: approvals.decide_approval(  # type: ignore[misc]
                request.pk, decision="approve", actor=Actor("user", str(n)), digest=request.digest  # noqa: B023
            )
            for n in range(2, 5)
        ])  # fmt: skip
        assert count_wins(results) == 1
        losers = [one for one in results if isinstance(one, LedgerError)]
        assert all(isinstance(one, ApprovalClosed) and "by user:" in str(one) for one in losers)
        assert request.votes.count() == 1
        operators.cancel_task(request.task_id, actor=OPERATOR)


def test_an_undo_and_its_time_have_one_winner(flow: Workflow, together: Crew) -> None:
    for _ in range(10):
        submit(flow)
        request = ask(claim(flow), flow)
        approvals.decide_approval(
            request.pk, decision="approve", actor=APPROVER, digest=request.digest, undo_seconds=0.03
        )
        undone, applied = together(
            lambda: approvals.undo_decision(request.pk, actor=APPROVER),  # noqa: B023
            lambda: wait_until_applied(request),  # noqa: B023
        )
        assert (undone is None) != applied
        operators.cancel_task(request.task_id, actor=OPERATOR)
    check_all()


def wait_until_applied(request: Approval) -> bool:
    """Sweep until the decision acts; False when it was taken back."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if sweeps.apply_decisions():
            return True
        if Task.objects.get(pk=request.task_id).status_reason == states.APPROVAL:
            return False
    raise AssertionError("neither")


# --- Clients and sweeps ---------------------------------------------------------------------------


def test_one_key_makes_one_task(flow: Workflow, together: Crew) -> None:
    for number in range(8):
        key = f"k{number}"
        made = together(*[
            lambda: submit_task(workflow=flow, input={}, actor=CLIENT, key=key)  # noqa: B023
        ] * 4)  # fmt: skip
        assert [created for _, created in made].count(True) == 1
        assert len({task.pk for task, _ in made}) == 1
        bodies = together(*[
            lambda n=n: submit_task(  # type: ignore[misc]
                workflow=flow, input={"n": n}, actor=CLIENT, key=f"x{key}")  # noqa: B023
            for n in range(3)
        ])  # fmt: skip
        assert count_wins(bodies) == 1
        assert sum(isinstance(one, IdempotencyConflict) for one in bodies) == 2
    assert Task.objects.count() == Event.objects.count() == 16


def test_one_key_inside_of_transactions_makes_one_task(flow: Workflow, together: Crew) -> None:
    """The loser's transaction goes on, with the winner's task."""

    def submit_with_more() -> tuple[Any, Any]:
        with transaction.atomic():
            task, _ = submit_task(workflow=flow, input={}, actor=CLIENT, key="k")
            more, _ = submit_task(workflow=flow, input={}, actor=CLIENT)
        return task.pk, more.pk

    made = together(*[submit_with_more] * 4)
    assert len({one for one, _ in made}) == 1
    assert len({more for _, more in made}) == 4
    assert Task.objects.count() == 5


def test_several_sweepers_promote_each_task_once(flow: Workflow, together: Crew) -> None:
    later = clock.read() + dt.timedelta(hours=1)
    for _ in range(40):
        submit(flow, not_before=later)
    clock.offset += 3601

    def sweep_all() -> int:
        moved = 0
        while Task.objects.filter(status=states.SCHEDULED).exists():
            moved += sweeps.promote_due(7)
        return moved

    assert sum(together(*[sweep_all] * 3)) == 40
    promoted = Event.objects.filter(kind="promoted").values_list("task", flat=True)
    assert len(promoted) == len(set(promoted)) == 40
    check_all()


def test_several_sweepers_take_a_task_back_once(flow: Workflow, together: Crew) -> None:
    for _ in range(10):
        submit(flow)
        claim(flow)
    Task.objects.update(lease_until=clock.now(-1))
    found = together(*[lambda: sweeper.sweep().reclaimed] * 3)
    assert sum(found) + sweeper.sweep().reclaimed == 10
    assert set(Task.objects.values_list("reclaims", "fence")) == {(1, 2)}
    check_all()


@pytest.mark.case(58)
def test_an_amount_is_recorded_once_and_sums_add_up(flow: Workflow, together: Crew) -> None:
    task = submit(flow)
    held = claim(flow)
    operators.retry_task(task.pk, actor=OPERATOR)
    again = claim(flow, OTHER)
    for number in range(8):
        results = together(
            lambda: limits.record_spend(held, key=f"a{number}", tokens_in=1, cost="0.01"),  # noqa: B023
            lambda: limits.record_spend(again, key=f"a{number}", tokens_in=1, cost="0.01"),  # noqa: B023
            lambda: limits.record_spend(again, key=f"b{number}", tokens_in=1, cost="0.01"),  # noqa: B023
        )
        assert (sorted(results[:2]), results[2]) == ([False, True], True)
    task.refresh_from_db()
    assert (task.used_tokens_in, task.used_cost) == (16, 160_000_000)
    assert Spend.objects.count() == 16


# --- A row that somebody holds --------------------------------------------------------------------


@pytest.mark.postgresql
def test_a_sweep_waits_for_nobody(flow: Workflow, together: Crew) -> None:
    """It runs on the thread that beats: to wait here would cost the worker its lease."""
    submit(flow)
    one = ask(claim(flow), flow, expires=5)
    submit(flow)
    two = ask(claim(flow), flow)
    approvals.decide_approval(
        two.pk, decision="approve", actor=APPROVER, digest=two.digest, undo_seconds=5
    )
    submit(flow, limits_given={"wall": 5})
    submit(flow, not_before=clock.read() + dt.timedelta(seconds=5))
    clock.offset += 6
    with transaction.atomic():
        list(Task.objects.select_for_update())
        (swept,) = together(sweeper.sweep)
    assert swept == sweeper.Swept()
    assert sweeper.sweep() == sweeper.Swept(promoted=1, applied=1, expired=1, enforced=1)
    one.refresh_from_db()
    assert one.status == "expired"


@pytest.mark.postgresql
def test_a_heartbeat_that_waits_for_its_row_in_pieces_is_always_in_line(
    flow: Workflow, together: Crew
) -> None:
    """Between two waits a sweeper would be first when the row is let go, and take the task."""
    submit(flow)
    engine = Engine(OWNER)
    held = engine.claim()
    assert held is not None
    engine.heart.hold(held, 60).next_beat = 0.0

    def beat() -> float:
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '50ms'")
        return engine.heart.tick()

    with transaction.atomic():
        list(Task.objects.select_for_update())
        assert together(beat) == [0.0]
        assert Task.objects.get().beat == 0
    engine.heart.tick()
    assert Task.objects.get().beat == 1


@pytest.mark.postgresql
def test_a_lane_whose_heads_are_held_delays_no_other(flow: Workflow, together: Crew) -> None:
    """As by a long transaction of an embedding project that cancels hundreds of its tasks."""
    for _ in range(40):
        submit(flow, lane="one")
    other = submit(flow, lane="two")
    with transaction.atomic():
        list(Task.objects.filter(lane="one").select_for_update())
        assert connection.in_atomic_block
        (held,) = together(lambda: sql.claim_task(OTHER, list_groups(flow), LEASE))
    assert held is not None
    assert held.task_id == other.pk
