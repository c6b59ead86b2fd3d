"""Who is left behind: tasks without their worker's row, workers without their cluster."""

from __future__ import annotations

import time

import pytest

from ledger import clock
from ledger.models import Task, Worker
from tests.crash.cluster_kit import LONG, SIGKILL, SIGTERM, wait_for
from tests.crash.conftest import StartSite
from tests.crash.site_kit import assert_whole, read_kinds, wait_for_status
from tests.durable import LEASE

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]


def forget_workers() -> None:
    """What a retention job, an admin or a person with a database shell may do."""
    Worker.objects.all().delete()


@pytest.mark.case(7)
def test_a_task_is_taken_back_though_its_workers_row_is_gone(start_site: StartSite) -> None:
    with start_site() as cluster:
        task = cluster.submit(seconds=2, turns=1)
        (first,) = cluster.wait_for_attempts(1, "work")
        cluster.signal(SIGKILL, first.pid)
        forget_workers()
        killed = time.time()
        _, second = cluster.wait_for_attempts(2, "work")
        assert second.at - killed < LEASE + 7, "LEASE + 1 on an idle machine"
        wait_for_status(task, "completed")
        assert_whole(task, 1)
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0


@pytest.mark.case(7)
def test_tasks_of_workers_that_are_all_gone_wait_for_the_next_ones(start_site: StartSite) -> None:
    """No row, no process, ten leases later: the lease on the task itself is what counts."""
    with start_site() as cluster:
        tasks = [cluster.submit(seconds=2, turns=1) for _ in range(3)]
        cluster.wait_for_attempts(2, "work")
        cluster.signal_group(SIGKILL)
        cluster.process.wait(LONG)
        wait_for("all are gone", lambda: not cluster.find_living())
    forget_workers()
    Task.objects.filter(status="running").update(lease_until=clock.now(-30))
    with start_site() as cluster:
        for task in tasks:
            wait_for_status(task, "completed")
            assert_whole(task, 1)
            assert read_kinds(task).count("reclaimed") <= 1
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0


@pytest.mark.case(22)
@pytest.mark.parametrize("role", ["main", "sentinel"])
def test_workers_that_lost_their_cluster_end_their_unit_and_leave(
    role: str, start_site: StartSite
) -> None:
    """Beside the new cluster: no unit runs twice, none is begun by a worker of the old one."""
    with start_site() as old:
        task = old.submit(seconds=4, turns=2)
        (busy,) = old.wait_for_attempts(1, "work")
        old.signal(SIGKILL, old.list_pids("sentinel")[0] if role == "sentinel" else None)
        killed = time.time()
        with start_site() as new:
            wait_for("the idle ones have left", lambda: old.list_pids("worker") in ([busy.pid], []))
            others = [new.submit(seconds=0, turns=1) for _ in range(10)]
            for other in [*others, task]:
                wait_for_status(other, "completed")
            wait_for("nothing of the old one is left", lambda: not old.find_living())
            young = set(new.list_pids("worker"))
            assert {one.pid for one in new.read_sink() if one.at > killed} <= young
            assert len(new.find_living()) == 7, "main, sentinel, pusher, monitor, sender, 2 workers"
            new.signal(SIGTERM)
            assert new.wait_for_exit() == 0
        noted = [one for one in old.read_sink() if one.task == str(task.pk)]
        assert len(noted) == 4, "each unit once"
        assert [one.pid for one in noted[:2]] == [busy.pid] * 2
        assert old.process.wait(LONG) == (69 if role == "sentinel" else -SIGKILL)
    assert_whole(task, 2)
    assert read_kinds(task) == ["submitted", "completed"]
