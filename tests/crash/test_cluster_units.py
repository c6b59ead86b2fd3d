"""What a unit can do to its worker, and what the cluster makes of it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import pytest

from ledger import wakeups
from tests.crash.cluster_kit import SIGKILL, SIGTERM, ToyCluster, is_alive, wait_for
from tests.crash.conftest import StartCluster
from tests.pg import Cluster


def test_a_unit_past_its_deadline_ends_and_its_worker_goes_on(start_cluster: StartCluster) -> None:
    with start_cluster() as cluster:
        unit = cluster.database.add("sleep", 3600, deadline=0.5)
        pid = cluster.database.wait_for_state(unit, "UnitTimeout")
        assert pid in cluster.list_pids("worker")
        cluster.prove_it_works()


@pytest.mark.parametrize("kind", ["stuck", "deaf"])
def test_a_unit_that_will_not_end_takes_its_worker_along(
    start_cluster: StartCluster, kind: str
) -> None:
    """In C with the GIL held, or swallowing every exception: the timer in C ends the process."""
    with start_cluster() as cluster:
        unit = cluster.database.add(kind, 3600, deadline=0.5)
        pid = cluster.database.wait_for_state(unit, "running")
        wait_for("its worker is gone", lambda: not is_alive(pid))
        assert "Timeout (0:00:01.4" in cluster.read_log()
        assert "run_unit" in cluster.read_log()
        cluster.prove_it_works()
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0


def test_a_worker_is_replaced_after_so_many_tickets(start_cluster: StartCluster) -> None:
    with start_cluster(LONGWATCH_TICKET_SECONDS=0.1, LONGWATCH_RECYCLE_TICKETS=5) as cluster:
        first = set(cluster.list_pids("worker"))
        wait_for("all are new", lambda: not first & set(cluster.list_pids("worker")))
        cluster.prove_it_works()
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
        assert "after death" not in cluster.read_log()


def test_a_thread_left_behind_does_not_keep_a_worker_from_leaving(
    start_cluster: StartCluster,
) -> None:
    """The interpreter would wait for it for ever, and the pool would be one worker short."""
    with start_cluster() as cluster:
        unit = cluster.database.add("threads")
        pid = cluster.database.wait_for_state(unit, "done")
        cluster.signal(SIGTERM, pid)
        wait_for("it has left", lambda: not is_alive(pid))
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0


def test_a_process_that_a_unit_forked_does_not_outlive_the_cluster(
    start_cluster: StartCluster,
) -> None:
    """It has left the session and ignores the signals; the rest has stopped long before. The toy
    loop does not look after its unit, so the main process does, as for a killed worker."""
    with start_cluster() as cluster:
        cluster.database.wait_for_state(cluster.database.add("forks"), "done")
        assert len(cluster.list_pids("stray")) == 1
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0


def test_a_unit_that_kills_its_worker_costs_one_worker(start_cluster: StartCluster) -> None:
    with start_cluster() as cluster:
        pid = cluster.database.wait_for_state(cluster.database.add("dies"), "running")
        wait_for("it is dead and reaped", lambda: not is_alive(pid))
        wait_for("another worker runs", lambda: len(cluster.list_pids("worker")) == 2)
        cluster.prove_it_works()


def test_a_datagram_wakes_an_idle_worker(
    start_cluster: StartCluster, record_property: pytest.RecordProperty
) -> None:
    with start_cluster() as cluster:
        addresses = wakeups.derive_addresses(cluster.database.url.removeprefix("sqlite:///"))
        measure_latency(cluster, record_property, lambda: wakeups.send(addresses))


@pytest.mark.postgresql
def test_a_notification_wakes_an_idle_worker(
    start_cluster: StartCluster, record_property: pytest.RecordProperty
) -> None:
    with start_cluster() as cluster:
        measure_latency(
            cluster, record_property, lambda: cluster.database.execute("NOTIFY longwatch")
        )


def measure_latency(
    cluster: ToyCluster, record_property: pytest.RecordProperty, wake: Callable[[], object]
) -> None:
    """From the commit to the first instruction of the unit, one by one in an idle cluster."""
    waits = []
    cluster.prove_it_works()
    for _ in range(20):
        begun = time.monotonic()
        unit = cluster.database.add("sleep")
        wake()
        cluster.database.wait_for_state(unit, "done")
        waits.append(cluster.database.read(unit, "begun") - begun)
    record_property("submit to start, ms, p50", round(statistics.median(waits) * 1000, 1))
    assert statistics.median(waits) < 0.5


@pytest.mark.postgresql
def test_an_outage_of_the_database_ends_no_worker(
    start_cluster: StartCluster, toy_server: Cluster
) -> None:
    with start_cluster() as cluster:
        cluster.prove_it_works()
        workers = cluster.list_pids("worker")
        cluster.database.close()
        toy_server.kill()
        wait_for("the outage is noticed", lambda: "can't reach the database" in cluster.read_log())
        toy_server.start()
        cluster.prove_it_works()
        assert cluster.list_pids("worker") == workers


@pytest.mark.postgresql
def test_a_cluster_stops_while_the_database_is_away(
    start_cluster: StartCluster, toy_server: Cluster
) -> None:
    with start_cluster() as cluster:
        cluster.prove_it_works()
        cluster.database.close()
        toy_server.kill()
        cluster.signal(SIGTERM)
        try:
            assert cluster.wait_for_exit() == 0
        finally:
            toy_server.start()


@pytest.fixture
def with_web(start_cluster: StartCluster) -> ToyCluster:
    """A cluster that keeps a companion."""
    cluster = start_cluster()
    cluster.command = ("-m", "tests.crash.toy_up")
    return cluster


def test_a_companion_stops_with_the_cluster(with_web: ToyCluster) -> None:
    with with_web as cluster:
        assert len(cluster.list_pids("web")) == 1
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0


def test_a_companion_that_ends_by_itself_ends_the_cluster(with_web: ToyCluster) -> None:
    with with_web as cluster:
        unit = cluster.database.add("sleep", 1)
        cluster.database.wait_for_state(unit, "running")
        cluster.signal(SIGKILL, cluster.list_pids("web")[0])
        assert cluster.wait_for_exit() == 69
        assert cluster.database.read(unit, "state") == "done"


def test_a_companion_dies_with_the_main_process(with_web: ToyCluster) -> None:
    with with_web as cluster:
        cluster.signal(SIGKILL)
        wait_for("nothing is left running", lambda: not cluster.find_living())
