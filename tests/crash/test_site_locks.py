"""Rows that an outside transaction holds for longer than anybody's `lock_timeout` (PostgreSQL)."""

from __future__ import annotations

import os
import time
from collections import Counter

import pytest
from django.db import transaction

from ledger import states
from ledger.models import Task
from tests.crash.cluster_kit import SIGKILL, wait_for
from tests.crash.conftest import StartSite
from tests.crash.site_kit import SiteCluster, assert_whole, read_kinds, wait_for_status
from tests.durable import DURABLE, LEASE

PROOF = bool(os.environ.get("LONGWATCH_TEST_PROOF"))
OWN = PROOF or DURABLE
BOUND = 10.0 if OWN else 1.0
"""The product's own, or one that a test can wait out."""
HOLD = 3.5 * BOUND + LEASE + 1
"""Longer than the lease as well, and than a settle that stands in line behind a beat."""

pytestmark = [
    pytest.mark.postgresql,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(240),
]


@pytest.fixture
def bounded(site_env: dict[str, str]) -> None:
    """The clusters' sessions wait for a lock for BOUND seconds."""
    if not OWN:
        options = "-c%20lock_timeout%3D1s%20-c%20statement_timeout%3D60s"
        site_env["LONGWATCH_DATABASE_URL"] += f"?options={options}"


@pytest.mark.case(8)
def test_rows_held_beyond_every_bound_cost_no_output_and_no_attempt(
    bounded: None, start_site: StartSite
) -> None:
    """Heartbeats, settles, the sweeps of two hosts and a lost worker's task all meet the lock.

    PROOF: the product's own bound of 10 s.
    """
    with start_site() as one, start_site() as two:
        ending = [one.submit(seconds=HOLD / 4, turns=1) for _ in range(2)]
        beating = one.submit(seconds=HOLD + 2, turns=1)
        lost = one.submit(seconds=600, turns=1)
        one.wait_for_attempts(4, "work")
        behind = [one.submit(seconds=0, turns=1) for _ in range(3)]
        tasks = [*ending, beating, *behind]
        began = time.monotonic()
        with transaction.atomic():
            list(Task.objects.select_for_update())
            kill_its_worker(lost, one, two)
            wait_for("every bound is over", lambda: time.monotonic() > began + HOLD, HOLD + 30)
        for task in tasks:
            wait_for_status(task, "completed")
            assert_whole(task, 1)
            assert read_kinds(task) == ["submitted", "completed"]
            assert (task.attempts, task.reclaims, task.releases) == (0, 0, 0)
        wait_for("the lost one runs again", lambda: read_fences(one)[str(lost.pk)] == 2)
        Task.objects.get(pk=lost.pk, status=states.RUNNING, attempts=0, reclaims=1)
        begun = read_fences(one)
        assert {begun[str(task.pk)] for task in tasks} == {1}, "no unit ran twice"
        assert "lock timeout" in one.read_log() + two.read_log(), "the bound was met"


def kill_its_worker(task: Task, *clusters: SiteCluster) -> None:
    (noted,) = [n for n in clusters[0].read_sink("work") if n.task == str(task.pk)]
    clusters[0].signal(SIGKILL, noted.pid)


def read_fences(cluster: SiteCluster) -> Counter[str]:
    """How often each task's `work` was begun."""
    return Counter(noted.task for noted in cluster.read_sink("work"))
