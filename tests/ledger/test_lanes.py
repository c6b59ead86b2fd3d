"""Caps, rates, weights, pauses and budgets of lanes hold, whoever claims."""

from __future__ import annotations

import datetime as dt
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import override_settings

from ledger import clock, lanebudgets, lanes, limits, picking, states
from ledger.errors import InvalidInput
from ledger.models import AuditEntry, Event, Lane, Spend, Task, Worker
from ledger.queries.fleet import describe_known
from ledger.runner import Engine, run_attempt
from ledger.sql import Claimed
from ledger.transitions import holder
from ledger.transitions.lanes import run_one, set_lane
from ledger.transitions.operators import change_task
from ledger.transitions.sweeps import reclaim_task
from ledger.workflows import Again, RetryLater, Workflow, registered
from tests.dashboard.fleet import make_worker
from tests.factories import CLIENT, LEASE, OWNER, submit

pytestmark = pytest.mark.both_databases

PROOF = os.environ.get("LONGWATCH_TEST_PROOF") == "1"


@pytest.fixture
def flow(db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workflow]:
    """A step of one turn, or of as many as its input says; workers look around after each."""
    for module, name in ((picking, "FRESH_SECONDS"), (lanes, "RULES_SECONDS"),
                         (lanebudgets, "SUMS_SECONDS")):  # fmt: skip
        monkeypatch.setattr(module, name, -1.0)
    monkeypatch.setattr(lanebudgets, "_kept", None)
    looping = Workflow("looping")
    looping.step(
        lambda ctx: Again() if ctx.turn + 1 < ctx.input.get("turns", 1) else {}, name="turn"
    )
    with registered(looping), override_settings(LONGWATCH_SLICE_SECONDS=0):
        yield looping
    clock.offset = 0.0


def change(name: str, *, paused: bool | None = None, **settings: Any) -> Lane:
    return set_lane(name, settings, actor=CLIENT, paused=paused)


def run_units(engine: Engine, most: int) -> list[str]:
    """The lanes of the units that a worker runs, in order."""
    ran: list[str] = []
    held = engine.claim()
    while held is not None and len(ran) < most:
        ran.append(held.lane)
        held = run_attempt(engine, held) or engine.claim()
    return ran


def claim_all(count: int) -> list[Claimed]:
    """What so many workers get that come one after the other."""
    found = [Engine(f"host:{n}:boot-{n}").claim() for n in range(count)]
    return [held for held in found if held is not None]


@pytest.mark.case(59)
def test_one_task_beside_ten_thousand_waits_for_one_unit_at_most(flow: Workflow) -> None:
    many = submit(flow, lane="a-many")
    Task.objects.bulk_create(
        [_copy(many, n) for n in range(9_999 if PROOF else 999)], batch_size=500
    )
    engine = Engine(OWNER)
    assert run_units(engine, 3) == ["a-many"] * 3
    held = engine.claim()
    assert held is not None
    submit(flow, lane="z-one")
    held = run_attempt(engine, held)
    assert held is not None
    assert held.lane == "z-one"


def _copy(task: Task, number: int) -> Task:
    fields = {f.attname: getattr(task, f.attname) for f in Task._meta.concrete_fields}
    fields |= {"id": None, "rank": task.rank + number, "idempotency_key": None}
    del fields["id"]
    return Task(**fields)


@pytest.mark.parametrize("turns", [1, 1_000])
def test_weights_are_shares(flow: Workflow, turns: int) -> None:
    """Also where one lane has a single long task, which is in no queue while it runs."""
    change("heavy", weight=3)
    for lane in ("heavy", "light"):
        for _ in range(80 if turns == 1 else 1):
            submit(flow, lane=lane, input={"turns": turns})
    counts = Counter(run_units(Engine(OWNER), 80))
    assert 54 <= counts["heavy"] <= 66, counts


def test_a_long_task_does_not_keep_short_ones_waiting(flow: Workflow) -> None:
    long = submit(flow, input={"turns": 9_999})
    short = [submit(flow).pk for _ in range(100)]
    run_units(Engine(OWNER), 250)
    assert Task.objects.filter(pk__in=short, status=states.COMPLETED).count() == 100
    long.refresh_from_db()
    assert long.used_units > 40
    assert long.finished_at is None


