"""Children of the pool killed at random, and a fleet that comes back all at once."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from ledger.models import Task
from ledger.transitions import operators
from tests.chaos.proxy import Proxy
from tests.crash.cluster_kit import SIGCONT, SIGKILL, SIGTERM, wait_for
from tests.crash.conftest import StartSite
from tests.crash.site_kit import (
    assert_whole,
    read_kinds,
    stop_outside_of_a_write,
    wait_for_status,
)
from tests.durable import HEARTBEAT, LEASE
from tests.factories import OPERATOR

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]

PROOF = bool(os.environ.get("LONGWATCH_TEST_PROOF"))
TASKS, KILLS, PAUSE = (300, 30, 2.0) if PROOF else (30, 6, 0.7)
ROLES = ("worker", "worker", "pusher", "monitor")


@pytest.mark.case(16)
@pytest.mark.timeout(300 if PROOF else 120)
def test_a_pool_whose_children_are_killed_at_random_comes_to_the_end_of_its_tasks(
    start_site: StartSite,
) -> None:
    """Beside units that run into the timeout of django-q2's own; nobody restarts anything."""
    dice = random.Random(16)
    impatient = {"DJANGO_SETTINGS_MODULE": "tests.crash.impatient_settings"}
    with start_site(**impatient, LONGWATCH_MAX_RECLAIMS=50) as cluster:
        tasks = [cluster.submit(seconds=0.2, turns=1) for _ in range(TASKS)]
        tasks.append(cluster.submit(seconds=4, turns=1))
        for _ in range(KILLS):
            due = time.monotonic() + PAUSE
            wait_for("the next kill is due", lambda due=due: time.monotonic() > due)
            role = dice.choice(ROLES)
            victims = wait_for(f"a {role} runs", lambda role=role: cluster.list_pids(role))
            cluster.signal(SIGKILL, dice.choice(victims))
        wait_for_status(cluster.submit(seconds=0, turns=1), "completed")
        for task in tasks:
            wait_for_status(task, "completed")
            assert_whole(task, 1)
            assert task.attempts == 0
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0


@pytest.mark.case(16)
@pytest.mark.parametrize("stopped", ["all", "worker", "pusher"])
def test_health_is_red_while_the_pool_stands_still(
    stopped: str, start_site: StartSite, client: Client, settings: Any
) -> None:
    """All of it, or its workers alone; without its pusher each has life in it and no ticket."""
    settings.LONGWATCH_LEASE_SECONDS = LEASE
    settings.LONGWATCH_HEARTBEAT_SECONDS = HEARTBEAT

    def is_well() -> bool:
        return client.get("/healthz").status_code == 200

    def tell_reasons() -> Any:
        return client.get("/healthz").json()["reasons"]

    with start_site(LONGWATCH_TICKET_SECONDS=1, LONGWATCH_WEDGE_SECONDS=30 * LEASE) as cluster:
        wait_for("green", is_well)
        if stopped == "all":
            stop_outside_of_a_write(cluster)
        for pid in [] if stopped == "all" else cluster.list_pids(stopped):
            stop_outside_of_a_write(cluster, pid)
        # Its own probe may first meet the lock that another process of the pool holds for a moment.
        wait_for("red for its reason", lambda: tell_reasons() == ["no worker beats"])
        cluster.signal_group(SIGCONT)
        wait_for("green again", is_well)
        wait_for_status(cluster.submit(seconds=0, turns=1), "completed")
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0


@pytest.mark.case(53)
def test_a_cancel_outlives_the_worker_that_was_to_hear_it(start_site: StartSite) -> None:
    with start_site() as cluster:
        task = cluster.submit(seconds=60, turns=1)
        (first,) = cluster.wait_for_attempts(1, "work")
        operators.cancel_task(task.pk, actor=OPERATOR)
        cluster.signal(SIGKILL, first.pid)
        wait_for_status(task, "cancelled")
        assert read_kinds(task) == ["submitted", "cancel_requested", "reclaimed", "cancelled"]
        wait_for_status(cluster.submit(seconds=0, turns=1), "completed")
        assert len([one for one in cluster.read_sink() if one.task == str(task.pk)]) == 2


@pytest.fixture
def proxy(site_env: dict[str, str]) -> Iterator[Proxy]:
    """Between the clusters, not the test, and their PostgreSQL."""
    port = int(connection.settings_dict["PORT"])
    with Proxy(port) as found:
        url = site_env["LONGWATCH_DATABASE_URL"].replace(str(port), str(found.port))
        site_env["LONGWATCH_DATABASE_URL"] = f"{url}?sslmode=disable&gssencmode=disable"
        yield found


@pytest.mark.case(61)
@pytest.mark.postgresql
def test_a_fleet_that_lost_its_database_opens_no_more_sessions_than_it_had_room_for(
    proxy: Proxy, start_site: StartSite
) -> None:
    """Three a worker (its own, its guardian's, the one that listens), and the one that sends
    alerts. PROOF: fifty workers."""
    workers = 50 if PROOF else 8

    def count_sessions() -> int:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'longwatch' "
                "AND datname = current_database() AND pid <> pg_backend_pid()"
            )
            return int(cursor.fetchone()[0])

    with start_site(LONGWATCH_WORKERS=workers) as cluster:
        wait_for_status(cluster.submit(seconds=0, turns=1), "completed")
        for _ in range(3):
            proxy.drop()
            peak, until = 0, time.monotonic() + 4
            while time.monotonic() < until:
                peak = max(peak, count_sessions())
            assert workers < peak <= 3 * workers + 1
        wait_for_status(cluster.submit(seconds=0, turns=1), "completed")
        assert not Task.objects.exclude(status="completed").exists()
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
