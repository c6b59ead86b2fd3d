"""PostgreSQL away, read-only, full, or cut off without a word: all is well again by itself.

Around each outage a unit is at work; its output is stored afterwards under the lease it had.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.conftest import ROOT
from tests.crash.cluster_kit import SIGTERM, wait_for
from tests.crash.site_kit import SiteCluster
from tests.outages.conftest import LINE, Site, make_env
from tests.outages.kit import (
    END_SESSIONS,
    RECOVERY,
    assert_uncharged,
    count_attempts,
)
from tests.pg import Cluster

pytestmark = [pytest.mark.postgresql, pytest.mark.timeout(180)]

AWAY = 60 if os.environ.get("LONGWATCH_TEST_PROOF") else 7


@contextlib.contextmanager
def unit_at_work(site: Site, key: str, seconds: float = 3.0) -> Iterator[None]:
    """A unit of so many seconds runs meanwhile, and is stored once and uncharged afterwards."""
    answer = site.client.submit(site.sink, key, seconds=seconds, turns=1)
    assert answer.status == 201, answer
    task = answer.json["id"]
    wait_for("the unit is at work", lambda: count_attempts(site.sink, task))
    yield
    assert_uncharged(site.client.wait_for_status(task, "completed"))
    assert count_attempts(site.sink, task) == 1, "a finished unit is not done again"


@contextlib.contextmanager
def server_with(site: Site, setting: str, value: str) -> Iterator[None]:
    """The server runs with this setting meanwhile, and is healthy afterwards."""
    try:
        site.ask(f"ALTER SYSTEM SET {setting} = '{value}'")
        site.ask("SELECT pg_reload_conf()")
        yield
    finally:
        site.ask(f"ALTER SYSTEM RESET {setting}")
        site.ask("SELECT pg_reload_conf()")
    site.client.wait_until_healthy()


def assert_refused(site: Site, reason: str) -> None:
    """The API and the pages say 503, why, and when to ask again."""
    answer = site.client.submit(site.sink, f"refused-{time.monotonic_ns()}")
    assert (answer.status, answer.json["code"]) == (503, "database_unavailable"), answer
    assert reason in answer.json["detail"]
    assert 1 <= int(answer.headers["Retry-After"]) <= 10
    page = site.browser.ask("/tasks/")
    assert (page.status, page.headers["Content-Type"][:9]) == (503, "text/html"), page
    assert reason in page.text
    assert "Traceback" not in page.text
    assert int(page.headers["Retry-After"])
    poll = site.browser.ask("/tasks/", HX_Request="true")
    assert (poll.status, poll.text) == (503, ""), "what the page shows stays"


def wait_for_reason(site: Site, reason: str) -> None:
    wait_for(f"/healthz says {reason}", lambda: site.client.read_reasons() == [reason])


def test_a_server_that_is_away_is_waited_for(site: Site) -> None:
    """Longer than a lease (6 s): nobody may take the others for lost when it is back. PROOF: 60 s.

    Work goes on within RECOVERY, which each wait here is bounded by.
    """
    reason = "the database does not answer"
    with unit_at_work(site, "away", seconds=2):
        site.server.stop()
        began = time.monotonic()
        wait_for_reason(site, reason)
        while time.monotonic() < began + AWAY:
            assert_refused(site, reason)
            assert site.client.read_reasons() == [reason]
            assert site.client.ask("/readyz").status == 503
            time.sleep(0.5)
        site.server.start()
        back = time.monotonic()
        site.client.wait_until_healthy()
        after = site.client.submit(site.sink, "back", seconds=0, turns=1).json["id"]
        site.client.wait_for_status(after, "completed")
        print(f"away {back - began:.0f} s, at work {time.monotonic() - back:.1f} s after")  # noqa: T201
    assert time.monotonic() < back + RECOVERY
    assert site.browser.ask("/tasks/").status == 200


def test_a_read_only_server_is_shown_and_named(site: Site) -> None:
    reason = "the database is read-only"
    with (
        unit_at_work(site, "read-only", seconds=2),
        server_with(site, "default_transaction_read_only", "on"),
    ):
        wait_for_reason(site, reason)
        answer = site.client.submit(site.sink, "refused")
        assert (answer.status, reason in answer.json["detail"]) == (503, True), answer
        assert site.browser.ask("/tasks/").status == 200, "reading goes on"
        assert site.client.ask("/readyz").status == 200


@pytest.mark.case(31)
def test_exhausted_connections_cost_no_output(site: Site) -> None:
    """Others hold every slot for longer than a lease, and the product has none."""
    reason = "database connections exhausted"
    with unit_at_work(site, "exhausted"), contextlib.ExitStack() as others:
        take_every_slot(site, others)
        wait_for_reason(site, reason)
        assert_refused(site, reason)
        began = time.monotonic()
        wait_for("a lease is over", lambda: time.monotonic() - began > 7)
        others.close()
        site.client.wait_until_healthy()


def take_every_slot(site: Site, others: contextlib.ExitStack) -> None:
    """Until no session of the product is left. It tries to come back meanwhile, once a second."""

    def take() -> bool:
        with contextlib.suppress(psycopg.OperationalError):
            while True:
                others.enter_context(psycopg.connect(site.server.url, connect_timeout=5))
        return own.execute(END_SESSIONS).fetchall() == []

    own = others.enter_context(psycopg.connect(site.server.url, autocommit=True))
    wait_for("the product has no session", take)


@pytest.mark.case(28)
def test_sessions_that_are_ended_cost_nothing(site: Site) -> None:
    with unit_at_work(site, "ended"):
        assert len(site.ask(END_SESSIONS)) >= 4
        assert site.browser.ask("/tasks/").status == 200, "a session between requests is replaced"
        assert site.client.submit(site.sink, "after").status == 201


@pytest.mark.case(28)
def test_a_server_that_ends_idle_sessions_costs_nothing(site: Site) -> None:
    with (
        server_with(site, "idle_session_timeout", "700ms"),
        unit_at_work(site, "idle", seconds=4),
    ):
        until = time.monotonic() + 3
        wait_for("some idle time", lambda: time.monotonic() > until)
        assert site.browser.ask("/tasks/").status == 200
        assert site.client.submit(site.sink, "beside-idle").status == 201


@pytest.mark.case(28)
def test_a_line_that_goes_silent_is_noticed_in_bounded_time(site: Site) -> None:
    """No reset, no acknowledgement: only the bounds on the socket end the wait."""
    began = time.monotonic()
    with unit_at_work(site, "silent"):
        site.proxy.vanish()
    assert time.monotonic() - began < RECOVERY
    site.client.wait_until_healthy()
    assert site.browser.ask("/tasks/").status == 200


class Crowd(SiteCluster):
    """More workers than the server has room for."""

    command = ("manage.py", "qcluster", "--workers", "5")

    def _has_started(self) -> bool:
        assert self.process.poll() is None, "the cluster ended at once"
        return len(self.list_pids("worker")) == 5


@pytest.mark.case(31)
def test_too_few_slots_run_nothing_twice(tmp_path: Path) -> None:
    """Five workers want fifteen, there are eight. Who can't beat must not claim."""
    with Cluster(max_connections=8, superuser_reserved_connections=0) as server:
        env = make_env(f"{server.url}?{LINE}", tmp_path / "var")
        cluster = Crowd(tmp_path, env, LONGWATCH_LEASE_SECONDS=3, LONGWATCH_HEARTBEAT_SECONDS=0.5)
        given = {"sink": str(cluster.sink), "seconds": 4, "turns": 1}
        submit = f"[client.submit('paced', {given}) for n in range(5)]"
        for words in (
            ["migrate", "-v0"],
            ["shell", "-v0", "-c", f"from ledger import client; {submit}"],
        ):
            command = [sys.executable, "manage.py", *words]
            subprocess.run(command, cwd=ROOT, env=env, check=True, timeout=60)
        with cluster:
            wait_for("all is done", lambda: len(cluster.read_sink("end")) == 5, 90)
            cluster.signal(SIGTERM)
            assert cluster.wait_for_exit() == 0
            assert "too many clients" in cluster.read_log(), "there were enough after all"
            assert len(cluster.read_sink("work")) == 5, "none is done twice"
        with psycopg.connect(server.url) as link:
            rows = link.execute("SELECT status, attempts, reclaims FROM longwatch_task").fetchall()
        assert rows == [("completed", 0, 0)] * 5
