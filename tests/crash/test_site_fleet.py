"""What people do to real workers: drain one, or a whole cluster; declare one dead that lives."""

from __future__ import annotations

import pytest

from ledger import clock
from ledger.models import AuditEntry, StepOutput, Task, Worker
from ledger.transitions.workers import declare_dead, drain_worker, undrain_worker
from tests.crash.cluster_kit import SIGCONT, SIGKILL, wait_for
from tests.crash.conftest import StartSite
from tests.crash.flows import gated
from tests.crash.site_kit import (
    SiteCluster,
    assert_whole,
    read_kinds,
    stop_outside_of_a_write,
    wait_for_status,
)
from tests.factories import OPERATOR

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]


def find_holder(task: Task) -> Worker:
    """The worker that runs the task."""

    def look() -> str:
        task.refresh_from_db()
        return task.lease_owner

    return Worker.objects.get(pk=wait_for("it is held", look))


def wait_until_drained(*owners: str) -> None:
    """Wait until these have heard of it and say so."""
    rows = Worker.objects.filter(owner__in=owners, draining=True)
    wait_for("they drain", lambda: rows.count() == len(owners))


def find_pid(owner: str) -> int:
    return int(owner.split(":")[1])


def list_units(owner: str) -> int:
    return StepOutput.objects.filter(worker=owner).count()


def start_one(start_site: StartSite) -> SiteCluster:
    return start_site(LONGWATCH_WORKERS=1)


def test_a_draining_worker_ends_its_unit_and_claims_nothing_until_it_is_let(
    start_site: StartSite,
) -> None:
    with start_one(start_site) as site:
        task = site.submit(gated)
        site.wait_for_attempts(1, "work")
        owner = find_holder(task).owner
        assert drain_worker(owner, actor=OPERATOR, reason="new kernel") == 1
        assert drain_worker(owner, actor=OPERATOR) == 0
        wait_until_drained(owner)
        site.let_go(1)
        wait_for_status(task, "queued")  # the unit is in; the next one waits for somebody
        assert (task.step_name, task.attempts, task.reclaims) == ("end", 0, 0)
        before = list_units(owner)
        seen = Worker.objects.get(pk=owner).seen_at
        wait_for("it beats on", lambda: Worker.objects.get(pk=owner).seen_at > seen)
        task.refresh_from_db()
        assert (task.status, list_units(owner)) == ("queued", before)
        assert undrain_worker(owner, actor=OPERATOR) == 1
        wait_for_status(task, "completed")
        assert_whole(task, 1)
        assert StepOutput.objects.get(task=task, step_name="end").worker == owner
    entries = AuditEntry.objects.filter(target=f"worker:{owner}").order_by("pk")
    assert [(e.action, e.reason) for e in entries] == [
        ("drain_worker", "new kernel"), ("undrain_worker", ""),
    ]  # fmt: skip


def test_a_process_that_comes_into_a_draining_cluster_drains_as_well(start_site: StartSite) -> None:
    with start_site() as site:
        first = wait_for("two workers", lambda: len(o := list(Worker.objects.all())) == 2 and o)
        owners = [row.owner for row in first]
        assert first[0].cluster == first[1].cluster != ""
        assert drain_worker(owners[0], actor=OPERATOR, cluster=True) == 2
        wait_until_drained(*owners)
        site.signal(SIGKILL, find_pid(owners[0]))
        fresh = wait_for(
            "another", lambda: Worker.objects.exclude(pk__in=owners).filter(draining=True).first()
        )
        task = site.submit(seconds=0, turns=1)
        seen = fresh.seen_at
        wait_for("it beats on", lambda: Worker.objects.get(pk=fresh.pk).seen_at > seen)
        task.refresh_from_db()
        assert task.status == "queued"
        undrain_worker(fresh.owner, actor=OPERATOR, cluster=True)
        wait_for_status(task, "completed")


def test_a_worker_that_is_declared_dead_and_lives_writes_nothing_and_ends(
    start_site: StartSite,
) -> None:
    """Its lease has a minute to go; another worker takes the task at once."""
    long = {"LONGWATCH_LEASE_SECONDS": 60, "LONGWATCH_WORKERS": 1}
    with start_site(**long) as one, start_site(**long) as two:
        task = one.submit(gated)
        (first,) = one.wait_for_attempts(1, "work")
        dead = find_holder(task)
        wait_for("it is in no transaction", lambda: task.spends.exists())
        host = one if first.pid in one.list_pids("worker") else two
        stop_outside_of_a_write(host, first.pid)
        task.refresh_from_db()
        assert task.lease_until is not None
        assert (task.lease_until - clock.read()).total_seconds() > 30
        assert declare_dead(dead.owner, actor=OPERATOR, reason="its board is on fire") == 1
        second = one.wait_for_attempts(2, "work")[-1]
        assert second.pid != first.pid
        task.refresh_from_db()
        assert task.reclaims == 1
        lost = task.events.get(kind="reclaimed")
        assert (lost.actor, lost.data["reason"]) == (str(OPERATOR), "its board is on fire")
        one.let_go(1)
        host.signal(SIGCONT, first.pid)
        wait_for("it is refused", lambda: "stale_write_refused" in read_kinds(task))
        one.let_go(2)
        wait_for_status(task, "completed")
        wait_for("it ends", lambda: first.pid not in host.list_pids("worker"))
        row = Worker.objects.get(pk=dead.owner)
        assert row.told == "dead"
        assert row.seen_at < row.stopped_at
        outputs = StepOutput.objects.filter(task=task, step_name__in=("work", "end"))
        assert {output.worker for output in outputs}.isdisjoint({dead.owner})
        assert_whole(task, 1)
        crew = Worker.objects.filter(cluster=row.cluster, stopped_at=None)
        wait_for("another is in its place", crew.exists)
