"""The reference on SQLite: what two plain loops reach with synchronous=FULL.

A worker keeps what it has claimed to its end: one commit a step, and one a task for the claim.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import time
from typing import Any

from benchmarks import work, workers

SCHEMA = """
CREATE TABLE task (
  id INTEGER PRIMARY KEY, status TEXT NOT NULL DEFAULT 'ready',
  priority INTEGER NOT NULL DEFAULT 0, available_at REAL NOT NULL, lease_until REAL,
  lease_owner TEXT, fence INTEGER NOT NULL DEFAULT 0, step INTEGER NOT NULL DEFAULT 0,
  steps INTEGER NOT NULL, input TEXT NOT NULL DEFAULT '{}', finished_at REAL);
CREATE INDEX task_ready ON task (priority, available_at, id) WHERE status = 'ready';
CREATE INDEX task_lease ON task (lease_until) WHERE status = 'leased';
CREATE TABLE output (
  task INTEGER NOT NULL REFERENCES task, step INTEGER NOT NULL, output TEXT NOT NULL,
  created_at REAL NOT NULL, PRIMARY KEY (task, step)) WITHOUT ROWID"""

CLAIM = """
UPDATE task SET status = 'leased', lease_until = :now + 60, lease_owner = :owner, fence = fence + 1
WHERE id = (SELECT id FROM task WHERE status = 'ready' AND available_at <= :now
            ORDER BY priority, available_at, id LIMIT 1)
RETURNING id, step, steps, fence"""

ADVANCE = """
UPDATE task SET step = :step + 1, status = :status,
  finished_at = CASE :status WHEN 'done' THEN :now END,
  lease_until = CASE :status WHEN 'leased' THEN :now + 60 END
WHERE id = :task AND fence = :fence AND step = :step"""

IDLE_SECONDS = 0.005


def open_database(url: str) -> sqlite3.Connection:
    """As the product opens its own: WAL, and an fdatasync at every commit."""
    path = url.removeprefix("sqlite:///")
    database = sqlite3.connect(path, isolation_level=None, timeout=30)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    return database


def run_worker(url: str, name: str) -> None:
    """Claim a task, store each of its steps, claim the next."""
    database = open_database(url)

    def run_task() -> None:
        database.execute("BEGIN IMMEDIATE")
        row = database.execute(CLAIM, {"now": time.time(), "owner": name}).fetchone()
        database.execute("COMMIT")
        if row is None:
            time.sleep(IDLE_SECONDS)
            return
        task, first, steps, fence = row
        for step in range(first, steps):
            output = json.dumps(work.make_output(task, step))
            now = time.time()
            moved = {"task": task, "step": step, "fence": fence, "now": now,
                     "status": "leased" if step + 1 < steps else "done"}  # fmt: skip
            database.execute("BEGIN IMMEDIATE")
            if database.execute(ADVANCE, moved).rowcount:
                stored = [task, step, output, now]
                database.execute("INSERT INTO output VALUES (?, ?, ?, ?)", stored)
            database.execute("COMMIT")

    workers.repeat(run_task)


def measure_throughput(database: sqlite3.Connection, tasks: int, steps: int) -> dict[str, Any]:
    """Steps per second from the first committed submission to the last task done."""
    begun = 0.0
    for _ in range(tasks):
        values = [steps, time.time()]
        database.execute("INSERT INTO task (steps, available_at) VALUES (?, ?)", values)
        begun = begun or time.time()

    def read(query: str) -> Any:
        return database.execute(query).fetchone()[0]

    work.wait_for(
        "all is done", lambda: read("SELECT count(*) FROM task WHERE status = 'done'") == tasks
    )
    ended = read("SELECT max(finished_at) FROM task")
    stored = read("SELECT count(*) FROM output")
    if stored != tasks * steps:
        raise RuntimeError(f"{stored} outputs instead of {tasks * steps}")
    return {"rate": tasks * steps / (ended - begun)}


def main() -> None:
    """One run in the new file of `--url`: its figure as a line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=["w1", "worker"])
    parser.add_argument("--url", required=True, help="sqlite:///PATH")
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--name", default="")
    options = parser.parse_args()
    if options.workload == "worker":
        return run_worker(options.url, options.name)
    database = open_database(options.url)
    database.executescript(SCHEMA)
    with workers.two_loops("benchmarks.raw_sqlite", "--url", options.url):
        print(json.dumps(measure_throughput(database, options.tasks, options.steps)))


if __name__ == "__main__":
    main()
