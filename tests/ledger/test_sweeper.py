"""What time does, whoever sweeps: when a lost worker's task is taken back, and when not yet."""

from __future__ import annotations

import datetime as dt
import threading
import time
import types
from collections.abc import Callable
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from ledger import clock, conf, sql, states, sweeper
from ledger.events import Actor
from ledger.models import Event, Task, Worker
from ledger.runner import Engine
from ledger.settling import Registration
from ledger.sweeper import Sweeper, Swept, look_ahead, sweep
from ledger.transitions import holder, operators, sweeps
from ledger.workflows import Workflow
from tests.factories import (
    LEASE,
    OPERATOR,
    OTHER,
    ask,
    attempt,
    claim,
    expire_lease,
    make_unit,
    make_workflow,
    submit,
)
from tests.ledger.stages import APPROVER, decide
from tests.ledger.threads import PATIENCE


class Clocks:
    """This process's monotonic clock, and with it (or not) the database's."""

    def __init__(self) -> None:
        self.now = 1000.0

    def advance(self, seconds: float, *, database: float | None = None) -> None:
        """Let time pass; the database's clock may say something else."""
        self.now += seconds
        clock.offset += seconds if database is None else database


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    """The sweeper's monotonic clock in the test's hand: it stands still but for `advance`."""
    found = Clocks()
    stub = types.SimpleNamespace(monotonic=lambda: found.now)
    monkeypatch.setattr(sweeper, "time", stub)
    return found


@pytest.fixture
def steady(flow: Workflow, clocks: Clocks) -> Sweeper:
    """A sweeper that has had contact for a long time, and a task whose worker is lost."""
    submit(flow)
    claim(flow)
    one = Sweeper(conf.load())
    run_for(one, clocks, 40)
    expire_lease_for(clocks)
    return one


def expire_lease_for(clocks: Clocks) -> None:
    """The lease of now is over, and it was the task's fault: no clock jumped."""
    Task.objects.filter(status=states.RUNNING).update(lease_until=clock.now(-1))


def run_for(one: Sweeper, clocks: Clocks, seconds: float) -> None:
    """Call its tick as a guardian does, for so long."""
    until = clocks.now + seconds
    while clocks.now < until:
        clocks.advance(one.tick())


def read_status() -> str:
    return Task.objects.get().status


# --- Contact --------------------------------------------------------------------------------------


def test_a_lost_workers_task_is_taken_back(steady: Sweeper, clocks: Clocks) -> None:
    run_for(steady, clocks, 1.1)
    assert read_status() == states.QUEUED


def test_a_sweeper_that_starts_waits_for_two_heartbeats(flow: Workflow, clocks: Clocks) -> None:
    submit(flow)
    claim(flow)
    expire_lease_for(clocks)
    one = Sweeper(conf.load())
    run_for(one, clocks, 29)
    assert read_status() == states.RUNNING
    run_for(one, clocks, 3)
    assert read_status() == states.QUEUED


def test_after_an_outage_the_holders_beat_first(steady: Sweeper, clocks: Clocks) -> None:
    clocks.advance(1)
    with pytest.raises(DatabaseError):
        tick_without_database(steady)
    run_for(steady, clocks, 29)
    assert read_status() == states.RUNNING
    run_for(steady, clocks, 3)
    assert read_status() == states.QUEUED


