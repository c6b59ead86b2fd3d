"""Lanes, and the tasks of one, share real workers, under the product's defaults."""

from __future__ import annotations

import datetime as dt
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ledger import clock, sql
from ledger.models import StepOutput, Task
from ledger.transitions.lanes import set_lane
from ledger.transitions.operators import cancel_task
from ledger.transitions.submit import submit_task
from ledger.workflows import registered
from tests.crash.cluster_kit import wait_for
from tests.crash.conftest import StartSite
from tests.crash.flows import brief
from tests.crash.site_kit import SiteCluster, wait_for_status
from tests.factories import CLIENT

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]

PROOF = os.environ.get("LONGWATCH_TEST_PROOF") == "1"
WORKERS, UNIT = 2, 0.02


def submit(cluster: SiteCluster, lane: str, turns: int = 1, **given: Any) -> Task:
    work = {"sink": str(cluster.sink), "seconds": given.pop("seconds", UNIT), "turns": turns}
    with registered(brief):
        return submit_task(workflow=brief, actor=CLIENT, lane=lane, input=work, **given)[0]


def fill(cluster: SiteCluster, **counts: int) -> None:
    """So many tasks in each lane before any of them starts."""
    for lane in counts:
        set_lane(lane, {}, actor=CLIENT, paused=True)
    for lane, count in counts.items():
        for _ in range(count):
            submit(cluster, lane)
    with sql.atomic():
        for lane in counts:
            set_lane(lane, {}, actor=CLIENT, paused=False)


def wait_until_done(rows: Any, seconds: float = 60.0) -> None:
    wait_for("all are finished", lambda: not rows.filter(finished_at=None).exists(), seconds)


@pytest.mark.case(59)
@pytest.mark.timeout(300 if PROOF else 120)
def test_one_task_beside_many_waits_for_one_unit_of_each_worker(start_site: StartSite) -> None:
    arrivals = []
    with start_site() as cluster:
        fill(cluster, many=10_000 if PROOF else 300)
        wait_for("they run", lambda: StepOutput.objects.exists())
        for _ in range(40 if PROOF else 6):
            one = submit(cluster, "one")
            arrivals.append((one, clock.read()))
            wait_for_status(one, "completed")
        assert Task.objects.filter(lane="many", finished_at=None).exists(), "there were too few"
        seen = StepOutput.objects.count()
        wait_for("what ran beside is in", lambda: StepOutput.objects.count() > seen + WORKERS)
    waited = [
        StepOutput.objects.filter(
            task__lane="many", started_at__gt=since, started_at__lt=one.started_at
        ).count()
        for one, since in arrivals
    ]
    assert max(waited) <= WORKERS, waited


@pytest.mark.timeout(300 if PROOF else 120)
def test_short_tasks_finish_while_a_long_one_goes_on(start_site: StartSite) -> None:
    with start_site() as cluster:
        long = submit(cluster, "default", turns=10_000, seconds=0.0)
        wait_for("it runs", lambda: StepOutput.objects.filter(task=long).exists())
        for _ in range(100):
            submit(cluster, "default")
        short = Task.objects.filter(lane="default").exclude(pk=long.pk)
        wait_until_done(short)
        long.refresh_from_db()
        assert long.finished_at is None
        units = long.used_units
        if PROOF:
            wait_for("the long one is done", lambda: long.refresh_from_db() or long.finished_at,
                     200)  # fmt: skip
            assert (long.status, long.used_units) == ("completed", 10_000)
        else:
            wait_for("it goes on", lambda: Task.objects.get(pk=long.pk).used_units > units)
            cancel_task(long.pk, actor=CLIENT)
            wait_for_status(long, "cancelled")


@pytest.mark.timeout(300 if PROOF else 120)
@pytest.mark.parametrize("workers", [2, 4])
def test_weights_are_shares_of_full_lanes(start_site: StartSite, workers: int) -> None:
    """Of one-unit tasks, counted among those that started while both lanes had some in store."""
    heavy, light = (1_800, 700) if PROOF else (330, 130)
    set_lane("heavy", {"weight": 3}, actor=CLIENT)
    with start_site(LONGWATCH_WORKERS=workers) as cluster:
        with_both = int((heavy // 3) * 4 * 0.9)
        fill(cluster, heavy=heavy, light=light)
        rows = StepOutput.objects.order_by("started_at")
        wait_for("so many ran", lambda: rows.count() >= with_both, 250 if PROOF else 100)
    counts = Counter(rows.values_list("task__lane", flat=True)[:with_both])
    assert 2.7 <= counts["heavy"] / counts["light"] <= 3.3, counts


@pytest.mark.case(59)
def test_the_least_urgent_starts_within_200_minutes_of_urgent_load(start_site: StartSite) -> None:
    """The clock of the test and of the workers goes on by twenty minutes at a time, while there is
    always something urgent in store."""
    urgent = Task.objects.filter(priority=100)
    with start_site(LONGWATCH_LEASE_SECONDS=36_000) as cluster:
        set_lane("default", {}, actor=CLIENT, paused=True)
        humble = submit(cluster, "default", priority=-100)
        try:
            for minutes in range(0, 241, 20):
                clock.offset = minutes * 60.0
                move_clock(cluster)
                ran = urgent.exclude(started_at=None).count()
                for _ in range(30 - urgent.filter(started_at=None).count()):
                    submit(cluster, "default", priority=100)
                set_lane("default", {}, actor=CLIENT, paused=False)
                wait_for("ten ran", lambda: urgent.exclude(started_at=None).count() >= ran + 10)  # noqa: B023
            wait_for_status(humble, "completed")
        finally:
            clock.offset = 0.0
    due = humble.created_at + dt.timedelta(minutes=200)
    later = urgent.filter(created_at__gt=due, started_at__lt=humble.started_at)
    assert later.count() <= WORKERS, "it had to start"
    assert urgent.filter(
        created_at__lt=humble.started_at, started_at__gt=humble.started_at
    ).exists()
    assert humble.started_at > due - dt.timedelta(minutes=20), "nothing urgent was in store"


def move_clock(cluster: SiteCluster) -> None:
    """That of the workers is the test's from their next unit on."""
    new = Path(f"{cluster.sink}.new")
    new.write_text(str(clock.offset))
    new.rename(f"{cluster.sink}.clock")
