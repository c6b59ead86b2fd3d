"""Very much of something harmless: the worker stays small and keeps its lease, and nobody waits."""

from __future__ import annotations

import os
import time

import psutil
import pytest
from django.conf import settings

from ledger.models import Artifact, Task
from tests.crash.cluster_kit import SIGTERM
from tests.crash.site_kit import SiteCluster, read_kinds
from tests.poison.conftest import StartSite
from tests.poison.flows import canary, much

PROOF = bool(os.environ.get("LONGWATCH_TEST_PROOF"))
LINES = 10_000_000 if PROOF else 200_000
MEGABYTES = 300 if PROOF else 16
BEHIND = 100 if PROOF else 20
MIB = 1024 * 1024

pytestmark = [
    pytest.mark.case(44),
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(1800 if PROOF else 120),
]


def run_beside_others(cluster: SiteCluster, what: str, amount: int) -> tuple[Task, int]:
    """The task at its end, and by how many bytes its worker grew; those behind it end meanwhile."""
    task = cluster.submit(much, kind=what, amount=amount)
    (noted,) = cluster.wait_for_attempts(1, "overdo")
    behind = [cluster.submit(canary, kind="") for _ in range(BEHIND)]
    worker, until = psutil.Process(noted.pid), time.monotonic() + (1500 if PROOF else 90)
    least = most = worker.memory_info().rss
    waiting = len(behind)
    while not (task.finished_at and not waiting):
        assert time.monotonic() < until, (task.status, waiting)
        most = max(most, worker.memory_info().rss)
        time.sleep(0.02)
        task.refresh_from_db(fields=["status", "finished_at"])
        waiting = len(behind) - Task.objects.filter(workflow="canary", status="completed").count()
        if not task.finished_at:
            least = min(least, worker.memory_info().rss)
    task.refresh_from_db()
    assert_untouched(cluster, task)
    return task, most - least


def assert_untouched(cluster: SiteCluster, task: Task) -> None:
    """It ran once, on the lease that it was given."""
    assert (task.status, task.attempts, task.reclaims) == ("completed", 0, 0), task.error
    assert read_kinds(task) == ["submitted", "completed"]
    assert len(cluster.read_sink("overdo")) == 1
    cluster.signal(SIGTERM)
    assert cluster.wait_for_exit() == 0


def test_log_lines_without_end_cost_no_memory_and_keep_their_tail(start_site: StartSite) -> None:
    """PROOF: ten million lines, as case 44 has it."""
    with start_site() as cluster:
        task, grown = run_beside_others(cluster, "lines", LINES)
        assert grown < 48 * MIB, f"{grown / MIB:.0f} MiB"
        tail = task.outputs.get().log_tail.splitlines()
        assert tail[-1].endswith(f"line {LINES - 1} of text")
        assert 100 < len(tail) <= 200
        assert cluster.read_log().count("longwatch.step") < 11_000
    report(f"{LINES} lines", grown)


def test_a_very_large_output_keeps_its_lease_and_is_stored_whole(start_site: StartSite) -> None:
    """PROOF: 300 MB; one pass over it in C keeps the interpreter's lock for seconds, hence the
    product's own lease."""
    with start_site(LONGWATCH_LEASE_SECONDS=60, LONGWATCH_HEARTBEAT_SECONDS=15) as cluster:
        task, grown = run_beside_others(cluster, "text", MEGABYTES * 1_000_000)
        assert grown < 6 * MEGABYTES * 1_000_000 + 64 * MIB, f"{grown / MIB:.0f} MiB"
        (artifact,) = Artifact.objects.filter(task=task)
        assert artifact.blob.size == MEGABYTES * 1_000_000 + 2
    report(f"{MEGABYTES} MB", grown)


def report(what: str, grown: int) -> None:
    """Figures for the notes: `pytest -s`."""
    print(f"{settings.RING}: {what}, the worker grew by {grown / MIB:.0f} MiB")  # noqa: T201
