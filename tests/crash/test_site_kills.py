"""Real workers on the real ledger, killed for real."""

from __future__ import annotations

import time

import pytest

from ledger.transitions import operators
from tests.crash.cluster_kit import SIGCONT, SIGKILL, SIGTERM, wait_for
from tests.crash.conftest import StartSite
from tests.crash.site_kit import assert_whole, read_kinds, stop_outside_of_a_write, wait_for_status
from tests.durable import LEASE
from tests.factories import OPERATOR

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]


def test_a_killed_workers_unit_runs_again_soon_after_its_lease_is_over(
    start_site: StartSite,
) -> None:
    with start_site() as cluster:
        task = cluster.submit(seconds=2, turns=2)
        (first,) = cluster.wait_for_attempts(1, "work")
        cluster.signal(SIGKILL, first.pid)
        killed = time.time()
        _, second = cluster.wait_for_attempts(2, "work")
        assert second.at - killed < LEASE + 7, "LEASE + 1 on an idle machine"
        wait_for_status(task, "completed")
        assert len(cluster.read_sink("work", 0)) == 2
        assert len(cluster.read_sink("work", 1)) == 1
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
    assert_whole(task, 2)
    assert read_kinds(task) == ["submitted", "reclaimed", "completed"]
    assert task.attempts == 0


@pytest.mark.parametrize("whole_group", [False, True])
def test_a_stop_stores_the_unit_in_hand_and_charges_nobody(
    start_site: StartSite, whole_group: bool
) -> None:
    with start_site() as cluster:
        task = cluster.submit(seconds=1.5, turns=4)
        cluster.wait_for_attempts(1, "work")
        (cluster.signal_group if whole_group else cluster.signal)(SIGTERM)
        assert cluster.wait_for_exit() == 0
        attempts = len(cluster.read_sink())
    task.refresh_from_db()
    assert task.status == "queued"
    assert task.outputs.count() == attempts, "what was begun is stored"
    assert (task.attempts, task.reclaims, task.releases) == (0, 0, 0)
    assert read_kinds(task) == ["submitted"]
    with start_site() as cluster:
        wait_for_status(task, "completed")
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
    assert_whole(task, 4)
    assert len(cluster.read_sink()) == 6, "no unit ran twice"


def test_a_unit_longer_than_the_drain_is_given_back_uncharged(start_site: StartSite) -> None:
    with start_site(LONGWATCH_DRAIN_SECONDS=1) as cluster:
        task = cluster.submit(seconds=60, turns=1)
        cluster.wait_for_attempts(1, "work")
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
    task.refresh_from_db()
    assert (task.status, task.attempts, task.releases) == ("queued", 0, 1)
    assert read_kinds(task) == ["submitted", "released"]


@pytest.mark.case(1)
def test_a_worker_that_slept_past_its_lease_can_write_nothing(start_site: StartSite) -> None:
    with start_site() as cluster:
        task = cluster.submit(seconds=1, turns=1)
        (first,) = cluster.wait_for_attempts(1, "work")
        stop_outside_of_a_write(cluster, first.pid)
        cluster.wait_for_attempts(2, "work")
        wait_for_status(task, "completed")
        cluster.signal(SIGCONT, first.pid)
        wait_for("the late write is refused", lambda: "stale_write_refused" in read_kinds(task))
        assert read_kinds(task).count("stale_write_refused") == 1
        other = cluster.submit(seconds=0.01, turns=1)
        wait_for_status(other, "completed")
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
    task.refresh_from_db()
    assert task.status == "completed"
    assert_whole(task, 1)


@pytest.mark.case(53)
def test_stop_now_ends_the_unit_and_frees_its_worker(start_site: StartSite) -> None:
    with start_site() as cluster:
        tasks = [cluster.submit(seconds=600, turns=1) for _ in range(2)]
        wait_for("both workers are busy", lambda: len(cluster.read_sink("work")) == 2)
        for task in tasks:
            operators.cancel_task(task.id, actor=OPERATOR)
            operators.stop_task(task.id, actor=OPERATOR)
            task.refresh_from_db()
            assert (task.status, task.lease_owner) == ("cancelled", "")
        other = cluster.submit(seconds=0.01, turns=1)
        wait_for_status(other, "completed")
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
    for task in tasks:
        assert read_kinds(task) == ["submitted", "cancel_requested", "cancelled"]


@pytest.mark.case(16)
@pytest.mark.case(16)
def test_tasks_of_two_workers_survive_a_storm_of_kills(start_site: StartSite) -> None:
    with start_site(LONGWATCH_MAX_RECLAIMS=50) as cluster:
        tasks = [cluster.submit(seconds=0.3, turns=5) for _ in range(6)]
        for _ in range(8):
            before = len(cluster.read_sink())
            wait_for("work goes on", lambda before=before: len(cluster.read_sink()) > before + 1)
            victim = cluster.read_sink()[-1].pid
            if victim in cluster.list_pids("worker"):
                cluster.signal(SIGKILL, victim)
        for task in tasks:
            wait_for_status(task, "completed")
            assert_whole(task, 5)
            assert task.attempts == 0
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
