"""The cap of a lane under real workers that are killed."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import os
import random
from collections import defaultdict
from typing import Any
from uuid import UUID

import pytest

from ledger.errors import WrongStatus
from ledger.models import Event, Spend, StepOutput, Task
from ledger.transitions.lanes import run_one, set_lane
from ledger.transitions.operators import cancel_task, restart_task
from ledger.transitions.submit import submit_task
from ledger.workflows import registered
from tests.crash.cluster_kit import wait_for
from tests.crash.conftest import StartSite
from tests.crash.flows import brief, keyed, paced
from tests.factories import CLIENT

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]

PROOF = os.environ.get("LONGWATCH_TEST_PROOF") == "1"
KILLS, TASKS = (25, 200) if PROOF else (2, 16)
CAP = 2


@pytest.mark.timeout(600 if PROOF else 120)
def test_a_cap_holds_with_more_workers_than_places_and_kills(start_site: StartSite) -> None:
    """Judged by the ledger's own times: from each claim to its settle, and while a lost worker's
    lease lasts."""
    set_lane("tenant", {"cap": CAP}, actor=CLIENT)
    with start_site(LONGWATCH_WORKERS=4) as cluster:
        for _ in range(TASKS):
            with registered(paced):
                submit_task(
                    workflow=paced, actor=CLIENT, lane="tenant",
                    input={"sink": str(cluster.sink), "seconds": 0.05, "turns": 4},
                )  # fmt: skip
        dice, kills = random.Random(7), 0
        rows = Task.objects.filter(lane="tenant")

        def look() -> bool:
            nonlocal kills
            assert rows.filter(status="running").count() <= CAP
            if kills < KILLS and rows.filter(finished_at=None).count() < TASKS * (1 - kills / 30):
                running = rows.filter(status="running").values_list("lease_owner", flat=True)
                if owners := list(running):
                    kills += cluster.kill_owner(dice.choice(owners))
            return not rows.filter(finished_at=None).exists()

        wait_for("all are finished", look, 500 if PROOF else 60)
        assert kills == KILLS
    assert rows.filter(status="completed").count() == TASKS
    assert find_most() == CAP, "both places were used, and no third"


@pytest.mark.case(59)
@pytest.mark.timeout(600 if PROOF else 120)
def test_a_key_is_one_tasks_however_its_workers_end(start_site: StartSite) -> None:
    """From its first unit to its last, with kills, a cancel and a restart between; and a lane of
    one task waits for none of it."""
    keys, dice, kills = "abc", random.Random(11), 0
    rows = Task.objects.filter(workflow="keyed")
    with start_site(LONGWATCH_WORKERS=4) as cluster, registered(keyed, paced):
        work = {"sink": str(cluster.sink), "seconds": 0.05, "turns": 3}
        tasks = [
            submit_task(workflow=keyed, actor=CLIENT, lane="many", input=work | {"on": key})[0]
            for key in keys * (TASKS // 4)
        ]
        wait_for("one runs", lambda: rows.filter(status="running").exists(), 60)
        alone, _ = submit_task(workflow=paced, actor=CLIENT, lane="one", input=work)
        waited = len(tasks)

        def look() -> bool:
            nonlocal kills, waited
            held = list(rows.filter(status="running").values_list("concurrency_key", "lease_owner"))
            assert len(held) == len({key for key, _ in held}), held
            left = rows.filter(finished_at=None).count()
            if Task.objects.filter(pk=alone.pk, finished_at=None).exists():
                waited = left
            if held and kills < KILLS and left < len(tasks) * (1 - kills / 30):
                kills += cluster.kill_owner(dice.choice(held)[1])
            return left == 0

        cancel_task(tasks[-1].pk, actor=CLIENT)
        wait_for("some are finished", lambda: look() or rows.filter(
            finished_at=None).count() < len(tasks) * 0.9, 500 if PROOF else 60)  # fmt: skip
        with contextlib.suppress(WrongStatus):  # it ended meanwhile
            restart_task(tasks[-2].pk, to_step="begin", note="", actor=CLIENT)
        wait_for("all are finished", look, 500 if PROOF else 60)
        assert kills == KILLS
        assert waited > len(tasks) // 3, "it had its turn among them"
    for key in keys:
        spans = rows.filter(concurrency_key=key, started_at__isnull=False).order_by("started_at")
        times = list(spans.values_list("started_at", "finished_at"))
        for (_, end), (start, _) in itertools.pairwise(times):
            # SQLite reads the clock for an end a moment after it did so for the next claim.
            assert start >= end - dt.timedelta(seconds=0.1), (key, times)


def test_rates_pauses_and_budgets_hold_with_kills(start_site: StartSite) -> None:
    """A lane's rate with its burst, one task let through a pause, a day's money and a month's
    tokens: four workers, each lane's killed once."""
    bounds = {"rated": {"rate": 10, "burst": 3}, "poor": {"cost_day": "1.00"},
              "short": {"tokens_month": 100}, "shut": {}}  # fmt: skip
    for lane, settings in bounds.items():
        set_lane(lane, settings, actor=CLIENT, paused=True)
    left = Task.objects.filter(finished_at=None)
    with start_site(LONGWATCH_WORKERS=4) as cluster, registered(brief):
        work = {"sink": str(cluster.sink), "seconds": 0.05, "turns": 1}
        for lane, more, count in (
            ("rated", {}, 30),
            ("poor", {"cost": "0.10"}, 150),
            ("short", {"cost": "0.01"}, 150),
            ("shut", {"turns": 40}, 3),
        ):
            for _ in range(count):
                submit_task(workflow=brief, actor=CLIENT, lane=lane, input=work | more)
        chosen = wait_for("a worker is known", lambda: let_through("shut"))
        for lane in ("rated", "poor", "short"):
            set_lane(lane, {}, actor=CLIENT, paused=False)
        killed: set[str] = set()

        def look() -> bool:
            running = Task.objects.filter(status="running").exclude(lane__in=killed)
            for lane, owner in list(running.values_list("lane", "lease_owner")):
                if lane not in killed and cluster.kill_owner(owner):
                    killed.add(lane)
            return not left.filter(lane="rated").exists() and not left.filter(pk=chosen).exists()

        wait_for("those that may have run", look, 90)
        assert killed >= {"rated", "shut"}
        wait_for("nothing runs", lambda: not Task.objects.filter(status="running").exists(), 60)
        assert left.filter(lane="shut", started_at=None).count() == 2
        for lane, bound in (("poor", "cost_day"), ("short", "tokens_month")):
            assert left.filter(lane=lane).exists(), "the budget held"
            spent = list(Spend.objects.filter(lane=lane).order_by("at"))
            amounts = [one.cost / 10**9 if bound == "cost_day" else one.tokens_out / 100
                       for one in spent]  # fmt: skip
            full = next(at for at, sum_ in enumerate(itertools.accumulate(amounts)) if sum_ >= 1)
            # What another process began within two seconds, and a second for a call under way.
            late = spent[full].at + dt.timedelta(seconds=2 + 1)
            assert spent[-1].at <= late, (lane, len(spent), full)
    starts = sorted(find_starts("rated"))
    for first, last in itertools.combinations(range(len(starts)), 2):
        seconds = (starts[last] - starts[first]).total_seconds()
        assert last - first + 1 <= 3 + 1 + 10 * seconds, "the rate was passed"


