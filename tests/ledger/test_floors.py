"""A claim begins at the rank that was first in its group when the list was read. What comes to rank
before that is hidden for as long as a new lane is: until the next list, and never from an idle
worker."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from uuid import UUID

import pytest

from ledger import clock, picking, sql
from ledger.models import Task
from ledger.runner import Engine, run_attempt
from ledger.transitions import holder, operators, sweeps
from ledger.workflows import Workflow, registered
from tests.factories import LEASE, OPERATOR, OTHER, OWNER, attempt, claim, make_workflow, submit

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]

type Comes = Callable[[], UUID]
"""Queues a task before all others of its group; its id."""


@pytest.fixture
def flow() -> Iterator[Workflow]:
    """One step, so that each unit ends its task and claims another."""
    made = make_workflow(steps=1)
    with registered(made):
        yield made


def be_submitted(flow: Workflow) -> Comes:
    return lambda: submit(flow, priority=100).pk


def be_reclaimed(flow: Workflow) -> Comes:
    held = submit_claimed(flow, 100)

    def come() -> UUID:
        clock.offset += LEASE + 60
        sweeps.reclaim_task(held.task_id, LEASE)
        return held.task_id

    return come


def be_promoted(flow: Workflow) -> Comes:
    task = submit(flow, priority=100, not_before=clock.read() + dt.timedelta(seconds=LEASE))

    def come() -> UUID:
        clock.offset += LEASE + 60
        sweeps.promote_due()
        return task.pk

    return come


def be_changed(flow: Workflow) -> Comes:
    task = submit(flow, priority=-100)

    def come() -> UUID:
        operators.change_task(task.pk, actor=OPERATOR, priority=100)
        return task.pk

    return come


def be_retried(flow: Workflow) -> Comes:
    held = submit_claimed(flow, 100)
    holder.fail_task(held, attempt())

    def come() -> UUID:
        operators.retry_task(held.task_id, actor=OPERATOR)
        return held.task_id

    return come


def be_released(flow: Workflow) -> Comes:
    """By a worker that is told to stop."""
    held = submit_claimed(flow, 100)

    def come() -> UUID:
        holder.release_task(held, why="drain")
        return held.task_id

    return come


def submit_claimed(flow: Workflow, priority: int) -> sql.Claimed:
    submit(flow, priority=priority)
    return claim(flow, OTHER)


WAYS = pytest.mark.parametrize(
    "way", [be_submitted, be_reclaimed, be_promoted, be_changed, be_retried, be_released]
)


@WAYS
def test_the_next_list_has_what_came_to_rank_first(
    way: Callable[[Workflow], Comes], flow: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(picking, "FRESH_SECONDS", -1.0)  # of a list that is never old
    engine, come = Engine(OWNER), way(flow)
    for _ in range(4):
        submit(flow)
    held = engine.claim()
    assert held is not None
    held = run_attempt(engine, held)
    assert held is not None, "with what its settle claimed, from a list of its own"
    first = come()
    held = run_attempt(engine, held)
    assert held is not None
    assert held.task_id == first


@WAYS
def test_who_has_nothing_left_to_do_finds_what_came_to_rank_first(
    way: Callable[[Workflow], Comes], flow: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long its list would serve: that is read anew before a worker rests."""
    monkeypatch.setattr(picking, "FRESH_SECONDS", 1e6)
    engine, come = Engine(OWNER), way(flow)
    submit(flow)
    head = submit(flow)
    held = engine.claim()
    assert held is not None
    assert claim(flow, OTHER).task_id == head.pk
    first = come()
    held = run_attempt(engine, held) or engine.claim()
    assert held is not None
    assert held.task_id == first


@WAYS
def test_an_idle_worker_takes_what_came_to_rank_first(
    way: Callable[[Workflow], Comes], flow: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first guess is the groups that it knows, without the ranks that were first then."""
    monkeypatch.setattr(picking, "FRESH_SECONDS", 1e6)
    engine = Engine(OWNER)
    submit(flow)
    held = engine.claim()
    while held is not None:
        held = run_attempt(engine, held) or engine.claim()
    assert engine.idle
    come = way(flow)
    submit(flow)
    first = come()
    held = engine.claim()
    assert held is not None
    assert held.task_id == first


def test_tasks_of_the_rank_that_was_first_are_all_found(flow: Workflow) -> None:
    for _ in range(3):
        submit(flow)
    Task.objects.update(rank=clock.read().year)
    groups = [group for group, _ in sql.list_heads()]
    found = [sql.claim_task(OWNER, groups, LEASE) for _ in range(3)]
    assert None not in found
    assert sql.claim_task(OWNER, groups, LEASE) is None


@pytest.mark.postgresql
def test_a_list_hides_what_came_to_rank_first(flow: Workflow) -> None:
    """This is what the others would miss; once in a list of its own, it is found."""
    submit(flow)
    submit(flow)
    groups = [group for group, _ in sql.list_heads()]
    urgent = submit(flow, priority=100).pk
    held = sql.claim_task(OWNER, groups, LEASE)
    assert held is not None
    assert held.task_id != urgent
    held = sql.claim_task(OWNER, [group for group, _ in sql.list_heads()], LEASE)
    assert held is not None
    assert held.task_id == urgent
