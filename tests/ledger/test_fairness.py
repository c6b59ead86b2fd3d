"""Lanes and tasks share the workers, whatever is queued; a worker keeps a task that ranks first."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import override_settings

from ledger import picking, sql, states
from ledger.models import StepOutput, Task
from ledger.runner import Engine, run_attempt
from ledger.transitions import holder
from ledger.workflows import Again, Workflow, registered
from tests.factories import LEASE, OWNER, attempt, claim, make_unit, submit


@pytest.fixture
def flow(db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workflow]:
    """A step of many turns; workers look around after each, at lists that are never old."""
    monkeypatch.setattr(picking, "FRESH_SECONDS", -1.0)
    looping = Workflow("looping")
    looping.step(lambda ctx: Again() if ctx.turn < 5 else {}, name="turn")
    with registered(looping), override_settings(LONGWATCH_SLICE_SECONDS=0):
        yield looping


def run_units(most: int, between: Callable[[int], Any] = lambda number: None) -> list[str]:
    """The lanes of the units that one worker runs, in order; `between` is called before each."""
    engine, lanes = Engine(OWNER), []
    held = engine.claim()
    for number in itertools.takewhile(lambda n: n < most, itertools.count()):
        if held is None:
            break
        between(number)
        lanes.append(held.lane)
        held = run_attempt(engine, held) or engine.claim()
    return lanes


def test_lanes_take_turns_however_long_they_are(flow: Workflow) -> None:
    for _ in range(10):
        submit(flow, lane="large")
    submit(flow, lane="small")
    lanes = run_units(12)
    assert lanes.count("small") == 6
    assert "large, large, large" not in ", ".join(lanes[:11])


def test_a_new_lane_waits_for_one_more_unit_at_most(flow: Workflow) -> None:
    for _ in range(10):
        submit(flow, lane="large")
    for arrival in range(3, 9):
        Task.objects.filter(lane="small").update(lane="done")
        lanes = run_units(
            arrival + 4, lambda n: submit(flow, lane="small") if n == arrival else None  # noqa: B023
        )  # fmt: skip
        assert "small" in lanes[arrival + 1 : arrival + 3], (arrival, lanes)


def test_a_new_lane_waits_for_no_second_unit_of_those_that_are_felt(
    flow: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the age that a list of groups has in the product. A unit takes 20 ms."""
    monkeypatch.setattr(picking, "FRESH_SECONDS", 0.05)
    felt = Workflow("felt")
    felt.step(lambda ctx: time.sleep(0.02), name="turn")
    engine, ran = Engine(OWNER), []
    with registered(felt):
        for _ in range(24):
            submit(felt, lane="large")
        for _ in range(30):  # as those of any worker, whose first cost more
            engine.picker.choose(fresh=True)
        held = engine.claim()
        while held is not None:
            if len(ran) in (12, 15, 18):
                submit(felt, lane=f"small-{len(ran)}")
            ran.append(held.lane)
            held = run_attempt(engine, held)
    for arrival in (12, 15, 18):
        assert ran[arrival + 1] == f"small-{arrival}", ran


def test_lanes_take_turns_when_every_unit_fails(flow: Workflow) -> None:
    """Then each task is claimed by itself, in no checkpoint's company."""

    def fail(ctx: object) -> None:
        raise ValueError("always")

    failing = Workflow("failing")
    failing.step(fail, name="turn")
    with registered(failing):
        submit(failing, lane="large")
        run_units(1)
        for _ in range(12):
            submit(failing, lane="large")
        lanes = run_units(8, lambda n: submit(failing, lane="small") if n == 2 else None)
    assert "small" in lanes[3:5]


def test_a_woken_worker_sees_every_lane(flow: Workflow) -> None:
    """Its first guess is the lane that it knows; the next claim looks around again."""
    engine = Engine(OWNER)
    submit(flow, lane="known")
    held = engine.claim()
    while held is not None:
        held = run_attempt(engine, held)
    assert engine.claim() is None
    for lane in ("known", "new"):
        for _ in range(3):
            submit(flow, lane=lane)
    claimed = [engine.claim() for _ in range(3)]
    assert "new" in [held.lane for held in claimed if held is not None]


def test_many_lanes_are_all_served_in_one_round(flow: Workflow) -> None:
    for lane in "abcde":
        for _ in range(3):
            submit(flow, lane=lane)
    lanes = run_units(40)
    for start in range(0, 40, 10):
        assert set(lanes[start : start + 10]) == set("abcde")


def test_tasks_of_a_lane_take_turns_too(flow: Workflow) -> None:
    """One long task holds no worker: after each unit it stands behind those that waited."""
    first, second = submit(flow).pk, submit(flow).pk
    run_units(6)
    done = list(StepOutput.objects.order_by("id").values_list("task", flat=True))
    assert done == [first, second] * 3


def test_a_task_that_ranks_before_what_is_queued_is_kept(flow: Workflow) -> None:
    urgent = submit(flow, priority=50)
    submit(flow)
    held = claim(flow)
    assert held.task_id == urgent.pk
    unit = make_unit(held, flow, result=None, next_turn=1)
    groups = [("default", flow.name, flow.version)]
    settled = sql.checkpoint_unit(held, unit, lease_seconds=LEASE, groups=groups)
    assert settled is not None
    assert (settled.kept_fence, settled.claimed) == (held.fence + 1, None)


def test_even_the_urgent_gives_way_to_another_lane(flow: Workflow) -> None:
    submit(flow, priority=100, lane="urgent")
    submit(flow, priority=-100, lane="humble")
    held = claim(flow, lane="urgent")
    unit = make_unit(held, flow, result=None, next_turn=1)
    groups = [("humble", flow.name, flow.version)]
    settled = sql.checkpoint_unit(held, unit, lease_seconds=LEASE, groups=groups)
    assert settled is not None
    assert settled.claimed is not None
    assert settled.claimed.lane == "humble"
    assert Task.objects.get(lane="urgent").status == states.QUEUED


def test_a_refused_settle_claims_nothing(flow: Workflow) -> None:
    submit(flow)
    submit(flow)
    held = claim(flow)
    held.fence += 1
    unit = make_unit(held, flow, result=None, next_turn=1)
    groups = [("default", flow.name, flow.version)]
    assert sql.checkpoint_unit(held, unit, lease_seconds=LEASE, groups=groups) is None
    assert sql.checkpoint_unit(held, make_unit(held, flow), lease_seconds=9, groups=groups) is None
    assert list(Task.objects.order_by("id").values_list("status", "fence")) == [
        (states.RUNNING, 1),
        (states.QUEUED, 0),
    ]


def test_what_a_worker_can_not_run_costs_and_stops_nothing(flow: Workflow) -> None:
    other = Workflow("unknown")
    other.step(lambda ctx: None, name="turn")
    for _ in range(30):
        submit(other)
    task = submit(flow)
    assert run_units(2) == ["default", "default"]
    assert set(StepOutput.objects.values_list("task", flat=True)) == {task.pk}


def test_a_failing_task_is_not_ahead_of_the_others(flow: Workflow) -> None:
    """It backs off; what is queued goes first meanwhile."""
    submit(flow)
    other = submit(flow)
    holder.record_failure(claim(flow), attempt(), retries=3, backoff=5)
    assert claim(flow).task_id == other.pk
