"""A ledger that v0.1 wrote is migrated by this version, and its tasks go on."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.conf import settings
from django.db import connection

from ledger import states
from tests.conftest import ROOT
from tests.crash.cluster_kit import SIGTERM, wait_for
from tests.crash.site_kit import SiteCluster

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]

RECORDED = Path(__file__).parent / "v0_1"

Query = Callable[[str], list[tuple[Any, ...]]]


@pytest.fixture
def recorded(site_env: dict[str, str], tmp_path: Path) -> Iterator[tuple[dict[str, str], Query]]:
    """The environment of a product on a fresh copy of the recorded ledger, and a way to ask it."""
    database: Any
    if settings.RING == "sqlite":
        file = tmp_path / "recorded.sqlite3"
        database = sqlite3.connect(file, autocommit=True, timeout=30)
        database.executescript((RECORDED / "sqlite.sql").read_text())
        url = f"sqlite:///{file}"
    else:
        url = site_env["LONGWATCH_DATABASE_URL"].rsplit("/", 1)[0] + "/recorded"
        with connection.cursor() as cursor:
            cursor.execute("DROP DATABASE IF EXISTS recorded WITH (FORCE)")
            cursor.execute("CREATE DATABASE recorded")
        database = psycopg.connect(url, autocommit=True)
        database.execute((RECORDED / "postgresql.sql").read_text())
        database.execute("RESET ALL")  # the dump empties the search path
    yield site_env | {"LONGWATCH_DATABASE_URL": url}, lambda q: database.execute(q).fetchall()
    database.close()


def manage(environment: dict[str, str], *words: str) -> str:
    """Run a command of this version; its output."""
    done = subprocess.run(
        [sys.executable, "manage.py", *words],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_tasks_of_v0_1_keep_their_status_and_go_on(
    recorded: tuple[dict[str, str], Query], tmp_path: Path
) -> None:
    environment, ask = recorded
    by_status = "SELECT status, count(*) FROM longwatch_task GROUP BY status ORDER BY status"
    before = ask(by_status)
    assert {row[0] for row in before} == set(states.STATUSES)
    manage(environment, "migrate", "--verbosity", "0")
    assert ask(by_status) == before
    assert "FAIL" not in manage(environment, "ledger_check")
    total = "SELECT count(*) FROM longwatch_task"  # a recorded lease is long over by now
    assert ask(total) == [(sum(count for _, count in before),)], "the check leaves nothing behind"
    with SiteCluster(tmp_path, environment) as cluster:
        wait_for(
            "the task that was queued before the upgrade is completed",
            lambda: ask("SELECT 1 FROM longwatch_task WHERE workflow = 'report' "
                        "AND status = 'completed'"),
            60,
        )  # fmt: skip
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
