"""Any process of a cluster may die at any moment. What must go on goes on, what must end ends."""

from __future__ import annotations

import time

import pytest

from tests.crash.cluster_kit import LONG, SIGCONT, SIGKILL, SIGSTOP, SIGTERM, ToyCluster, wait_for
from tests.crash.conftest import StartCluster


def kill_and_wait_for_the_next(cluster: ToyCluster, role: str, pid: int) -> None:
    cluster.signal(SIGKILL, pid)
    wait_for(
        f"another {role} runs",
        lambda: pid not in (pids := cluster.list_pids(role)) and pids,
    )


@pytest.mark.both_databases
def test_a_busy_worker_that_is_killed_is_replaced(start_cluster: StartCluster) -> None:
    with start_cluster() as cluster:
        lost = cluster.database.add("sleep", 3600)
        pid = cluster.database.wait_for_state(lost, "running")
        kill_and_wait_for_the_next(cluster, "worker", pid)
        wait_for("two workers run", lambda: len(cluster.list_pids("worker")) == 2)
        cluster.prove_it_works()
        assert cluster.database.read(lost, "runs") == 1
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0


@pytest.mark.case(16)
def test_idle_workers_killed_in_a_row_stop_nothing(start_cluster: StartCluster) -> None:
    with start_cluster() as cluster:
        for turn in range(6):
            pid = cluster.list_pids("worker")[turn % 2]
            kill_and_wait_for_the_next(cluster, "worker", pid)
            wait_for("two workers run", lambda: len(cluster.list_pids("worker")) == 2)
        cluster.prove_it_works()
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0


@pytest.mark.case(16)
def test_workers_killed_while_they_wait_for_a_ticket_stop_nothing(
    start_cluster: StartCluster,
) -> None:
    """Over django-q2's own queue no worker ever runs again: the dead one keeps the lock."""
    with start_cluster(LONGWATCH_TICKET_SECONDS=0.2) as cluster:
        cluster.prove_it_works()
        pusher, *_ = cluster.list_pids("pusher")
        cluster.signal(SIGSTOP, pusher)
        unit = cluster.database.add("sleep", 0.1)
        wait_for("all tickets are used up", lambda: not has_taken(cluster, unit))
        for pid in cluster.list_pids("worker"):
            kill_and_wait_for_the_next(cluster, "worker", pid)
        cluster.signal(SIGCONT, pusher)
        cluster.database.wait_for_state(unit, "done")
        cluster.prove_it_works()
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0


def has_taken(cluster: ToyCluster, unit: int) -> bool:
    """Whether a worker takes this unit within a second, ten times as long as any should need."""
    try:
        wait_for("taken", lambda: cluster.database.read(unit, "runs") > 0, 1)
    except AssertionError:
        return False
    cluster.database.wait_for_state(unit, "done")
    cluster.database.execute("UPDATE toy SET state = 'ready', runs = 0 WHERE id = %s", unit)
    return True


@pytest.mark.case(16)
def test_workers_killed_between_tickets_stop_nothing(start_cluster: StartCluster) -> None:
    """Tickets so short that workers do little else than hand in one and fetch the next."""
    with start_cluster(LONGWATCH_TICKET_SECONDS=0.01) as cluster:
        for _ in range(6):
            kill_and_wait_for_the_next(cluster, "worker", cluster.list_pids("worker")[0])
        cluster.prove_it_works()
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0


@pytest.mark.case(16)
@pytest.mark.parametrize("role", ["pusher", "monitor"])
def test_the_helpers_of_the_pool_may_be_killed(start_cluster: StartCluster, role: str) -> None:
    with start_cluster(LONGWATCH_TICKET_SECONDS=0.2) as cluster:
        for _ in range(3):
            wait_for(f"a {role} runs", lambda: cluster.list_pids(role))
            kill_and_wait_for_the_next(cluster, role, cluster.list_pids(role)[0])
        cluster.prove_it_works()
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0


def test_sigterm_to_one_worker_replaces_it_after_its_unit(start_cluster: StartCluster) -> None:
    with start_cluster() as cluster:
        unit = cluster.database.add("sleep", 1.5)
        pid = cluster.database.wait_for_state(unit, "running")
        cluster.signal(SIGTERM, pid)
        wait_for("it has left", lambda: pid not in cluster.list_pids("worker"))
        assert cluster.database.read(unit, "state") == "done"
        wait_for("two workers run", lambda: len(cluster.list_pids("worker")) == 2)
        cluster.prove_it_works()
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0


