"""Bounds: each ends in its reason, counts what it says, and lets a person go on."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from ledger import clock, conf, limits, sql, states, sweeper
from ledger.errors import InvalidInput, LimitReached, TaskNotFound
from ledger.ids import make_id
from ledger.models import Event, Spend, Task
from ledger.runner import Engine, run_attempt
from ledger.sql import Claimed
from ledger.transitions import holder, operators
from ledger.workflows import Again, Workflow, registered
from tests.factories import (
    LEASE,
    OPERATOR,
    OTHER,
    OWNER,
    ask,
    attempt,
    claim,
    complete,
    expire_lease,
    make_unit,
    submit,
)

WEEK = 7 * 86_400.0


def read(task: Task) -> Task:
    return Task.objects.get(pk=task.pk)


def bury(flow: Workflow, reason: str, **given: Any) -> Task:
    """A task whose first unit is stored and whose limit (named by `given`) is then used up."""
    task = submit(flow, limits_given=given)
    held = claim(flow)
    if reason in {states.LIMIT_TOKENS, states.LIMIT_COST}:
        with pytest.raises(LimitReached):
            limits.record_spend(held, key="big", tokens_in=11, cost="1.01")
    if reason in {states.LIMIT_WALL, states.LIMIT_DEADLINE}:
        clock.offset += 31
    assert sql.checkpoint_unit(held, make_unit(held, flow), lease_seconds=9, groups=None) is None
    holder.settle_unit(held, make_unit(held, flow))
    task = read(task)
    assert (task.status, task.status_reason) == (states.DEAD, reason)
    assert task.error is not None
    return task


CASES = [
    (states.LIMIT_UNITS, {"units": 1}, {"units": 2}),
    (states.LIMIT_TOKENS, {"tokens": 10}, {"tokens": 100}),
    (states.LIMIT_COST, {"cost": "1.00"}, {"cost": "2.00"}),
    (states.LIMIT_WALL, {"wall": 30}, {"wall": 60}),
    (states.LIMIT_DEADLINE, {}, {}),
]


@pytest.mark.parametrize(("reason", "given", "more"), CASES)
def test_every_limit_ends_the_task_with_its_reason_and_its_output(
    reason: str, given: dict[str, Any], more: dict[str, Any], flow: Workflow
) -> None:
    if reason == states.LIMIT_DEADLINE:
        given = {"deadline_at": clock.read() + dt.timedelta(seconds=30)}
        more = {"deadline_at": clock.read() + dt.timedelta(days=1)}
    task = bury(flow, reason, **given)
    assert task.outputs.count() == 1
    with pytest.raises(InvalidInput, match=reason.removeprefix("limit_")):
        operators.extend_limits(task.pk, limits_given=given, actor=OPERATOR)
    operators.extend_limits(task.pk, limits_given=more, actor=OPERATOR)
    task = read(task)
    assert (task.status, task.status_reason, task.error) == (states.QUEUED, "", None)
    held = claim(flow)
    assert (held.step_name, held.turn) == ("b", 0)


def test_the_last_unit_may_use_up_the_last_of_a_limit(flow: Workflow) -> None:
    task = submit(flow, limits_given={"units": 1, "tokens": 5})
    held = claim(flow)
    limits.record_spend(held, key="all", tokens_in=5)
    complete(held, flow)
    assert read(task).status == states.COMPLETED


def test_a_limit_of_nothing_forbids_spending_not_running(flow: Workflow) -> None:
    submit(flow, limits_given={"tokens": 0, "cost": "0"})
    held = claim(flow)
    assert sql.checkpoint_unit(held, make_unit(held, flow), lease_seconds=9, groups=None)
    held.fence += 1
    with pytest.raises(LimitReached, match="tokens"):
        limits.record_spend(held, key="one", tokens_out=1)


# --- Wall time ------------------------------------------------------------------------------------


def _left(task: Task) -> float:
    task = read(task)
    if task.wall_left is not None:
        return task.wall_left
    assert task.wall_until is not None
    return (task.wall_until - clock.read()).total_seconds()


def _pause(flow: Workflow, held: Claimed) -> None:
    operators.pause_task(held.task_id, actor=OPERATOR)
    holder.release_task(held, why="drain")


STANDS: list[tuple[str, Callable[[Workflow, Claimed], Any]]] = [
    ("asked", lambda flow, held: ask(held, flow)),
    ("paused", _pause),
    ("asleep", lambda flow, held: holder.settle_unit(held, make_unit(held, flow), delay=9 * WEEK)),
    ("misfit", lambda flow, held: holder.misfit_task(held, problem="no such step")),
]
RUNS: list[tuple[str, Callable[[Workflow, Claimed], Any]]] = [
    ("running", lambda flow, held: None),
    ("queued", lambda flow, held: holder.release_task(held, why="drain")),
    ("backing off", lambda flow, held: holder.record_failure(
        held, attempt(), retries=3, backoff=900)),
    ("released", lambda flow, held: holder.release_task(held, why="busy", delay=900)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "leave"), STANDS)
def test_the_wall_limit_stands_while_people_or_a_timer_hold_the_task(
    name: str, leave: Callable[[Workflow, Claimed], Any], flow: Workflow
) -> None:
    task = submit(flow, limits_given={"wall": 100})
    leave(flow, claim(flow))
    clock.offset += 2 * WEEK
    sweeper.sweep()
    assert read(task).status_reason not in states.LIMIT_REASONS
    assert 95 < _left(task) <= 100


@pytest.mark.parametrize(("name", "leave"), RUNS)
def test_the_wall_limit_counts_while_the_engine_has_the_task(
    name: str, leave: Callable[[Workflow, Claimed], Any], flow: Workflow
) -> None:
    task = submit(flow, limits_given={"wall": 100})
    leave(flow, claim(flow))
    clock.offset += 60
    assert 35 < _left(task) <= 40


def test_a_task_that_is_to_start_in_a_month_has_all_its_time_then(flow: Workflow) -> None:
    later = clock.read() + dt.timedelta(days=30)
    task = submit(flow, not_before=later)
    clock.offset += 29 * 86_400
    assert sweeper.sweep().enforced == 0
    clock.offset += 86_400 + 1
    assert sweeper.sweep().promoted == 1
    task = read(task)
    assert task.status == states.QUEUED
    assert WEEK - 10 < _left(task) <= WEEK


def test_a_sleep_gives_back_the_time_that_was_left(flow: Workflow) -> None:
    task = submit(flow, limits_given={"wall": 100})
    held = claim(flow)
    clock.offset += 40
    holder.settle_unit(held, make_unit(held, flow), delay=3600)
    clock.offset += 3601
    sweeper.sweep()
    assert read(task).status == states.QUEUED
    assert 55 < _left(task) <= 60
    clock.offset += 61
    assert sweeper.sweep().enforced == 1
    assert read(task).status_reason == states.LIMIT_WALL


def test_a_longer_wall_limit_adds_its_difference(flow: Workflow) -> None:
    task = submit(flow, limits_given={"wall": 100})
    clock.offset += 40
    operators.extend_limits(task.pk, limits_given={"wall": 300}, actor=OPERATOR)
    assert 255 < _left(task) <= 260
    operators.pause_task(task.pk, actor=OPERATOR)
    operators.extend_limits(task.pk, limits_given={"wall": 100}, actor=OPERATOR)
    assert 55 < _left(task) <= 60
    operators.resume_task(task.pk, actor=OPERATOR)
    assert 55 < _left(task) <= 60


def test_one_over_its_limit_that_runs_is_judged_at_the_units_end(flow: Workflow) -> None:
    task = submit(flow, limits_given={"wall": 10})
    claim(flow)
    clock.offset += 20
    assert sweeper.sweep().enforced == 0
    assert read(task).status == states.RUNNING


# --- Going on after a limit -----------------------------------------------------------------------


def test_a_question_that_a_deadline_cut_off_is_asked_again(flow: Workflow) -> None:
    """The asking unit is accepted already: to run it again would store a second output."""
    soon = clock.read() + dt.timedelta(seconds=30)
    task = submit(flow, limits_given={"deadline_at": soon})
    request = ask(claim(flow), flow)
    clock.offset += 31
    assert sweeper.sweep().enforced == 1
    request.refresh_from_db()
    assert (read(task).status_reason, request.status) == (states.LIMIT_DEADLINE, "void")
    later = {"deadline_at": clock.read() + dt.timedelta(days=1)}
    operators.extend_limits(task.pk, limits_given=later, actor=OPERATOR)
    held = claim(flow)
    assert (held.step_name, held.turn) == ("a", 1)
    assert ask(held, flow).status == "open"


def test_a_limit_that_grows_while_the_worker_goes_on_lets_it_go_on(flow: Workflow) -> None:
    """The worker's copy is older than what its own checkpoint was judged by."""
    looping = Workflow("looping")

    @looping.step
    def turn(ctx: Any) -> Any:
        if ctx.turn == 1:
            operators.extend_limits(ctx.task_id, limits_given={"units": 9}, actor=OPERATOR)
        return {"done": True} if ctx.turn == 4 else Again({})

    with registered(looping):
        task = submit(looping, limits_given={"units": 2})
        engine = Engine(OWNER)
        held = engine.claim()
        while held is not None:
            engine.slice_ends = time.monotonic() + 60
            held = run_attempt(engine, held)
    assert (read(task).status, read(task).used_units) == (states.COMPLETED, 5)


