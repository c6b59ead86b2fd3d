"""`python -m benchmarks.costs`: what a unit, a worker and a web process cost, for docs/scaling.md.

Tasks of ten steps that do nothing are queued first; then `manage.py qcluster` works them off, and
what is told is the difference between a tenth of them and the last: no start, no submission in it.
How fast that was is not told, as the first of the runs writes a log that is new: `make bench` does.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import psycopg

from benchmarks import databases, work, workers
from benchmarks.product import COUNTED_SECONDS, _is_ready
from tests.pg import find_free_port

STEPS = 10
SUBMIT = """
import django; django.setup()
import sys
from ledger import client, registry
registry.load_all()
for number in range(int(sys.argv[1])):
    client.submit("bench-10", {"task": number})
"""
TABLES = """SELECT relname, n_tup_ins, n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables
WHERE n_tup_ins + n_tup_upd > 0"""
SESSIONS = """SELECT count(*) FROM pg_stat_activity WHERE datname = 'run'
AND pid <> pg_backend_pid()"""


def main() -> int:
    """Measure and print, as Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.costs", description=__doc__)
    parser.add_argument("--tasks", type=int, default=1_000)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lw-costs-")))
        database = databases.PostgreSQL(folder, stack)
        print(f"{database.describe()}, {options.tasks} tasks of {STEPS} units, "
              f"{options.workers} workers\n")  # fmt: skip
        print("| a unit costs | default slice | slice 0 |\n|---|---:|---:|")
        columns = [measure_units(database, options, slice_) for slice_ in ("0.25", "0")]
        for name, value in columns[0].items():
            print(f"| {name} | {value} | {columns[1].get(name, '')} |")
        print(f"\nA web process after {CALLS} calls at once: {measure_web(database)}")
    return 0


def measure_units(
    database: databases.PostgreSQL, options: argparse.Namespace, slice_: str
) -> dict[str, str]:
    """Figures by their names, as text."""
    environment = databases.read_environment(database.renew(migrated=True), database.folder)
    environment["LONGWATCH_SLICE_SECONDS"] = slice_
    os.environ.update(environment)
    subprocess.run([sys.executable, "-c", SUBMIT, str(options.tasks)], cwd=workers.ROOT, check=True)
    units = options.tasks * STEPS
    with psycopg.connect(database.make_url("run"), autocommit=True) as link:
        time.sleep(COUNTED_SECONDS)
        link.execute("CHECKPOINT")
        command = ("manage.py", "qcluster", "--workers", str(options.workers))
        with workers.running(*command) as read_log:
            wait_for_units(link, units // 10, read_log)
            first = read_figures(link, database)
            wait_for_units(link, units, read_log)
            last = read_figures(link, database)
            # After the figures: an idle session tells what it did ten seconds later.
            time.sleep(COUNTED_SECONDS)
            sessions = ask(link, SESSIONS)
            memory = describe_memory(find_cluster())
            rows = describe_rows(link, units, options.tasks)
    done = last["units"] - first["units"]
    found = {name: (last[name] - first[name]) / done for name in first}
    return {
        "processor time of workers, µs": f"{found['workers'] * 1e6:,.0f}",
        "processor time of the database, µs": f"{found['server'] * 1e6:,.0f}",
        "log (WAL), bytes": f"{found['wal']:,.0f}",
        "fsyncs of the log": f"{found['fsyncs']:.2f}",
        "growth of the database, bytes": f"{found['size']:,.0f}",
        **rows,
        "sessions of the cluster": str(sessions),
        **memory,
    }


def wait_for_units(link: psycopg.Connection[Any], count: int, read_log: Any) -> None:
    """Until so many are stored."""

    def is_there() -> bool:
        read_log()
        time.sleep(0.1)
        return bool(ask(link, "SELECT coalesce(max(id), 0) FROM longwatch_step_output") >= count)

    work.wait_for(f"{count} units", is_there)


def read_figures(link: psycopg.Connection[Any], database: databases.PostgreSQL) -> dict[str, float]:
    """Sums so far: units, processor seconds, bytes and fsyncs of the log, bytes of the database."""
    server = database.cluster.process
    assert server is not None
    return {
        "units": ask(link, "SELECT max(id) FROM longwatch_step_output"),
        "workers": sum(map(read_seconds, find_cluster())),
        "server": sum(map(read_seconds, psutil.Process(server.pid).children())),
        "wal": float(ask(link, "SELECT pg_current_wal_insert_lsn() - '0/0'")),
        "fsyncs": ask(link, "SELECT wal_sync FROM pg_stat_wal"),
        "size": ask(link, "SELECT pg_database_size('run')"),
    }


def ask(link: psycopg.Connection[Any], statement: str) -> Any:
    row = link.execute(statement).fetchone()  # type: ignore[call-overload]
    return row[0]


def read_seconds(process: psutil.Process) -> float:
    """Processor time of a process so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def find_cluster() -> list[psutil.Process]:
    """The cluster's processes, the main one first."""
    return [one for one in psutil.Process().children(recursive=True)
            if "qcluster" in one.cmdline()]  # fmt: skip


def describe_memory(processes: list[psutil.Process]) -> dict[str, str]:
    """Of the cluster in all, and of each process that is one more worker: a share of what it has
    in common with others (PSS)."""
    sizes = sorted((one.memory_full_info().pss for one in processes), reverse=True)
    return {
        "memory of the cluster, MB": f"{sum(sizes) / 1e6:,.0f} in {len(sizes)} processes",
        "of a worker, MB": f"{sizes[0] / 1e6:,.0f} at most",
    }


def describe_rows(link: psycopg.Connection[Any], units: int, tasks: int) -> dict[str, str]:
    """Rows that were written, submissions and all."""
    found = {name: numbers for name, *numbers in link.execute(TABLES).fetchall()}
    updated, hot = found["longwatch_task"][1:]
    return {
        "outputs written": f"{found['longwatch_step_output'][0] / units:.2f}",
        "updates of a task": f"{updated / units:.2f}",
        "of them without an index (HOT)": f"{hot / updated:.0%}",
        "events of a task": f"{found['longwatch_event'][0] / tasks:.2f} in all",
    }


CALLS = 200


def measure_web(database: databases.PostgreSQL) -> str:
    """Sessions and memory of gunicorn as deployed."""
    os.environ.update(databases.read_environment(database.renew(migrated=True), database.folder))
    url = f"http://127.0.0.1:{find_free_port()}"

    def call(number: int) -> int:
        with urllib.request.urlopen(f"{url}/readyz", timeout=30) as answer:
            return int(answer.status)

    with workers.running("-m", "gunicorn", "harness_site.wsgi", "--bind", url[7:]) as read_log:
        work.wait_for("the web answers", lambda: read_log() is not None and _is_ready(url))
        with concurrent.futures.ThreadPoolExecutor(40) as pool:
            list(pool.map(call, range(CALLS)))
        with psycopg.connect(database.make_url("run"), autocommit=True) as link:
            sessions = ask(link, SESSIONS)
        web = [one for one in psutil.Process().children(recursive=True)
               if any("gunicorn" in part for part in one.cmdline())]  # fmt: skip
        size = sum(one.memory_full_info().pss for one in web) / 1e6
    return f"{sessions} sessions, {size:,.0f} MB in {len(web)} processes."


if __name__ == "__main__":
    sys.exit(main())