def let_through(lane: str) -> UUID | None:
    with contextlib.suppress(WrongStatus):
        return run_one(lane, actor=CLIENT)
    return None


def find_starts(lane: str) -> list[dt.datetime]:
    """When its units started, those of lost attempts included."""
    reclaimed = Event.objects.filter(kind="reclaimed", task__lane=lane)
    starts = [event.at.fromisoformat(event.data["started_at"]) for event in reclaimed]
    outputs = StepOutput.objects.filter(task__lane=lane)
    return starts + list(outputs.values_list("started_at", flat=True))


def find_most() -> int:
    """The most tasks that were under way at once."""
    spans: dict[UUID, list[Any]] = defaultdict(list)
    for task, start, end in StepOutput.objects.values_list("task", "started_at", "finished_at"):
        spans[task].append((start, end))
    for event in Event.objects.filter(kind="reclaimed"):
        start = event.at.fromisoformat(event.data["started_at"])
        spans[event.task_id].append((start, event.at))
    edges = []
    for own in spans.values():
        own.sort()
        for (start, end), (following, _) in itertools.zip_longest(
            own, own[1:], fillvalue=(dt.datetime.max.replace(tzinfo=dt.UTC), None)
        ):
            # SQLite reads the clock for the output a moment after it did so for the next unit.
            edges += [(start, 1), (min(end, following), -1)]
    # What ends at the instant at which another begins made room for it.
    return max(itertools.accumulate(step for _, step in sorted(edges)))
