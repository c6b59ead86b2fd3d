"""`python -m benchmarks`: reference, ours, reference, ours …; prints the table and judges it."""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
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

LATENCY_ROUNDS = 3
"""Rounds of W2: each takes 8 s whatever is measured, and its medians hardly move."""
ANSWER_ROUNDS = 2
"""Rounds of W3: half a minute each."""
TREE_ROUNDS = 2
"""Runs of W4, each of seven checkpoints."""
OURS = {"benchmarks.product", "benchmarks.checkpoint"}


class Bench:
    """One benchmark: its databases, its sizes and what it has measured so far."""

    def __init__(self, options: argparse.Namespace, stack: contextlib.ExitStack) -> None:
        self.options = options
        self.measured: figures.Measured = defaultdict(list)
        self.folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="lw-bench-", dir="/tmp"))
        )
        self.w1 = [f"--tasks={options.tasks}", f"--steps={options.steps}"]
        self.databases: list[PostgreSQL | SQLite] = []
        if options.database in {None, "postgresql"}:
            self.databases.append(PostgreSQL(self.folder, stack))
        if options.database in {None, "sqlite"}:
            self.databases.append(SQLite(self.folder, stack))

    def run_rounds(self) -> None:
        """Each database by itself: W1 between two references each time, then W2, W3, W4."""
        o = self.options
        for database in self.databases:
            say(f"{database.name}: W1, {o.rounds} rounds")
            before = self.run_reference(database)
            for _ in range(o.rounds):
                rate = self.run_product(database)
                after = self.run_reference(database)
                ratio = rate / statistics.mean([before, after])
                self.measured[database.name, "w1 ratio"].append(ratio)
                before = after
            say(f"{database.name}: W2, {min(o.rounds, LATENCY_ROUNDS)} rounds")
            for _ in range(min(o.rounds, LATENCY_ROUNDS)):
                self.measure_latency(database)
            say(f"{database.name}: W3, {min(o.rounds, ANSWER_ROUNDS)} rounds")
            for _ in range(min(o.rounds, ANSWER_ROUNDS)):
                self.keep_quantiles(database, "w3 ours", "benchmarks.product", "w3", o.answers)

            say(f"{database.name}: W4, {min(o.rounds, TREE_ROUNDS)} rounds")
            for _ in range(min(o.rounds, TREE_ROUNDS)):
                tree = f"--distribution={o.tree}"
                for name, value in self.run(database, "benchmarks.checkpoint", tree).items():
                    self.measured[database.name, f"w4 {name}"].append(value)

    def run_reference(self, database: PostgreSQL | SQLite) -> float:
        """W1 by the raw loop: steps per second."""
        rate = float(self.run(database, f"benchmarks.raw_{database.name}", "w1", *self.w1)["rate"])
        self.measured[database.name, "w1 raw"].append(rate)
        return rate

    def run_product(self, database: PostgreSQL | SQLite) -> float:
        """W1 by the product: units per second."""
        found = self.run(database, "benchmarks.product", "w1", *self.w1)
        self.measured[database.name, "w1 ours"].append(found["rate"])
        self.measured[database.name, "submit"].append(found["submit_ms"])
        if isinstance(database, PostgreSQL):
            units = self.options.tasks * self.options.steps
            both = zip(("commits", "fsyncs"), self.before, database.count_commits(), strict=True)
            for label, before, after in both:
                self.measured[database.name, label].append((after - before) / units)
        return float(found["rate"])

    def measure_latency(self, database: PostgreSQL | SQLite) -> None:
        """W2 by a bare LISTEN loop where there is one, then by the product."""
        runs = {"w2 ours": "benchmarks.product"}
        if isinstance(database, PostgreSQL):
            runs = {"w2 raw": "benchmarks.raw_postgresql", **runs}
        for label, module in runs.items():
            self.keep_quantiles(database, label, module, "w2", self.options.latencies)

    def keep_quantiles(
        self, database: PostgreSQL | SQLite, label: str, module: str, workload: str, count: int
    ) -> None:
        """One run's latencies, p50 and p99."""
        latencies = self.run(database, module, workload, f"--tasks={count}")["latencies"]
        for percent in (50, 99):
            at = round(percent / 100 * (len(latencies) - 1))
            self.measured[database.name, f"{label} p{percent}"].append(latencies[at])

    def run(self, database: PostgreSQL | SQLite, module: str, *arguments: str) -> Any:
        """One run in a fresh database: what it printed last. Raises RuntimeError."""
        url = database.renew(migrated=module in OURS)
        (self.folder / "stamps").unlink(missing_ok=True)
        if isinstance(database, PostgreSQL):
            self.before = database.count_commits()
        given = [] if module in OURS else ["--url", url]
        ended = subprocess.run(
            [sys.executable, "-m", module, *arguments, *given],
            cwd=ROOT, env=read_environment(url, self.folder), capture_output=True, text=True,
        )  # fmt: skip
        if ended.returncode:
            raise RuntimeError(f"{module} {' '.join(arguments)} failed:\n{ended.stderr[-4000:]}")
        return json.loads(ended.stdout.splitlines()[-1])


def say(line: str) -> None:
    """A word on how far it is; not part of the table."""
    print(line, file=sys.stderr, flush=True)


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--steps", type=int, default=10, choices=[3, 10])
    parser.add_argument("--latencies", type=int, default=100, help="submissions of W2")
    parser.add_argument("--answers", type=int, default=200, help="answers of W3")
    parser.add_argument("--tree", default="Django", help="distribution of W4")
    parser.add_argument("--database", choices=["postgresql", "sqlite"], help="only this one")
    parser.add_argument("--report", type=Path, help="write the table into this page too")
    return parser.parse_args()


def main() -> int:
    """Measure, print, write; 1 if a target was missed."""
    options = parse_options()
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        bench = Bench(options, stack)
        bench.run_rounds()
        versions = [database.describe() for database in bench.databases]
    minutes = (time.monotonic() - began) / 60
    missed = figures.find_missed(bench.measured)
    text = figures.write_table(bench.measured, options, versions, minutes)
    print(text)
    for line in missed:
        print(f"MISSED: {line}")
    if options.report:
        figures.put_into(options.report, text)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
