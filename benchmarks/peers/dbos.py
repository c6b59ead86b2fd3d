"""DBOS Transact at its defaults, on PostgreSQL or SQLite: called directly by two processes that
take half of the tasks each (`--way direct`), or its queue with two workers (`--way queue`)."""

from __future__ import annotations

import argparse
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from typing import Any

if sqlite3.sqlite_version_info < (3, 42):  # it needs unixepoch('subsec')
    import pysqlite3
    import pysqlite3.dbapi2

    sys.modules["sqlite3"], sys.modules["sqlite3.dbapi2"] = pysqlite3, pysqlite3.dbapi2

import psycopg
from dbos import DBOS, DBOSClient

from benchmarks import work, workers
from benchmarks.peers import running


@DBOS.step()
def run_step(number: int, step: int) -> dict[str, object]:
    """Does nothing."""
    return work.make_output(number, step)


@DBOS.workflow()
def run_flow(number: int, steps: int) -> int:
    """So many steps."""
    for step in range(steps):
        run_step(number, step)
    return number


def launch(url: str, name: str, queue: bool) -> None:
    """The library, on this database."""
    DBOS(config={"name": "bench", "log_level": "ERROR", "executor_id": name,
                 "application_version": "1", "system_database_url": url})  # fmt: skip
    DBOS.launch()
    if queue:
        DBOS.register_queue("bench")


def run_worker(options: argparse.Namespace) -> None:
    """One of two processes: a share of the calls, or the queue's work until it is ended."""
    launch(options.url, f"w{options.worker}", options.way == "queue")
    if options.way == "direct":
        return running.work_share(options, lambda number: run_flow(number, options.steps))
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # it has threads that would be waited for
    time.sleep(1.5)  # one poll of its queue
    print(workers.READY, flush=True)
    while True:
        time.sleep(60)


def make_reader(url: str) -> Callable[[str], int]:
    """Counts rows of its tables, which PostgreSQL has in a schema."""
    if url.startswith("sqlite"):
        path = url.removeprefix("sqlite:///")
        return lambda query: int(sqlite3.connect(path).execute(query).fetchone()[0])
    database = psycopg.connect(url, autocommit=True)
    database.execute("SET search_path = dbos")

    def read(query: str) -> int:
        row: Any = database.execute(query).fetchone()
        return int(row[0])

    return read


def measure_queue(options: argparse.Namespace, read: Callable[[str], int]) -> float:
    """Steps per second from the first task enqueued to the last one done."""
    client = DBOSClient(system_database_url=options.url)
    task: Any = {"workflow_name": run_flow.__qualname__, "queue_name": "bench"}
    done = "SELECT count(*) FROM workflow_status WHERE status = 'SUCCESS'"
    return running.measure_queue(
        options,
        lambda number: client.enqueue(task, number, options.steps),
        lambda: read(done) >= options.tasks,
    )


def main() -> None:
    """One run in the empty database at `--url`."""
    options = running.parse_options()
    if options.worker is not None:
        return run_worker(options)
    launch(options.url, "setup", options.way == "queue")  # makes its tables
    DBOS.destroy()
    read = make_reader(options.url)
    if options.way == "direct":
        rate = running.measure_shares(options)
    else:
        rate = measure_queue(options, read)
    running.print_rate(rate, read("SELECT count(*) FROM operation_outputs"), options)


if __name__ == "__main__":
    main()