def test_a_limit_found_before_a_step_began_is_no_failed_attempt(flow: Workflow) -> None:
    submit(flow, limits_given={"tokens": 5})
    held = claim(flow)
    limits.record_spend(held, key="all", tokens_in=5)
    expire_lease()
    sweeper.sweep()
    held = claim(flow)
    assert run_attempt(Engine(held.owner), held) is None
    task = Task.objects.get()
    assert (task.status, task.status_reason) == (states.DEAD, states.LIMIT_TOKENS)
    assert task.error["type"] == "LimitReached"
    kinds = list(Event.objects.values_list("kind", flat=True))
    assert "dead" in kinds
    assert "attempt_failed" not in kinds


def test_units_are_counted_and_no_unit_starts_beyond_them(flow: Workflow) -> None:
    task = submit(flow, limits_given={"units": 2})
    held = claim(flow)
    settled = sql.checkpoint_unit(held, make_unit(held, flow), lease_seconds=LEASE, groups=None)
    assert settled is not None
    held.fence += 1
    held.step_index, held.step_name = 1, "b"
    unit = make_unit(held, flow)
    assert sql.checkpoint_unit(held, unit, lease_seconds=LEASE, groups=None) is None
    holder.settle_unit(held, unit)
    assert (read(task).status_reason, read(task).used_units) == (states.LIMIT_UNITS, 2)