@pytest.mark.case(59)
def test_the_least_urgent_starts_within_200_minutes_of_urgent_load(flow: Workflow) -> None:
    humble = submit(flow, priority=-100)
    engine, minutes = Engine(OWNER), 0
    while Task.objects.get(pk=humble.pk).started_at is None:
        minutes += 10
        assert minutes <= 210, "it starves"
        clock.offset = minutes * 60.0
        for _ in range(3):
            submit(flow, priority=100)
        run_units(engine, 2)
    assert minutes > 100


@pytest.mark.case(59)
def test_a_flood_over_a_thousand_workflow_names_is_one_lanes_flood(flow: Workflow) -> None:
    """Beside it another lane has every other unit, and within it what ranks first goes first."""
    names = [Workflow(f"flood-{number}") for number in range(1_000 if PROOF else 60)]
    for one in names:
        one.step(flow.steps[0].fn, name="turn")
    with registered(*names):
        flood = [submit(one, lane="flood") for one in names]
        engine = Engine(OWNER)
        assert run_units(engine, 2) == ["flood"] * 2
        for _ in range(5):
            submit(flow, lane="small")
        urgent = submit(names[-1], lane="flood", priority=50)
        lanes_ = run_units(Engine(OWNER), 11)
    assert lanes_.count("small") == 5
    urgent.refresh_from_db()
    assert urgent.status == states.COMPLETED
    started = Task.objects.filter(pk__in=[one.pk for one in flood], started_at__isnull=False)
    assert set(started.values_list("pk", flat=True)) <= {one.pk for one in flood[:12]}


@pytest.mark.case(59)
def test_an_urgent_task_waits_for_one_unit_of_a_humble_one_that_has_the_place(
    flow: Workflow,
) -> None:
    """Of a lane's cap, whatever ranks between the two."""
    change("tenant", cap=1)
    submit(flow, lane="tenant", priority=-100, input={"turns": 50})
    engine = Engine(OWNER)
    held = engine.claim()
    for _ in range(3):
        submit(flow, lane="tenant", input={"turns": 50})
    urgent = submit(flow, lane="tenant", priority=100)
    assert held is not None
    found = run_attempt(engine, held) or engine.claim()
    assert found is not None
    assert found.task_id == urgent.pk


def test_a_cap_is_never_passed(flow: Workflow) -> None:
    change("small", cap=2)
    for _ in range(5):
        submit(flow, lane="small", input={"turns": 9})
    held = claim_all(4)
    assert len(held) == 2
    submit(flow, lane="other")
    assert [one.lane for one in claim_all(2)] == ["other"], "a full lane stands in nobody's way"
    own = held[0].task_id
    after = run_attempt(Engine(held[0].owner), held[0])
    assert after is not None
    assert after.task_id != own, "its own place goes to one that waited"
    assert claim_all(2) == []
    holder.release_task(after, why="test")
    assert len(claim_all(2)) == 1


def test_a_lost_worker_keeps_its_place_until_the_reclaim(flow: Workflow) -> None:
    change("small", cap=1)
    first = submit(flow, lane="small")
    submit(flow, lane="small")
    assert len(claim_all(2)) == 1
    clock.offset = 61.0
    assert claim_all(1) == [], "an expired lease may still be kept"
    assert reclaim_task(first.pk, LEASE)
    assert [one.task_id for one in claim_all(2)] == [first.pk]


def test_a_rate_lets_its_burst_through_and_then_so_many_units_a_second(flow: Workflow) -> None:
    change("slow", rate=30, per="minute", burst=3)
    submit(flow, lane="slow", input={"turns": 100})
    engine, start = Engine(OWNER), clock.read()
    assert run_units(engine, 50) == ["slow"] * 3
    wait = engine.picker.take_wait()
    assert wait is not None
    assert 0 < wait <= 2.0
    elapsed = (clock.read() - start).total_seconds()
    clock.offset = 2.0 - min(elapsed, 1.9)
    taken = 3 + len(run_units(engine, 50))
    clock.offset += 60.0
    assert len(run_units(engine, 50)) == 3, "what was not used is lost beyond the burst"
    assert taken <= 3 + 1 + int(elapsed / 2)


