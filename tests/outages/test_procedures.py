"""docs/operating.md's procedures, done as they stand there, under load."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connection

from tests.conftest import ROOT
from tests.crash.cluster_kit import SIGTERM, wait_for
from tests.crash.site_kit import SiteCluster
from tests.outages.conftest import make_env
from tests.pg import find_binaries
from tests.places import make_place
from tests.test_docs_operating import read_block

pytestmark = [
    pytest.mark.both_databases,
    pytest.mark.django_db,
    pytest.mark.timeout(240),
]

TURNS = 6
SUBMIT = """
from ledger import client
for number in range({count}):
    client.submit("paced", {input})
"""


class Host:
    """A machine on which the product is installed: its environment, and a way to its database."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.env = make_env(url, folder / "var")
        self.backup = folder / "backup"
        self.backup.mkdir()
        file = folder / "longwatch.env"
        file.write_text(f"LONGWATCH_DATABASE_URL={url}\nLONGWATCH_VAR={folder / 'var'}\n")
        self.env |= {"LONGWATCH_ENV": str(file), "BACKUP": str(self.backup)}
        self.env["PATH"] = f"{find_binaries() or '/'}:{self.env['PATH']}"

    def follow(self, title: str, **more: str) -> str:
        """Do what the block of that title says."""
        return self.run("sh", "-euc", read_block(title), **more)

    def manage(self, *words: str, **more: str) -> str:
        return self.run(sys.executable, "manage.py", *words, **more)

    def run(self, *command: str, **more: str) -> str:
        done = subprocess.run(
            command, cwd=ROOT, env=self.env | more, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def submit(self, cluster: SiteCluster, count: int) -> None:
        given = {"sink": str(cluster.sink), "seconds": 0.4, "turns": TURNS}
        self.manage("shell", "-v0", "-c", SUBMIT.format(count=count, input=given))

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query, by the plain driver."""
        if self.url.startswith("postgresql"):
            with psycopg.connect(self.url) as link:
                return link.execute(query).fetchall()  # type: ignore[call-overload,no-any-return]
        with contextlib.closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as file:
            return file.execute(query).fetchall()

    def count(self, table: str, where: str) -> int:
        return int(self.ask(f"SELECT count(*) FROM longwatch_{table} WHERE {where}")[0][0])


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """The product of this release, with its tables, on a database of its own."""
    (tmp_path / "var").mkdir()
    with make_place(tmp_path / "var") as url:
        made = Host(url, tmp_path)
        made.manage("migrate", "-v0")
        yield made


def start(host: Host) -> SiteCluster:
    more = {"LONGWATCH_WORKFLOWS": "tests.crash.flows,tests.outages.flows"}
    return SiteCluster(host.folder, host.env, **more)


def wait_for_all(host: Host, count: int) -> None:
    wait_for("all is done", lambda: host.count("task", "status = 'completed'") == count, 90)
    live = host.count("step_output", "superseded_in_round IS NULL")
    assert live == count * (TURNS + 2), "one accepted output for each unit"
    charged = "attempts > 0 OR status IN ('dead', 'failed')"
    assert host.count("task", charged) == 0


@pytest.mark.case(35)
def test_a_backup_under_load_is_restored_and_the_past_is_not_believed(host: Host) -> None:
    kind = "PostgreSQL" if connection.vendor == "postgresql" else "SQLite"
    with start(host) as cluster:
        host.submit(cluster, 5)
        wait_for("all are busy", lambda: len(cluster.read_sink("work")) >= 4)
        host.follow(f"backup, {kind}")
        host.follow(f"check, {kind}")
        begun = len(cluster.read_sink())
        wait_for("work goes on", lambda: len(cluster.read_sink()) > begun + 3)
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
    done_since = host.count("step_output", "1 = 1")
    host.manage("flush", "--no-input", "-v0")
    shutil.rmtree(host.folder / "var" / "artifacts", ignore_errors=True)

    host.follow(f"restore, {kind}")
    assert "FAIL" not in host.follow("after a restore")
    assert host.count("task", "1 = 1") == 5
    assert host.count("step_output", "1 = 1") < done_since, "it is the past"
    held = host.ask("SELECT id FROM longwatch_task WHERE status = 'running'")
    assert held, "what ran at the time of the dump"
    with start(host) as cluster:
        wait_for_all(host, 5)
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
    reclaimed = host.ask("SELECT task_id FROM longwatch_event WHERE kind = 'reclaimed'")
    assert sorted(map(str, reclaimed)) == sorted(map(str, held)), "none runs again unseen"


@pytest.mark.case(37)
def test_a_deploy_under_load_and_its_roll_back_lose_nothing(host: Host) -> None:
    """The later release adds to the busiest table; the workers of this one go on all the while."""
    release = {"DJANGO_SETTINGS_MODULE": "tests.outages.later_settings"}
    with start(host) as cluster:
        host.submit(cluster, 3)
        wait_for("all are busy", lambda: len(cluster.read_sink("work")) >= 2)
        said = host.follow("deploy, ledger", **release)
        assert "Applying later.0001_later... OK" in said
        assert host.count("task", "later = ''") == 3
        host.submit(cluster, 1)
        wait_for("old workers go on", lambda: len(cluster.read_sink("begin")) == 4)
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
    said = host.follow("roll back, ledger")
    assert "FAIL" not in said
    assert host.count("task", "later = ''") == 4, "nothing was taken back"
    with start(host) as cluster:
        host.submit(cluster, 1)
        wait_for_all(host, 5)
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
    assert host.count("event", "kind NOT IN ('submitted', 'completed')") == 0


def test_the_code_of_a_deploy_is_what_the_repository_has() -> None:
    block = read_block("deploy, code")
    assert (ROOT / "requirements" / "run.txt").is_file()
    assert "requirements/run.txt" in block