def tick_without_database(one: Sweeper) -> None:
    """A tick whose statement fails; all is as before after it."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE longwatch_approval RENAME TO longwatch_away")
        one.tick()


@pytest.mark.case(13)
@pytest.mark.parametrize(
    ("here", "there"),
    [(100, 100), (100, 0.5), (0.5, 3600), (0.5, -5)],
    ids=["machine slept", "process stopped", "database clock forward", "database clock back"],
)
def test_after_a_sleep_or_a_jump_the_holders_beat_first(
    here: float, there: float, steady: Sweeper, clocks: Clocks
) -> None:
    """All leases are over then, and nobody is lost."""
    clocks.advance(here, database=there)
    expire_lease_for(clocks)
    run_for(steady, clocks, 29)
    assert read_status() == states.RUNNING
    run_for(steady, clocks, 3)
    assert read_status() == states.QUEUED


def test_a_holder_that_beats_meanwhile_keeps_its_task(steady: Sweeper, clocks: Clocks) -> None:
    task = Task.objects.get()
    clocks.advance(0.5, database=3600)
    steady.tick()
    assert sql.beat_leases(task.lease_owner, [sql.Lease(task.pk, 1, task.lease_owner)], LEASE)
    run_for(steady, clocks, 40)
    assert read_status() == states.RUNNING


# --- Reclaims -------------------------------------------------------------------------------------


def lose_worker() -> None:
    """Its lease runs out and a sweep takes the task back."""
    expire_lease()
    assert sweep().reclaimed == 1


@pytest.mark.case(13)
def test_a_lease_far_in_the_future_is_left_by_a_clock_that_stepped_back(flow: Workflow) -> None:
    task = submit(flow)
    claim(flow)
    clock.offset -= 0.9 * LEASE
    assert sweep().reclaimed == 0
    clock.offset -= 0.2 * LEASE
    assert sweep().reclaimed == 1
    assert sweeps.find_expired(LEASE) == []
    task.refresh_from_db()
    assert (task.status, task.reclaims) == (states.QUEUED, 1)


def test_the_leases_of_workers_with_a_longer_setting_are_no_clocks_fault(flow: Workflow) -> None:
    """A rolling restart that raises the lease: the old processes still sweep."""
    submit(flow)
    held = claim(flow)
    registration = Registration(Engine(held.owner, conf.Tunables(lease_seconds=5 * LEASE)))
    registration.tick()
    assert sql.beat_leases(held.owner, [held.lease], 5 * LEASE)
    assert sweep().reclaimed == 0
    Worker.objects.update(seen_at=clock.now(-3600))
    assert sweep().reclaimed == 1


def test_the_fourth_loss_at_a_step_is_the_last(flow: Workflow) -> None:
    task = submit(flow)
    for _ in range(4):
        claim(flow)
        lose_worker()
    task.refresh_from_db()
    assert (task.status, task.status_reason) == (states.DEAD, states.RECLAIMS_EXHAUSTED)
    assert (task.reclaims, task.attempts, task.repair_count) == (4, 0, 0)
    assert task.error is not None
    operators.retry_task(task.pk, actor=OPERATOR)
    assert claim(flow).reclaims == 0


def test_losses_are_counted_per_step(flow: Workflow) -> None:
    submit(flow)
    for _ in range(3):
        claim(flow)
        lose_worker()
    held = claim(flow)
    holder.settle_unit(held, make_unit(held, flow))
    for _ in range(3):
        claim(flow)
        lose_worker()
    assert claim(flow).reclaims == 3


def test_a_failure_between_does_not_wash_losses_away(flow: Workflow) -> None:
    submit(flow)
    claim(flow)
    lose_worker()
    holder.record_failure(claim(flow), attempt(), retries=3, backoff=1)
    clock.offset += 2
    sweep()
    held = claim(flow)
    assert (held.reclaims, held.attempts) == (1, 1)


def test_what_was_taken_back_stands_at_the_head(flow: Workflow) -> None:
    first = submit(flow)
    held = claim(flow)
    submit(flow)
    lose_worker()
    assert claim(flow, OTHER).task_id == first.pk == held.task_id


@pytest.mark.case(53)
@pytest.mark.parametrize(
    ("ask_for", "status"),
    [(operators.cancel_task, states.CANCELLED), (operators.pause_task, states.PAUSED)],
)
def test_a_wish_is_heard_when_its_worker_is_lost(
    ask_for: Callable[..., None], status: str, flow: Workflow
) -> None:
    task = submit(flow)
    claim(flow)
    ask_for(task.pk, actor=OPERATOR)
    lose_worker()
    assert read_status() == status
    assert str(OPERATOR) == task.events.order_by("seq").last().actor  # type: ignore[union-attr]


# --- Promotion ------------------------------------------------------------------------------------


@pytest.mark.case(61)
def test_a_storm_of_retries_comes_back_in_the_order_in_which_it_was_due(flow: Workflow) -> None:
    waits = [9.0, 3.0, 6.0]
    tasks = []
    for wait in waits:
        tasks.append(submit(flow).pk)
        holder.record_failure(claim(flow), attempt(), retries=3, backoff=wait)
    clock.offset += 20
    assert sweep() == Swept(promoted=3)
    assert [claim(flow).task_id for _ in waits] == [tasks[1], tasks[2], tasks[0]]


def test_a_pause_takes_hold_where_the_task_would_be_queued(flow: Workflow) -> None:
    task = submit(flow)
    holder.record_failure(claim(flow), attempt(), retries=3, backoff=5)
    operators.pause_task(task.pk, actor=OPERATOR)
    assert read_status() == states.SCHEDULED
    clock.offset += 6
    assert sweep().promoted == 1
    assert read_status() == states.PAUSED
    operators.resume_task(task.pk, actor=OPERATOR)
    assert claim(flow).attempts == 1


# --- Many, and a wrong one ------------------------------------------------------------------------


def _lose(flow: Workflow) -> Task:
    submit(flow)
    return Task.objects.get(pk=claim(flow).task_id)


def _back_off(flow: Workflow) -> Task:
    task = _lose(flow)
    operators.retry_task(task.pk, actor=OPERATOR)
    holder.record_failure(claim(flow), attempt(), retries=3, backoff=5)
    return Task.objects.get(pk=task.pk)


def _ask(flow: Workflow, **options: Any) -> Any:
    submit(flow)
    return ask(claim(flow), flow, expires=30, **options)


def _decide(flow: Workflow) -> Task:
    return decide(_ask(flow), undo=8).task


def _run_out(flow: Workflow) -> Task:
    return submit(flow, limits_given={"wall": 30})


DUE: list[tuple[str, Callable[[Workflow], Task]]] = [
    ("reclaimed", _lose),
    ("promoted", _back_off),
    ("applied", _decide),
    ("expired", lambda flow: _ask(flow).task),
    ("enforced", _run_out),
]


@pytest.mark.parametrize(("kind", "make"), DUE)
def test_one_wrong_task_stops_no_other(
    kind: str, make: Callable[[Workflow], Task], flow: Workflow
) -> None:
    wrong = make(flow)
    make(flow)
    # Its next event has a number that is taken.
    wrong.refresh_from_db()
    Event.objects.create(
        task=wrong, seq=wrong.event_seq + 1, at=wrong.created_at, kind="edited",
        actor=str(Actor("user", "9")), fence=wrong.fence,
    )  # fmt: skip
    expire_lease()
    assert getattr(sweep(), kind) == 1
    before = wrong.status
    wrong.refresh_from_db()
    assert wrong.status == before
    assert getattr(sweep(), kind) == 0


@pytest.mark.parametrize(("kind", "make"), DUE)
def test_a_sweep_is_bounded(kind: str, make: Callable[[Workflow], Task], flow: Workflow) -> None:
    for _ in range(3):
        make(flow)
    expire_lease()
    assert [getattr(sweep(limit=2), kind) for _ in range(3)] == [2, 1, 0]


@pytest.mark.parametrize("priority", [-100, 100])
def test_a_task_of_any_priority_is_promoted(priority: int, flow: Workflow) -> None:
    task = submit(flow, priority=priority, not_before=clock.read() + dt.timedelta(seconds=60))
    due = Task.objects.get(pk=task.pk).rank
    clock.offset += 70
    assert sweeps.promote_due() == 1
    promoted = Task.objects.get(pk=task.pk)
    assert promoted.status == states.QUEUED
    assert promoted.rank == pytest.approx(due, abs=1000), "the time it was due at, as at first"


def test_a_full_batch_leaves_no_pause(flow: Workflow, clocks: Clocks) -> None:
    soon = clock.read() + dt.timedelta(seconds=60)  # longer than it takes to submit them
    for _ in range(101):
        submit(flow, not_before=soon)
    clock.offset += 70
    one = Sweeper(conf.load())
    assert one.tick() == sweeper.MIN_SECONDS
    clocks.advance(sweeper.MIN_SECONDS)
    one.tick()
    assert not Task.objects.filter(status=states.SCHEDULED).exists()


# --- When to look again ---------------------------------------------------------------------------


def test_the_next_look_is_at_the_next_due_time_or_in_a_second(flow: Workflow) -> None:
    assert look_ahead().seconds_left() == sweeper.MAX_SECONDS
    submit(flow)
    holder.record_failure(claim(flow), attempt(), retries=3, backoff=0.4)
    assert 0 < look_ahead().seconds_left() <= 0.4
    clock.offset += 1
    assert look_ahead().seconds_left() == sweeper.MAX_SECONDS  # over: no reason to hurry


def test_nothing_due_costs_no_statement_beside_the_look(
    flow: Workflow, django_assert_num_queries: Any
) -> None:
    submit(flow)
    claim(flow)
    due = look_ahead()
    with django_assert_num_queries(0):
        assert sweep(due=due) == Swept()


def test_an_answer_in_its_undo_window_is_seen_coming(flow: Workflow) -> None:
    request = _ask(flow)
    decide(request, undo=0.5)
    assert APPROVER.id == "2"
    assert 0 < look_ahead().seconds_left() <= 0.5


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_a_holder_whose_row_was_locked_beats_before_a_sweeper_takes_its_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flow = make_workflow()
    task = submit(flow)
    held = claim(flow)
    clock.offset += LEASE + 1
    looked, done = threading.Event(), threading.Event()

    def hold_the_row() -> None:
        with transaction.atomic():
            Task.objects.select_for_update().get(pk=task.pk)
            looked.set()
            assert done.wait(PATIENCE)
        connection.close()

    def sweep_meanwhile() -> Any:
        assert looked.wait(PATIENCE)
        try:
            return sweeps.reclaim_task(task.pk, LEASE)
        finally:
            done.set()

    holding = threading.Thread(target=hold_the_row)
    holding.start()
    assert sweep_meanwhile() is None
    holding.join(PATIENCE)
    assert sweeps.reclaim_task(task.pk, LEASE) is None, "it could not beat, and beats first"
    assert sql.beat_leases(held.owner, [held.lease], LEASE)
    clock.offset += LEASE + 1
    monkeypatch.setitem(sweeps._seen.locked, (task.pk, held.fence), time.monotonic() - 1000)
    assert sweeps.reclaim_task(task.pk, LEASE) == states.QUEUED