def test_a_clock_that_steps_back_or_a_rate_that_is_raised_closes_no_lane(flow: Workflow) -> None:
    change("paced", rate=1, per="minute", burst=5)
    for _ in range(30):
        submit(flow, lane="paced")
    engine = Engine(OWNER)
    clock.offset = 3_600.0
    assert len(run_units(engine, 20)) == 5
    clock.offset = 0.0
    assert len(run_units(engine, 20)) == 1, "at the rate, from now on"
    assert run_units(engine, 20) == []
    clock.offset = 61.0
    assert len(run_units(engine, 20)) == 1
    change("paced", rate=2, per="second", burst=2)
    assert len(run_units(engine, 1)) == 1
    clock.offset += 2.0
    assert len(run_units(engine, 2)) == 2


def test_a_lane_that_is_paused_starts_nothing_and_ends_the_unit_it_runs(flow: Workflow) -> None:
    task = submit(flow, lane="tenant", input={"turns": 5})
    engine = Engine(OWNER)
    held = engine.claim()
    assert held is not None
    change("tenant", paused=True)
    assert run_attempt(engine, held) is None
    task.refresh_from_db()
    assert (task.status, task.turn) == (states.QUEUED, 1)
    assert engine.claim() is None
    change("tenant", paused=False)
    assert len(run_units(engine, 9)) == 4


def test_one_task_is_let_through_a_pause_and_runs_to_its_end(flow: Workflow) -> None:
    first, _, other = (submit(flow, lane="tenant", input={"turns": 3}) for _ in range(3))
    change("tenant", paused=True)
    submit(flow, lane="busy", input={"turns": 9_999})
    now = clock.now()
    knows = describe_known()
    Worker.objects.bulk_create(
        [Worker(owner=OWNER, host="h", pid=1, started_at=now, seen_at=now, knows=knows)]
    )
    assert run_one("tenant", actor=CLIENT) == first.pk
    change("elsewhere", paused=True)
    change_task(first.pk, lane="elsewhere", actor=CLIENT)
    assert set(run_units(Engine(OWNER), 5)) == {"busy"}, "of another lane now, paused as well"
    change_task(first.pk, lane="tenant", actor=CLIENT)
    ran = Counter(run_units(Engine(OWNER), 20))
    assert ran["tenant"] == 3, ran
    first.refresh_from_db()
    assert first.status == states.COMPLETED
    assert Task.objects.filter(lane="tenant", status=states.QUEUED).count() == 2
    other.refresh_from_db()
    assert other.started_at is None


def spend(flow: Workflow, lane: str, cost: str, key: str) -> None:
    submit(flow, lane=lane)
    held = next(one for one in claim_all(1) if one.lane == lane)
    limits.record_spend(held, key=key, tokens_in=10, cost=cost)
    holder.fail_task(held, holder.Attempt({"type": "x", "message": "", "step": "turn", "turn": 0}))


def test_a_lane_over_its_budget_is_skipped_until_the_day_is_over(flow: Workflow) -> None:
    change("tenant", cost_day="2.00", tokens_month=10_000)
    spend(flow, "tenant", "1.50", "a")
    submit(flow, lane="tenant")
    held = claim_all(1)[0]
    assert limits.reserve_amount(held, key="call", cost="1.00")
    limits.record_spend(held, key="call", cost="1.00", reservation="call")
    with pytest.raises(RetryLater, match=r"^lane over its day's money until 00:00 UTC$"):
        limits.reserve_amount(held, key="next", cost="0.01")
    holder.release_task(held, why="test")
    assert claim_all(1) == []
    assert lanes.read_closed()["tenant"][0] == "lane over its day's money until 00:00 UTC"
    now = clock.read()
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0) + dt.timedelta(days=1)
    clock.offset = (midnight - now).total_seconds() + 1
    assert len(claim_all(1)) == 1
    change("tenant", cost_day=None, tokens_month=10)
    why = lanes.read_closed().get("tenant", ("", None))[0]
    assert why.startswith("lane over its month's tokens until") == (midnight.day != 1)


