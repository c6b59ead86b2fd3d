"""A step that is busy keeps its lease: the heartbeat is no part of the work."""

from __future__ import annotations

import pytest

from tests.crash.cluster_kit import SIGTERM
from tests.crash.site_kit import wait_for_status
from tests.poison.conftest import StartSite
from tests.poison.flows import busy

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.case(10)]

KINDS = ("a loop", "a loop of events", "32 threads")
LEASE = 6.0


def test_a_busy_step_keeps_its_lease_and_runs_once(start_site: StartSite) -> None:
    """C code that keeps the interpreter's lock can't be covered in the worker: it loses the lease,
    what it returns is refused (test_poison), and an isolated step does not (test_isolation)."""
    given = {"LONGWATCH_LEASE_SECONDS": LEASE, "LONGWATCH_WORKERS": len(KINDS)}
    with start_site(**given) as cluster:
        tasks = [cluster.submit(busy, how=how, seconds=1.5 * LEASE) for how in KINDS]
        for task in tasks:
            wait_for_status(task, "completed")
        assert [(task.attempts, task.reclaims, task.fence) for task in tasks] == [(0, 0, 1)] * 3
        assert len(cluster.read_sink()) == len(KINDS)
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
