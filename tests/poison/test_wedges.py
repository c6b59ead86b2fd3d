"""A unit that never lets go of the interpreter's lock, with a lock of the database in its hands."""

from __future__ import annotations

import time

import pytest
from django.conf import settings

from tests.crash.cluster_kit import SIGTERM, wait_for
from tests.crash.site_kit import read_kinds, wait_for_status
from tests.poison.conftest import StartSite
from tests.poison.flows import canary, wedged

pytestmark = [pytest.mark.case(10), pytest.mark.django_db(transaction=True)]

BOUND = 15.0
"""Lease 3 s, heartbeat 1 s, and a machine that is busy with other things."""


def test_a_worker_in_which_no_python_runs_is_killed_and_the_others_write_on(
    start_site: StartSite,
) -> None:
    """Long before its deadline of 600 s; nobody but that unit pays for it."""
    with start_site() as cluster:
        running = cluster.submit(canary, kind="")
        wait_for_status(running, "completed")
        wedge = cluster.submit(wedged, kind="")
        cluster.wait_for_attempts(1, "seize")
        began = time.monotonic()
        behind = [cluster.submit(canary, kind="") for _ in range(4)]
        for task in behind:
            wait_for_status(task, "completed")
            assert read_kinds(task) == ["submitted", "completed"]
        took = time.monotonic() - began
        assert took < BOUND
        wait_for_status(wedge, "completed")
        assert read_kinds(wedge) == ["submitted", "reclaimed", "completed"]
        told = wedge.events.get(kind="reclaimed").data["error"]["message"]
        assert "stuck in native code that keeps the interpreter's lock, so it was killed" in told
        wait_for("both workers run", lambda: len(cluster.list_pids("worker")) == 2)
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
    print(f"{settings.RING}: all stood still for {took:.1f} s")  # noqa: T201
