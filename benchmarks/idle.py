"""What the whole product costs while nothing is to be done: `manage.py up` with two workers, on a
PostgreSQL; seconds of processor time of all its processes, and what they write."""

from __future__ import annotations

import argparse
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import psutil
import psycopg

from benchmarks import work, workers
from tests.pg import find_free_port

WORKERS = 2
SETTLED_SECONDS = 12.0
"""Until what a start does is over, and the server has counted it."""

BEATS = {"longwatch_worker"}
HOURLY = {"longwatch_hour", "longwatch_hour_sum"}
"""Once an hour what ended in it is summed up; of a new ledger all hours at once, soon after the
start. No part of what is counted."""


def is_ready(url: str) -> bool:
    """Whether the web and its database answer."""
    try:
        urllib.request.urlopen(f"{url}/readyz", timeout=10).close()
    except OSError:
        return False
    return True


def sum_times(pids: list[int]) -> dict[int, float]:
    """Seconds of processor time of each of these, with those of the children that it reaped."""
    return {pid: sum(psutil.Process(pid).cpu_times()[:4]) for pid in pids}


def list_family(pid: int) -> list[int]:
    """The process and everything that it started."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def count_writes(database: psycopg.Connection[Any]) -> dict[str, int]:
    """Rows written so far, by table; and transactions."""
    rows = database.execute(
        "SELECT relname, n_tup_ins + n_tup_upd + n_tup_del FROM pg_stat_user_tables"
    ).fetchall()
    found = {name: int(count) for name, count in rows}
    row: Any = database.execute(
        "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
    ).fetchone()
    return found | {"commits": int(row[0])}


def measure_idle(url: str, seconds: float) -> dict[str, Any]:
    """Processor seconds, commits, and rows written by table, in so many seconds of idling. The
    settings of the run are those of the environment."""
    port = find_free_port()
    address = f"http://127.0.0.1:{port}"
    command = ("manage.py", "up", "--no-demo", f"--port={port}", f"--workers={WORKERS}")
    with workers.running(*command) as read_log, psycopg.connect(url, autocommit=True) as database:

        def is_up() -> bool:
            read_log()
            row: Any = database.execute("SELECT count(*) FROM longwatch_worker").fetchone()
            return is_ready(address) and row[0] >= WORKERS

        work.wait_for("the product is up and idle", is_up)
        time.sleep(SETTLED_SECONDS)
        parent = psutil.Process().children()[-1].pid
        return take_difference(database, list_family(parent), lambda: time.sleep(seconds))


def take_difference(
    database: psycopg.Connection[Any], pids: list[int], wait: Callable[[], None]
) -> dict[str, Any]:
    """What these processes use and write while `wait` goes on."""
    times, writes = sum_times(pids), count_writes(database)
    wait()
    used = {pid: after - times[pid] for pid, after in sum_times(pids).items()}
    written = {name: count - writes.get(name, 0) for name, count in count_writes(database).items()}
    commits = written.pop("commits")
    return {
        "cpu": sum(used.values()),
        "by_process": [round(seconds, 2) for seconds in used.values()],
        "commits": commits,
        "beats": sum(written[name] for name in BEATS),
        "writes": sum(count for name, count in written.items() if name not in BEATS | HOURLY),
        "written": {name: count for name, count in written.items() if count},
    }


def main() -> None:
    """One measurement on the empty database of LONGWATCH_DATABASE_URL, as a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    options = parser.parse_args()
    print(json.dumps(measure_idle(os.environ["LONGWATCH_DATABASE_URL"], options.seconds)))


if __name__ == "__main__":
    main()