@pytest.mark.case(22)
def test_without_its_sentinel_the_cluster_finishes_its_units_and_fails(
    start_cluster: StartCluster,
) -> None:
    with start_cluster() as cluster:
        unit = cluster.database.add("sleep", 1.5)
        cluster.database.wait_for_state(unit, "running")
        cluster.signal(SIGKILL, cluster.list_pids("sentinel")[0])
        assert cluster.wait_for_exit() == 69
        assert cluster.database.read(unit, "state") == "done"


@pytest.mark.case(22)
def test_without_its_main_process_nothing_is_left_and_nothing_new_begins(
    start_cluster: StartCluster,
) -> None:
    with start_cluster() as cluster:
        unit = cluster.database.add("sleep", 3)
        busy = cluster.database.wait_for_state(unit, "running")
        cluster.signal(SIGKILL)
        cluster.process.wait(LONG)
        wait_for("the idle one has left", lambda: cluster.list_pids("worker") == [busy])
        later = cluster.database.add("sleep")
        wait_for("nothing is left running", lambda: not cluster.find_living())
        assert cluster.database.read(unit, "state") == "done"
        assert cluster.database.read(later, "runs") == 0


@pytest.mark.case(22)
def test_an_orphan_gives_its_unit_back_after_the_grace(start_cluster: StartCluster) -> None:
    with start_cluster(LONGWATCH_DRAIN_SECONDS=1) as cluster:
        unit = cluster.database.add("sleep", 3600)
        cluster.database.wait_for_state(unit, "running")
        cluster.signal(SIGKILL)
        cluster.process.wait(LONG)
        wait_for("nothing is left running", lambda: not cluster.find_living())
        assert cluster.database.read(unit, "state") == "ready"
        assert cluster.database.read(unit, "released") == 1


@pytest.mark.case(16)
def test_a_sentinel_that_hangs_ends_the_cluster_after_the_units(
    start_cluster: StartCluster,
) -> None:
    with start_cluster(LONGWATCH_WEDGE_SECONDS=1) as cluster:
        unit = cluster.database.add("sleep", 3)
        cluster.database.wait_for_state(unit, "running")
        cluster.signal(SIGSTOP, cluster.list_pids("sentinel")[0])
        started = time.monotonic()
        assert cluster.wait_for_exit() == 70
        assert time.monotonic() - started < 20
        assert cluster.database.read(unit, "state") == "done"
        assert "the sentinel is stuck" in cluster.read_log()


@pytest.mark.case(16)
def test_a_pool_without_tickets_ends_the_cluster(start_cluster: StartCluster) -> None:
    with start_cluster(LONGWATCH_WEDGE_SECONDS=1, LONGWATCH_TICKET_SECONDS=0.5) as cluster:
        cluster.prove_it_works()
        cluster.signal(SIGSTOP, cluster.list_pids("pusher")[0])
        started = time.monotonic()
        assert cluster.wait_for_exit() == 70
        assert time.monotonic() - started < 20
        assert "waited in vain" in cluster.read_log()


def test_a_cluster_that_was_stopped_as_a_whole_goes_on(start_cluster: StartCluster) -> None:
    """SIGSTOP to all, as a suspended machine: nobody is taken for stuck when time goes on."""
    with start_cluster(LONGWATCH_WEDGE_SECONDS=1) as cluster:
        cluster.signal_group(SIGSTOP)
        stopped = time.monotonic()
        wait_for("longer than the wedge", lambda: time.monotonic() > stopped + 2)
        cluster.signal_group(SIGCONT)
        cluster.prove_it_works()
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0


@pytest.mark.case(16)
def test_the_births_of_many_workers_are_no_silence(start_cluster: StartCluster) -> None:
    """Each cuts a look of the main process short: more of them than looks until the wedge."""
    cluster = start_cluster(LONGWATCH_WEDGE_SECONDS=5)
    cluster.workers, cluster.command = 40, (*cluster.command[:-1], "40")
    with cluster:
        cluster.prove_it_works()
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
