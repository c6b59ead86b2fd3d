"""How a cluster stops: each row of the table of signals, with real processes and real signals."""

from __future__ import annotations

import time

import pytest

from tests.crash.cluster_kit import LONG, SIGINT, SIGKILL, SIGSTOP, SIGTERM, ToyCluster, wait_for
from tests.crash.conftest import StartCluster


def begin_units(cluster: ToyCluster, *kinds: str, seconds: float) -> list[int]:
    """One running unit for each worker."""
    units = [cluster.database.add(kind, seconds) for kind in kinds]
    for unit in units:
        cluster.database.wait_for_state(unit, "running")
    return units


def read_states(cluster: ToyCluster, units: list[int]) -> list[str]:
    return [cluster.database.read(unit, "state") for unit in units]


@pytest.mark.both_databases
def test_sigterm_lets_running_units_finish_and_starts_nothing_new(
    start_cluster: StartCluster,
) -> None:
    with start_cluster() as cluster:
        running = begin_units(cluster, "sleep", "sleep", seconds=1.5)
        waiting = [cluster.database.add("sleep") for _ in range(10)]
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
        assert read_states(cluster, running) == ["done"] * 2
        assert read_states(cluster, waiting) == ["ready"] * 10


def test_an_idle_cluster_stops_at_once(start_cluster: StartCluster) -> None:
    with start_cluster() as cluster:
        cluster.prove_it_works()
        started = time.monotonic()
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
        assert time.monotonic() - started < 10


@pytest.mark.parametrize("signum", [SIGTERM, SIGINT])
def test_a_signal_to_the_whole_group_is_one_orderly_stop(
    start_cluster: StartCluster, signum: int
) -> None:
    """Ctrl-C, and a service manager that signals every process, hit all of them at once."""
    with start_cluster() as cluster:
        running = begin_units(cluster, "sleep", "sleep", seconds=1.5)
        for _ in range(3):  # copies: make forwards it as well
            cluster.signal_group(signum)
        assert cluster.wait_for_exit() == 0
        assert read_states(cluster, running) == ["done"] * 2


def test_a_later_second_signal_gives_the_leases_back_at_once(start_cluster: StartCluster) -> None:
    with start_cluster() as cluster:
        running = begin_units(cluster, "sleep", "sleep", seconds=3600)
        cluster.signal(SIGTERM)
        signalled = time.monotonic()
        wait_for("a copy is one no more", lambda: time.monotonic() > signalled + 1.2)
        assert cluster.process.poll() is None
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
        assert read_states(cluster, running) == ["ready"] * 2
        assert [cluster.database.read(unit, "released") for unit in running] == [1, 1]


@pytest.mark.both_databases
def test_a_unit_longer_than_the_grace_is_given_back_within_it(start_cluster: StartCluster) -> None:
    with start_cluster(LONGWATCH_DRAIN_SECONDS=8) as cluster:
        long, short = begin_units(cluster, "sleep", "sleep", seconds=3600)
        cluster.database.execute("UPDATE toy SET seconds = 0 WHERE id = %s", short)
        started = time.monotonic()
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
        assert time.monotonic() - started < 8
        assert cluster.database.read(long, "state") == "ready"
        assert cluster.database.read(long, "released") == 1


def test_a_unit_that_can_not_let_go_is_killed_soon_after_the_grace(
    start_cluster: StartCluster,
) -> None:
    """C code that holds the GIL: not even the guardian runs. Its lease is left to expire."""
    with start_cluster(LONGWATCH_DRAIN_SECONDS=1) as cluster:
        (stuck,) = begin_units(cluster, "stuck", seconds=3600)
        started = time.monotonic()
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 70
        assert 1 <= time.monotonic() - started < 1 + 3 + 3
        assert cluster.database.read(stuck, "state") == "running"


def test_a_stop_without_any_worker_left_ends(start_cluster: StartCluster) -> None:
    """All workers killed at once, before the sentinel could make new ones and in the stop."""
    with start_cluster() as cluster:
        begin_units(cluster, "sleep", "sleep", seconds=3600)
        workers = cluster.list_pids("worker")
        cluster.signal(SIGTERM)
        for pid in workers:
            cluster.signal(SIGKILL, pid)
        assert cluster.wait_for_exit() == 0


def test_a_stop_gets_past_a_pusher_that_does_not_answer(start_cluster: StartCluster) -> None:
    """The sentinel waits for it for ever; the main process does not, once the units are stored."""
    with start_cluster() as cluster:
        running = begin_units(cluster, "sleep", "sleep", seconds=1)
        cluster.signal(SIGSTOP, cluster.list_pids("pusher")[0])
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit(LONG) == 70
        assert read_states(cluster, running) == ["done"] * 2


@pytest.mark.case(25)
def test_signals_during_the_start_stop_it_too(start_cluster: StartCluster) -> None:
    """Six clusters, each signalled at another moment of its first third of a second."""
    for number in range(6):
        with start_cluster() as cluster:
            begun = time.monotonic()
            wait_for("a moment", lambda: time.monotonic() >= begun + number / 20)  # noqa: B023
            cluster.signal_group(SIGTERM)
            assert cluster.wait_for_exit() == 0