@pytest.mark.parametrize("paused", [False, True])
def test_a_lane_over_its_budget_gives_a_task_back_once(
    flow: Workflow, monkeypatch: pytest.MonkeyPatch, paused: bool
) -> None:
    """Not until its releases are used up: also while the settings that were read are young, and for
    the one task that is let through a pause."""
    for module, name in ((lanes, "RULES_SECONDS"), (lanebudgets, "SUMS_SECONDS")):
        monkeypatch.setattr(module, name, 600.0)

    def call(ctx: Any) -> Again:
        with ctx.reserve(cost="1.00") as hold:
            hold.settle(cost="1.00")
        return Again()

    caller = Workflow("caller")
    caller.step(call)
    with registered(caller):
        change("tenant", cost_day="2.00")
        make_worker(caller)
        task = submit(caller, lane="tenant")
        if paused:
            change("tenant", paused=True)
            run_one("tenant", actor=CLIENT)
        units = len(run_units(Engine(OWNER), 20))
    task.refresh_from_db()
    assert (task.status, task.used_units, units) == (states.QUEUED, 2, 3)
    assert task.releases == 1
    assert "lane over its day's money" in lanes.may_start(task, lanes.read_closed())


def test_a_childs_money_counts_once_in_its_own_lane(flow: Workflow) -> None:
    submit(flow, lane="tenant")
    held = claim_all(1)[0]
    submit(flow, lane="kids")
    child = claim_all(1)[0]
    Task.objects.filter(pk=child.task_id).update(parent=held.task_id)
    limits.record_spend(child, key="call", cost="1.00", tokens_out=7)
    assert Spend.objects.count() == 2
    used = lanebudgets.read_used(["tenant", "kids"])
    assert used["tenant"]["cost_day"] == 0
    assert (used["kids"]["cost_day"], used["kids"]["tokens_month"]) == (10**9, 7)


def test_what_another_process_spends_is_seen_when_the_sums_are_read_again(
    flow: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound on how far a budget is passed: calls that began within SUMS_SECONDS of it."""
    monkeypatch.setattr(lanebudgets, "SUMS_SECONDS", 30.0)
    change("tenant", cost_day="1.00")
    submit(flow, lane="tenant")
    held = claim_all(1)[0]
    lanebudgets.check_lane("tenant")
    theirs = {"key": "theirs", "fence": 1, "step": "turn", "turn": 0, "lane": "tenant"}
    Spend.objects.create(task_id=held.task_id, at=clock.now(), cost=10**9, **theirs)
    lanebudgets.check_lane("tenant")
    kept = lanebudgets._kept
    assert kept is not None
    kept.read_at -= 31.0
    with pytest.raises(RetryLater):
        lanebudgets.check_lane("tenant")


def test_sums_are_the_same_however_old_their_parts_are(flow: Workflow) -> None:
    submit(flow, lane="tenant")
    held = claim_all(1)[0]
    for number in range(4):
        clock.offset = number * 400.0
        limits.record_spend(held, key=str(number), cost="1.00")
        lanebudgets.read_used(["tenant"])
    kept = lanebudgets._kept
    assert kept is not None
    assert kept.old["tenant"]["cost_month"] > 0, "what is old is summed once"
    counted = lanebudgets.read_used(["tenant"])
    lanebudgets._kept = None
    assert counted == lanebudgets.read_used(["tenant"])


@pytest.mark.parametrize(
    ("name", "value"),
    [("per", []), ("per", None), ("paused", True), ("name", "other"), ("cost_day", True),
     ("cost_day", "0.0000000001"), ("cost_month", "1,50"), ("cost_month", 1.5), ("weight", 0),
     ("weight", -1), ("cap", 0), ("rate", 10**9), ("rate", 1e-9), ("burst", None)],
)  # fmt: skip
def test_a_setting_that_means_nothing_is_refused_by_its_name(
    db: None, name: str, value: Any
) -> None:
    with pytest.raises(InvalidInput) as caught:
        set_lane("tenant", {name: value}, actor=CLIENT)
    assert caught.value.field == name
    assert not Lane.objects.exists()


def test_every_change_of_a_lane_is_on_record(flow: Workflow) -> None:
    change("odd/né?#", weight=2, cost_day="1.50")
    entry = AuditEntry.objects.get(action="lane_changed")
    assert (entry.target, entry.after) == ("lane:odd/né?#", {"weight": 2, "cost_day": "1.50"})
    assert entry.before == {"weight": 1, "cost_day": None}
    assert Event.objects.count() == 0
