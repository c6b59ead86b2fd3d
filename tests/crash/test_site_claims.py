"""Many claimers, start after start, an impatient broker: each unit is begun once."""

from __future__ import annotations

import collections
import os
import threading
import time
from pathlib import Path

import pytest
from django.db import connection

from ledger.models import Task
from ledger.transitions import operators
from tests.crash.cluster_kit import LONG, SIGKILL, SIGTERM, wait_for
from tests.crash.conftest import StartSite
from tests.crash.site_kit import SiteCluster, wait_for_status
from tests.factories import OPERATOR

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]

PROOF = bool(os.environ.get("LONGWATCH_TEST_PROOF"))
TASKS = 2000 if PROOF else 120
RESTARTS = 30 if PROOF else 3


def wait_for_all(*clusters: SiteCluster, tasks: int) -> None:
    """Every task has completed, every unit was begun once, and no log speaks of trouble."""
    seconds = 60 + tasks / 5
    done = Task.objects.filter(status="completed")
    wait_for("all have completed", lambda: done.count() == tasks, seconds)
    begun = collections.Counter((n.task, n.step, n.turn) for n in clusters[0].read_sink())
    assert len(begun) == 3 * tasks
    assert set(begun.values()) == {1}
    for cluster in clusters:
        log = cluster.read_log()
        assert not [line for line in log.splitlines() if "ERROR" in line or "Traceback" in line]


@pytest.mark.case(4)
@pytest.mark.timeout(60 + TASKS)
def test_two_hosts_begin_each_unit_once(start_site: StartSite) -> None:
    """PROOF: 2,000 tasks, two hosts of four workers."""
    more = {"LONGWATCH_WORKERS": 4} if PROOF else {}
    with start_site(**more) as one, start_site(**more) as two:
        for _ in range(TASKS):
            one.submit(seconds=0, turns=1)
        wait_for_all(one, two, tasks=TASKS)
        hosts = {pid: host for host in (one, two) for pid in host.list_pids("worker")}
        assert len({hosts[noted.pid].mark for noted in one.read_sink()}) == 2, "both took part"


@pytest.mark.case(4)
@pytest.mark.timeout(120 + 20 * RESTARTS)
def test_a_start_takes_nothing_that_somebody_has_just_begun(start_site: StartSite) -> None:
    """Fifty tasks a second come in while clusters start and stop beside one that runs."""
    over, submitted = threading.Event(), []

    def submit_all() -> None:
        while not over.wait(0.02):
            submitted.append(steady.submit(seconds=0, turns=1))
        connection.close()

    with start_site() as steady:
        client = threading.Thread(target=submit_all)
        client.start()
        try:
            for _ in range(RESTARTS):
                with start_site() as young:
                    begun = len(submitted)
                    wait_for("tasks come in", lambda n=begun: len(submitted) > n + 20)
                    young.signal(SIGTERM)
                    assert young.wait_for_exit() == 0
        finally:
            over.set()
            client.join(LONG)
        wait_for_all(steady, tasks=len(submitted))


@pytest.mark.case(5)
def test_no_clock_of_a_broker_starts_a_unit_again(start_site: StartSite) -> None:
    """django-q2 is told to time out after 3 s and to deliver again after 5; the unit takes 8."""
    with start_site(DJANGO_SETTINGS_MODULE="tests.crash.impatient_settings") as cluster:
        task = cluster.submit(seconds=8, turns=1)
        wait_for_status(task, "completed")
        assert len(cluster.read_sink()) == 3
        assert (task.attempts, task.reclaims, task.fence) == (0, 0, 3)


@pytest.mark.case(5)
def test_what_waits_behind_a_long_unit_is_held_by_nobody(
    start_site: StartSite, tmp_path: Path
) -> None:
    """A host that is lost takes nothing with it but what it ran, and a cancel meanwhile holds."""
    impatient = {"DJANGO_SETTINGS_MODULE": "tests.crash.impatient_settings"}
    with start_site(**impatient) as lost:
        for _ in range(2):
            lost.submit(seconds=600, turns=1)
        lost.wait_for_attempts(2, "work")
        behind = [lost.submit(seconds=0, turns=1) for _ in range(20)]
        rows = Task.objects.filter(pk__in=[task.pk for task in behind])
        assert set(rows.values_list("status", "lease_owner")) == {("queued", "")}
        for task in behind[::4]:
            operators.cancel_task(task.pk, actor=OPERATOR)
        lost.signal_group(SIGKILL)
        killed = time.time()
        lost.process.wait(LONG)
    with start_site(**impatient) as next_one:
        wait_for("the others are done", lambda: rows.filter(status="completed").count() == 15)
        begun = {noted.task for noted in next_one.read_sink() if noted.at > killed}
        assert not begun & {str(task.pk) for task in behind[::4]}
        assert rows.filter(status="cancelled").count() == 5
        assert not rows.exclude(reclaims=0).exists()
