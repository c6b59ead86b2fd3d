"""The parts that need a PostgreSQL with much in it, many workers, or nothing to do at all."""

from __future__ import annotations

import contextlib
import statistics
import sys

import psycopg

from benchmarks.backlog import CASES
from benchmarks.bench import Bench
from benchmarks.databases import PostgreSQL

SNAPSHOT_UNITS = 5
"""Times the units of a run, which are done before the first one under an old snapshot."""

WORKER_SESSIONS, OTHER_SESSIONS = 3, 40
"""docs/operating.md: of each worker; of everything else, with some to spare."""


def find_postgresql(bench: Bench) -> PostgreSQL | None:
    """The one these parts run on, unless only SQLite is asked for."""
    return next((one for one in bench.databases if isinstance(one, PostgreSQL)), None)


def measure_w3(bench: Bench) -> None:
    """Units per second beside 100,000 others, and a million that are finished, each run between two
    beside 1,000."""
    database = find_postgresql(bench)
    if database is None:
        return
    sizes = {"1k": 1, "finished": 10 * bench.options.backlog}
    urls = {case: database.make(f"w3_{case}") for case in CASES}
    for case, url in urls.items():
        if case != "1k":
            size = sizes.get(case, bench.options.backlog)
            bench.say(f"postgresql: W3, {case}: {size:,} tasks")
            _run(bench, url, "--fill", case, f"--size={size}")
    units = bench.options.units
    with psycopg.connect(urls["snapshot"]) as old:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM longwatch_task")
        _run(bench, urls["snapshot"], f"--units={SNAPSHOT_UNITS * units}")

        def run(case: str) -> float:
            return bench.keep(database, f"w3 {case}", _run(bench, urls[case], f"--units={units}"))

        before = run("1k")
        for number in range(bench.options.rounds):
            bench.say(f"postgresql: W3, round {number + 1} of {bench.options.rounds}")
            for case in CASES[1:]:
                rate, after = run(case), run("1k")
                bench.keep(database, f"w3 {case} ratio", rate / statistics.mean([before, after]))
                before = after
    for case in CASES:
        database.drop(f"w3_{case}")


def _run(bench: Bench, url: str, *arguments: str) -> float:
    found = bench.execute(url, sys.executable, "-m", "benchmarks.backlog", *arguments)
    return float(found.get("rate", 0.0))


def measure_many(bench: Bench) -> None:
    """Many workers that wait in a step, on a server with as many connections as docs/ says."""
    if find_postgresql(bench) is None:
        return
    count = bench.options.workers
    bench.say(f"postgresql: {count} workers")
    sessions = WORKER_SESSIONS * count + OTHER_SESSIONS
    with contextlib.ExitStack() as stack:
        database = PostgreSQL(bench.folder, stack, max_connections=sessions)
        found = bench.run(
            database, "benchmarks.waiting", f"--workers={count}",
            f"--seconds={bench.options.waiting}",
        )  # fmt: skip
    if found["running"] < count:
        raise RuntimeError(f"only {found['running']} of {count} steps ran at the same time")
    for name in ("started", "memory", "each", "connections", "late", "missed"):
        bench.keep(database, f"many {name}", found[name])


def measure_idle(bench: Bench) -> None:
    """The whole product with nothing to do: processor time, transactions, rows written."""
    database = find_postgresql(bench)
    if database is None:
        return
    seconds = bench.options.idle
    bench.say(f"postgresql: {seconds:g} idle seconds")
    found = bench.run(database, "benchmarks.idle", f"--seconds={seconds}")
    bench.keep(database, "idle cpu", found["cpu"] / seconds * 300)
    bench.keep(database, "idle commits", found["commits"] / seconds)
    bench.keep(database, "idle beats", found["beats"] / seconds * 60)
    bench.keep(database, "idle writes", found["writes"])
