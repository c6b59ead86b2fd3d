"""One benchmark: its databases, its sizes, what it has measured so far, and how a run is made."""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks import figures
from benchmarks.databases import PostgreSQL, SQLite, read_environment
from benchmarks.workers import ROOT

type Database = PostgreSQL | SQLite

SLICE_ZERO = {"LONGWATCH_SLICE_SECONDS": "0"}
"""The one setting that is not at its default, and only in the line that says so."""


class Bench:
    """What the parts of a benchmark share."""

    def __init__(self, options: argparse.Namespace, stack: contextlib.ExitStack) -> None:
        self.options = options
        self.stack = stack
        self.measured: figures.Measured = defaultdict(list)
        self.left_out: list[str] = []
        self.folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="lw-bench-", dir="/tmp"))
        )
        self.w1 = [f"--tasks={options.tasks}", f"--steps={options.steps}"]
        self.databases: list[Database] = []
        if options.database in {None, "postgresql"}:
            self.databases.append(PostgreSQL(self.folder, stack))
        if options.database in {None, "sqlite"}:
            self.databases.append(SQLite(self.folder, stack))
        self.begun = time.monotonic()

    def say(self, line: str) -> None:
        """A word on how far it is; not part of the table."""
        print(f"{time.monotonic() - self.begun:5.0f} s  {line}", file=sys.stderr, flush=True)

    def keep(self, database: Database, label: str, value: float) -> float:
        """One more figure of this label."""
        self.measured[database.name, label].append(value)
        return value

    def run_reference(self, database: Database) -> float:
        """W1 by the raw loop: steps per second."""
        found = self.run(database, f"benchmarks.raw_{database.name}", "w1", *self.w1)
        return self.keep(database, "w1 raw", float(found["rate"]))

    def run_product(self, database: Database, label: str = "w1 ours", **more: str) -> float:
        """W1 by the product: units per second. `more` are settings that are not the default."""
        found = self.run(database, "benchmarks.product", "w1", *self.w1, **more)
        if not more:
            self.keep(database, "submit", found["submit_ms"])
        return self.keep(database, label, float(found["rate"]))

    def keep_quantiles(
        self, database: Database, label: str, module: str, workload: str, count: int
    ) -> None:
        """One run's latencies, p50 and p99."""
        latencies = self.run(database, module, workload, f"--tasks={count}")["latencies"]
        for percent in (50, 99):
            at = round(percent / 100 * (len(latencies) - 1))
            self.keep(database, f"{label} p{percent}", latencies[at])

    def run(self, database: Database, module: str, *arguments: str, **more: str) -> Any:
        """One run in a fresh database: what it printed last. Raises RuntimeError."""
        raw = module.startswith("benchmarks.raw_")
        url = database.renew(migrated=not raw)
        (self.folder / "stamps").unlink(missing_ok=True)
        given = ["--url", url] if raw else []
        return self.execute(url, sys.executable, "-m", module, *arguments, *given, **more)

    def execute(self, url: str, *command: str, **more: str) -> Any:
        """Run a command on the database at `url`; the JSON it printed last. Raises RuntimeError."""
        ended = subprocess.run(
            command, cwd=ROOT, env=read_environment(url, self.folder) | more,
            capture_output=True, text=True,
        )  # fmt: skip
        if ended.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{ended.stderr[-4000:]}")
        return json.loads(ended.stdout.splitlines()[-1])
