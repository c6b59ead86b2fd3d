"""A ledger that v0.1 wrote, to be migrated by this version."""

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

from tests.conftest import ROOT

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
