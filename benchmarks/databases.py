"""The databases of a run: one durable PostgreSQL cluster of our own, one folder of SQLite files."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.workers import ROOT
from tests.pg import Cluster

DURABLE = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}
"""What a database that keeps its promises has, against the settings of the tests' cluster."""

COUNTERS = """SELECT (SELECT xact_commit FROM pg_stat_database WHERE datname = %s), wal_sync
FROM pg_stat_wal"""
"""Transactions of a database that were committed so far, and fsyncs of the server's log."""


def read_environment(url: str, folder: Path) -> dict[str, str]:
    """The environment of a run on this database: every default, and the benchmark's workflows."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LONGWATCH_", "DJANGO_"))}
    return kept | {
        "DJANGO_SETTINGS_MODULE": "harness_site.settings",
        "LONGWATCH_DATABASE_URL": url,
        "LONGWATCH_VAR": str(folder / "var"),
        "LONGWATCH_WORKFLOWS": "benchmarks.noop",
        "LONGWATCH_BENCH_STAMPS": str(folder / "stamps"),
        "PYTHONUNBUFFERED": "1",
    }


def migrate(url: str, folder: Path) -> None:
    """Make the product's tables."""
    subprocess.run(
        [sys.executable, "manage.py", "migrate", "--verbosity", "0"],
        cwd=ROOT, env=read_environment(url, folder), check=True,
    )  # fmt: skip


class PostgreSQL:
    """A cluster for the whole benchmark; each run gets a database of its own."""

    name = "postgresql"

    def __init__(self, folder: Path, stack: contextlib.ExitStack, **settings: int) -> None:
        self.folder = folder
        self.cluster = stack.enter_context(Cluster(**DURABLE, **settings))
        self.admin = psycopg.connect(self.cluster.url, autocommit=True)
        stack.callback(self.admin.close)
        self.admin.execute("CREATE DATABASE migrated")
        migrate(self.make_url("migrated"), folder)

    def make_url(self, name: str) -> str:
        return self.cluster.url.rpartition("/")[0] + f"/{name}"

    def renew(self, migrated: bool) -> str:
        """The run's database, empty or with the product's tables: its URL."""
        url = self.make("run", migrated=migrated)
        self.admin.execute("CHECKPOINT")
        return url

    def make(self, name: str, *, migrated: bool = True) -> str:
        """A database of that name, in place of any other: its URL."""
        self.drop(name)
        template = "migrated" if migrated else "template1"
        self.admin.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.make_url(name)

    def drop(self, name: str) -> None:
        """No such database any more."""
        self.admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def count_commits(self) -> tuple[int, int]:
        """Transactions of the run's database that were committed so far, and fsyncs of the log."""
        row: Any = self.admin.execute(COUNTERS, ["run"]).fetchone()
        return row[0], row[1]

    def read_hot_share(self) -> float:
        """Of the updates of the run's tasks: how many wrote no index."""
        with psycopg.connect(self.make_url("run")) as database:
            row: Any = database.execute(
                "SELECT n_tup_hot_upd, n_tup_upd FROM pg_stat_user_tables "
                "WHERE relname = 'longwatch_task'"
            ).fetchone()
        return float(row[0] / max(row[1], 1))

    def describe(self) -> str:
        row: Any = self.admin.execute("SHOW server_version").fetchone()
        return f"PostgreSQL {row[0].split()[0]}"


class SQLite:
    """A folder; each run gets a file of its own."""

    name = "sqlite"

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.folder = folder
        self.file = folder / "run.sqlite3"
        self.migrated = folder / "migrated.sqlite3"
        migrate(f"sqlite:///{self.migrated}", folder)

    def renew(self, migrated: bool) -> str:
        """No file, or one with the product's tables: its URL."""
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self.file}{suffix}").unlink(missing_ok=True)
        if migrated:
            shutil.copyfile(self.migrated, self.file)
        return f"sqlite:///{self.file}"

    def describe(self) -> str:
        return f"SQLite {sqlite3.sqlite_version}"
