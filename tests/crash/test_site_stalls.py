"""A host that stood still for longer than its leases: what it does when it goes on is too late."""

from __future__ import annotations

import os

import pytest

from ledger.models import StepOutput, Task
from tests.crash.cluster_kit import SIGCONT, SIGTERM, wait_for
from tests.crash.conftest import StartSite
from tests.crash.flows import gated
from tests.crash.site_kit import (
    Noted,
    SiteCluster,
    assert_whole,
    read_kinds,
    stop_outside_of_a_write,
    wait_for_status,
)

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]

TRIALS = 20 if os.environ.get("LONGWATCH_TEST_PROOF") else 3


def wait_for_work(task: Task, cluster: SiteCluster, count: int) -> Noted:
    """Wait for that many attempts at the task's second step; the last of them."""

    def look() -> list[Noted]:
        found = [one for one in cluster.read_sink("work") if one.task == str(task.pk)]
        return found if len(found) >= count else []

    return wait_for(f"{count} attempts", look)[-1]


def choose_host(pid: int, hosts: tuple[SiteCluster, ...]) -> tuple[SiteCluster, ...]:
    """The hosts, the one of this worker first."""
    return tuple(sorted(hosts, key=lambda host: pid not in host.list_pids("worker")))


@pytest.mark.case(1)
@pytest.mark.timeout(60 * TRIALS)
def test_a_result_that_comes_after_the_reclaim_changes_nothing(start_site: StartSite) -> None:
    with start_site() as one, start_site() as two:
        for _ in range(TRIALS):
            task = one.submit(seconds=1, turns=1)
            late = wait_for_work(task, one, 1)
            asleep, awake = choose_host(late.pid, (one, two))
            stop_outside_of_a_write(asleep)
            wait_for_status(task, "completed")
            asleep.signal_group(SIGCONT)
            wait_for("it is refused", lambda t=task: "stale_write_refused" in read_kinds(t))
            task.refresh_from_db()
            assert (task.status, task.error, task.attempts) == ("completed", None, 0)
            kinds = ["completed", "reclaimed", "stale_write_refused", "submitted"]
            assert sorted(read_kinds(task)) == kinds
            assert_whole(task, 1)
            (output,) = StepOutput.objects.filter(task=task, step_name="work")
            assert f":{late.pid}:" not in output.worker
        awake.signal(SIGTERM)
        assert awake.wait_for_exit() == 0
        wait_for_status(one.submit(seconds=0, turns=1), "completed")
        assert "Traceback" not in one.read_log() + two.read_log()


@pytest.mark.case(2)
@pytest.mark.case(58)
def test_a_failure_that_comes_after_the_reclaim_costs_its_money_alone(
    start_site: StartSite,
) -> None:
    """The second worker is in the same step; neither its lease nor its count is touched."""
    with start_site() as one, start_site() as two:
        task = one.submit(gated, fails=True)
        asleep, _ = choose_host(wait_for_work(task, one, 1).pid, (one, two))
        wait_for("its first call is paid", lambda: task.spends.exists())
        stop_outside_of_a_write(asleep)
        second = wait_for_work(task, one, 2)
        asleep.let_go(1)
        asleep.signal_group(SIGCONT)
        wait_for("it is refused", lambda: "stale_write_refused" in read_kinds(task))
        task.refresh_from_db()
        assert (task.status, task.attempts, task.error) == ("running", 0, None)
        assert f":{second.pid}:" in task.lease_owner
        one.let_go(2)
        wait_for_status(task, "completed")
        assert sorted(read_kinds(task))[2:] == ["stale_write_refused", "submitted"]
        assert task.used_tokens_in == one.read_bill() == 200
        assert task.spends.filter(stale=True).count() == 1