# --- Money and tokens -----------------------------------------------------------------------------


def test_the_same_key_counts_once(flow: Workflow) -> None:
    task = submit(flow)
    held = claim(flow)
    assert limits.record_spend(held, key="call-1", tokens_in=3, tokens_out=4, cost="0.10")
    assert not limits.record_spend(held, key="call-1", tokens_in=3, tokens_out=4, cost="0.10")
    task = read(task)
    assert (task.used_tokens_in, task.used_tokens_out, task.used_cost) == (3, 4, 100_000_000)


def test_long_keys_stay_different_keys(flow: Workflow) -> None:
    submit(flow)
    held = claim(flow)
    for middle in "xy":
        assert limits.record_spend(held, key="k" * 200 + middle + "k" * 200, tokens_in=1)
    assert Spend.objects.count() == 2


@pytest.mark.case(58)
def test_what_a_lost_worker_spent_is_recorded_once_and_marked(flow: Workflow) -> None:
    task = submit(flow)
    held = claim(flow)
    expire_lease()
    sweeper.sweep()
    again = claim(flow, OTHER)
    assert limits.record_spend(held, key="late", cost="0.25")
    assert not limits.record_spend(held, key="late", cost="0.25")
    assert not limits.record_spend(again, key="late", cost="0.25")
    spend = Spend.objects.get()
    assert (spend.stale, spend.fence, read(task).used_cost) == (True, held.fence, 250_000_000)
    complete(again, flow)
    assert limits.record_spend(held, key="later still", cost="0.25")
    assert read(task).used_cost == 500_000_000


def test_a_spend_is_no_revision(flow: Workflow) -> None:
    """A person's form stays good while a unit spends; the page still sees that something moved."""
    task = submit(flow)
    held = claim(flow)
    before = read(task)
    limits.record_spend(held, key="one", tokens_in=1)
    after = read(task)
    assert (after.revision, after.beat) == (before.revision, before.beat + 1)
    operators.pause_task(task.pk, actor=OPERATOR, revision=before.revision)


def test_half_and_four_fifths_of_a_limit_are_told_once_each(flow: Workflow) -> None:
    task = submit(flow, limits_given={"cost": "1.00", "tokens": 1000})
    held = claim(flow)

    def list_told() -> list[tuple[str, int]]:
        told = Event.objects.filter(task=task, kind="limit_warned").order_by("seq")
        return [(one.data["limit"], one.data["percent"]) for one in told]

    limits.record_spend(held, key="1", cost="0.499999999", tokens_in=499)
    assert list_told() == []
    limits.record_spend(held, key="2", cost="0.000000001")
    limits.record_spend(held, key="2", cost="0.000000001")
    limits.record_spend(held, key="3", tokens_in=100, tokens_out=401)
    assert list_told() == [("cost", 50), ("tokens", 80)]
    limits.record_spend(held, key="4", cost="0.30")
    limits.record_spend(held, key="5", cost="0.10")
    assert list_told()[2:] == [("cost", 80)]
    assert Event.objects.filter(kind="limit_warned").last().data["of"] == "1.00"
    complete(held, flow)  # its checkpoint has a number of its own, and no row
    assert list(task.events.order_by("seq").values_list("seq", flat=True)) == [1, 2, 3, 4, 6]


