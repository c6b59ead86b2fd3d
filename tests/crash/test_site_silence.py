"""The database says nothing for longer than every lease: nobody is taken for lost after it."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator

import pytest
from django.db import connection, transaction

from ledger import clock
from ledger.models import Task
from tests.chaos.proxy import Proxy
from tests.crash.cluster_kit import SIGTERM, wait_for
from tests.crash.conftest import StartSite
from tests.crash.site_kit import SiteCluster, assert_whole, read_kinds, wait_for_status
from tests.durable import LEASE

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]

PLAIN = "?sslmode=disable&gssencmode=disable"
"""The proxy reads no other greeting."""
SILENCE = 2 * LEASE + 1
"""More than two leases."""


def keep_silent() -> None:
    """Wait out the silence; there is no condition to wait for, but that nothing happens."""
    until = time.monotonic() + SILENCE
    wait_for("two leases are over", lambda: time.monotonic() > until)


def begin_units(*clusters: SiteCluster) -> list[Task]:
    """A unit in every worker, which ends after the silence."""
    tasks = [clusters[0].submit(seconds=SILENCE + 5, turns=1) for _ in range(2 * len(clusters))]
    clusters[0].wait_for_attempts(len(tasks), "work")
    # Each sweeper has had contact for so long that it would take a task at once.
    held = time.monotonic()
    wait_for("all sweep", lambda: time.monotonic() > held + 2.5)
    return tasks


def assert_nobody_was_lost(tasks: list[Task], cluster: SiteCluster) -> None:
    """Each unit was begun once, by the worker that ends it, and nobody pays for the silence."""
    for task in tasks:
        wait_for_status(task, "completed")
        assert read_kinds(task) == ["submitted", "completed"]
        assert (task.attempts, task.reclaims, task.releases) == (0, 0, 0)
        assert_whole(task, 1)
    assert len(cluster.read_sink("work")) == len(tasks)


@contextlib.contextmanager
def hold_everything() -> Iterator[None]:
    """SQLite: another process holds the write lock. PostgreSQL: a session holds every row, as an
    administrator's open transaction does."""
    if connection.vendor == "postgresql":
        with transaction.atomic():
            list(Task.objects.select_for_update())
            yield
        return
    outside = sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None, timeout=30)
    with contextlib.closing(outside):
        outside.execute("BEGIN IMMEDIATE")
        yield
        outside.execute("ROLLBACK")


def test_a_heartbeat_on_a_locked_row_waits_and_counts(start_site: StartSite) -> None:
    """It is in line before any sweeper; those of a second host look all the while."""
    with start_site() as cluster, start_site():
        tasks = begin_units(cluster)
        with hold_everything():
            keep_silent()
        assert_nobody_was_lost(tasks, cluster)
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0


@pytest.fixture
def proxy(site_env: dict[str, str]) -> Iterator[Proxy]:
    """Between the clusters, not the test, and their PostgreSQL."""
    port = int(connection.settings_dict["PORT"])
    with Proxy(port) as found:
        url = site_env["LONGWATCH_DATABASE_URL"]
        site_env["LONGWATCH_DATABASE_URL"] = f"{url.replace(str(port), str(found.port))}{PLAIN}"
        yield found


AWAY: dict[str, Callable[[Proxy], None]] = {
    "line silent": lambda proxy: None,
    "sessions gone": lambda proxy: proxy.drop(),
}


@pytest.mark.postgresql
@pytest.mark.parametrize("end", AWAY.values(), ids=AWAY)
def test_after_an_outage_no_worker_that_lives_loses_its_lease(
    end: Callable[[Proxy], None], proxy: Proxy, start_site: StartSite
) -> None:
    """Two hosts, four units, all leases over when the line is back: everybody beats first."""
    with start_site() as one, start_site() as two:
        tasks = begin_units(one, two)
        proxy.stall()
        keep_silent()
        assert not Task.objects.filter(lease_until__gt=clock.now()).exists(), "all are over"
        end(proxy)
        proxy.flow()
        assert_nobody_was_lost(tasks, one)
        for cluster in (one, two):
            cluster.signal(SIGTERM)
            assert cluster.wait_for_exit() == 0
