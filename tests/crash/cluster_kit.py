"""Runs a real cluster of the toy loop in processes of its own, and looks at it from outside."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import psutil
import psycopg

from tests.conftest import ROOT
from tests.crash.toy_table import TABLE
from tests.durable import PATIENCE

MARK = "LONGWATCH_TEST_MARK"
LONG = 30.0
"""How long a condition may take on a machine that is busy with other things. Never slept."""


def wait_for[T](what: str, condition: Callable[[], T], seconds: float = LONG) -> T:
    """The condition's first true value; fails with `what` after `seconds` (of short leases)."""
    seconds *= PATIENCE
    until = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > until:
            raise AssertionError(f"after {seconds:g} s still not: {what}")
        time.sleep(0.02)
    return value


class ToyDatabase:
    """The test's own connection to the table of units, by the plain driver."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection: Any = None
        self.execute("DROP TABLE IF EXISTS toy")
        self.execute(TABLE)

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run one statement and commit."""
        if self._connection is None:
            self._connection = self._connect()
        if isinstance(self._connection, sqlite3.Connection):
            statement = statement.replace("%s", "?")
        cursor = self._connection.execute(statement, values)
        return cursor.fetchall() if cursor.description else []

    def _connect(self) -> Any:
        if not self.url.startswith("sqlite"):
            return psycopg.connect(self.url, autocommit=True)
        made = sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=30, autocommit=True)
        made.execute("PRAGMA journal_mode = WAL")
        return made

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def add(self, kind: str, seconds: float = 0.0, deadline: float = 600.0) -> int:
        """Make one unit ready, without telling anybody; its id."""
        ((unit_id,),) = self.execute("SELECT coalesce(max(id), 0) + 1 FROM toy")
        self.execute(
            "INSERT INTO toy VALUES (%s, %s, %s, %s, 'ready', '', 0, 0, 0)",
            unit_id,
            kind,
            seconds,
            deadline,
        )
        return int(unit_id)

    def read(self, unit_id: int, column: str) -> Any:
        return self.execute(f"SELECT {column} FROM toy WHERE id = %s", unit_id)[0][0]

    def wait_for_state(self, unit_id: int, state: str) -> int:
        """Wait until the unit is in that state; the pid of the worker that had it last."""
        wait_for(f"unit {unit_id} is {state}", lambda: self.read(unit_id, "state") == state)
        return int((self.read(unit_id, "owner") or ":0:").split(":")[1])


class ToyCluster:
    """`manage.py qcluster` in a session of its own. Leaving the block kills whatever is left."""

    command: tuple[str, ...] = ("-m", "django", "qcluster", "--workers", "2")
    workers = 2
    root = ROOT
    """Whose code it is."""

    def __init__(self, folder: Path, url: str, **environment: str | float) -> None:
        self.database = ToyDatabase(url)
        self.mark = uuid.uuid4().hex
        self.log = folder / "cluster.log"
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("LONGWATCH_")}
        self.environment |= {
            MARK: self.mark,
            "TOY_DIR": str(folder),
            "TOY_DATABASE_URL": url,
            "DJANGO_SETTINGS_MODULE": "tests.crash.toy_settings",
            "LONGWATCH_DRAIN_SECONDS": "60",
        }
        self.environment |= {name: str(value) for name, value in environment.items()}

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self.command],
                cwd=self.root,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.pid = self.process.pid
        try:
            wait_for("its workers run", self._has_started)
        except BaseException:
            self.__exit__("failed", None, None)
            raise
        return self

    def _has_started(self) -> bool:
        assert self.process.poll() is None, "the cluster ended at once"
        return len(self.list_pids("worker")) == self.workers

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        for process in self.find_living():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(LONG)
        self.database.close()
        if kind:
            sys.stderr.write(self.read_log())

    def read_log(self) -> str:
        return self.log.read_text()

    def list_pids(self, role: str) -> list[int]:
        """The living processes of that role, oldest first, by what the main process logs."""
        births: dict[str, list[int]] = defaultdict(list)
        for name, pid in re.findall(r"(\w+) (\d+) started$", self.read_log(), re.MULTILINE):
            births[name].append(int(pid))
        return [pid for pid in births[role] if is_alive(pid)]

    def find_living(self) -> list[psutil.Process]:
        """Every process that carries this cluster's mark."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(MARK) == self.mark and is_alive(process.pid)
        except psutil.Error:
            return False

    def signal(self, signum: int, pid: int | None = None) -> None:
        os.kill(pid or self.pid, signum)

    def signal_group(self, signum: int) -> None:
        os.killpg(self.pid, signum)

    def wait_for_exit(self, seconds: float = LONG) -> int:
        """The main process's exit code. Nothing that it started may outlive it."""
        code = self.process.wait(seconds)
        wait_for("nothing is left running", lambda: not self.find_living(), 5)
        return code

    def prove_it_works(self) -> None:
        """The pool runs units: as many at once as it has workers."""
        units = [self.database.add("sleep", 0.2) for _ in range(4)]
        for unit in units:
            self.database.wait_for_state(unit, "done")


def is_alive(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


SIGCONT, SIGINT, SIGKILL = signal.SIGCONT, signal.SIGINT, signal.SIGKILL
SIGSTOP, SIGTERM = signal.SIGSTOP, signal.SIGTERM