def test_what_a_child_spends_warns_its_parent_too(flow: Workflow) -> None:
    parent = submit(flow, limits_given={"tokens": 100})
    child = submit(flow, limits_given={"tokens": 1000})
    Task.objects.filter(pk=child.pk).update(parent=parent)
    first, second = claim(flow), claim(flow, OTHER)
    held = first if first.task_id == child.pk else second
    limits.record_spend(held, key="1", tokens_in=60)
    told = Event.objects.get(kind="limit_warned")
    assert (told.task_id, told.data["used"]) == (parent.pk, 60)


def test_a_passed_limit_is_recorded_before_it_is_raised(flow: Workflow) -> None:
    task = submit(flow, limits_given={"cost": "1.00"})
    held = claim(flow)
    limits.record_spend(held, key="1", cost="1.00")
    with pytest.raises(LimitReached) as caught:
        limits.record_spend(held, key="2", cost="0.000000001")
    assert caught.value.reason == states.LIMIT_COST
    assert read(task).used_cost == 1_000_000_001


def test_a_sum_that_no_column_holds_is_refused_and_nothing_is_recorded(flow: Workflow) -> None:
    submit(flow, limits_given={"cost": "9000000000"})
    held = claim(flow)
    limits.record_spend(held, key="most", cost="9000000000")
    with pytest.raises(ValueError, match=r"cost: task .* more than 9223372036\.854775807 in all"):
        limits.record_spend(held, key="more", cost="9000000000")
    task = Task.objects.get(pk=held.task_id)
    assert (task.used_cost, type(task.used_cost), Spend.objects.count()) == (9 * 10**18, int, 1)


def test_a_spend_for_a_task_that_is_gone_says_so(flow: Workflow) -> None:
    submit(flow)
    held = claim(flow)
    held.task_id = make_id()
    with pytest.raises(TaskNotFound):
        limits.record_spend(held, key="one", tokens_in=1)


# --- What is written as a limit -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("units", -1), ("units", 1.5), ("units", True), ("units", 2**53 + 1), ("units", "5"),
        ("cost", "-1"), ("cost", 0.5), ("cost", "ten"), ("cost", "NaN"), ("cost", "sNaN"),
        ("cost", "Infinity"), ("cost", "1e999999"), ("cost", "9000000001"), ("cost", []),
        ("wall", float("nan")), ("wall", float("inf")), ("wall", 1e15), ("wall", -0.5),
        ("deadline_at", "soon"), ("deadline_at", "2026-01-31T12:00:00"), ("deadline_at", 5),
        ("deadline_at", "9999-12-31T23:59:59-12:00"), ("deadline_at", "0001-01-01T00:00:00+12:00"),
        ("colour", 1),
    ],
)  # fmt: skip
def test_a_wrong_limit_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        limits.read_limits({name: value})
    assert caught.value.field == f"limits.{name}"


def test_an_amount_is_refused_by_its_size_in_no_time() -> None:
    began = time.monotonic()
    with pytest.raises(ValueError, match="out of range"):
        conf.parse_money("1e999990")  # as an integer it has a million digits and takes a minute
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("text", ["0", "5", "5.5", "0.000000001", "9000000000"])
def test_money_comes_back_as_it_went_in(text: str) -> None:
    assert Decimal(conf.format_money(conf.parse_money(text))) == Decimal(text)


def test_the_largest_limits_are_stored_as_they_are(flow: Workflow) -> None:
    most: dict[str, Any] = {"units": 2**53, "tokens": 2**53, "cost": "9000000000", "wall": 3e9}
    most["deadline_at"] = "9999-12-31T23:59:59+00:00"
    task = read(submit(flow, limits_given=most))
    described = limits.describe_limits(task)
    assert (described["units"], described["tokens"]) == (2**53, 2**53)
    assert described["cost"] == "9000000000.00"
    assert (task.status, sweeper.sweep().enforced) == (states.QUEUED, 0)
    claim(flow)


def test_defaults_come_from_the_site(settings: Any) -> None:
    settings.LONGWATCH_LIMIT_UNITS = 7
    assert limits.read_limits(None)["limit_units"] == 7
    assert limits.read_limits({"units": None})["limit_units"] == 7
    assert limits.read_limits({"units": 8})["limit_units"] == 8
