"""The reference on PostgreSQL: what two plain psycopg loops reach, with two commits a step.

Any worker may take any next step: one statement claims, one stores the output, advances the task
and gives it back. No heartbeats, events, limits, retries or signals; a floor for the work itself.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from typing import Any

import psycopg

from benchmarks import work, workers

SCHEMA = """
CREATE TABLE task (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  status text NOT NULL DEFAULT 'ready',
  priority int NOT NULL DEFAULT 0,
  available_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  lease_until timestamptz,
  lease_owner text,
  fence bigint NOT NULL DEFAULT 0,
  step int NOT NULL DEFAULT 0,
  steps int NOT NULL,
  input jsonb NOT NULL DEFAULT '{}',
  finished_at timestamptz);
CREATE INDEX task_ready ON task (priority, available_at, id) WHERE status = 'ready';
CREATE INDEX task_lease ON task (lease_until) WHERE status = 'leased';
CREATE TABLE output (
  task bigint NOT NULL REFERENCES task, step int NOT NULL, output jsonb NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (task, step))"""

CLAIM = """
UPDATE task SET status = 'leased', lease_until = clock_timestamp() + interval '60 s',
  lease_owner = %s, fence = fence + 1
WHERE id = (SELECT id FROM task WHERE status = 'ready' AND available_at <= clock_timestamp()
            ORDER BY priority, available_at, id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id, step, fence"""

STORE = """
WITH moved AS (
  UPDATE task SET step = step + 1, available_at = clock_timestamp(), lease_until = NULL,
    status = CASE WHEN step + 1 < steps THEN 'ready' ELSE 'done' END,
    finished_at = CASE WHEN step + 1 < steps THEN NULL ELSE clock_timestamp() END
  WHERE id = %s AND fence = %s AND step = %s RETURNING id)
INSERT INTO output (task, step, output) SELECT id, %s, %s::jsonb FROM moved"""

SUBMIT = """
WITH made AS (INSERT INTO task (steps) VALUES (%s) RETURNING id)
SELECT pg_notify('ready', id::text) FROM made"""

IDLE_SECONDS = 0.003


def run_worker(url: str, name: str, listen: bool) -> None:
    """Claim, store, claim, store. With `listen` it waits for a NOTIFY when idle and stamps."""
    database = psycopg.connect(url, autocommit=True)
    if listen:
        database.execute("LISTEN ready")

    def run_unit() -> None:
        row = database.execute(CLAIM, [name]).fetchone()
        if row is None and listen:
            list(database.notifies(timeout=1.0, stop_after=1))
        elif row is None:
            time.sleep(IDLE_SECONDS)
        else:
            task, step, fence = row
            if listen:
                work.stamp(task - 1, time.time())
            output = json.dumps(work.make_output(task, step))
            database.execute(STORE, [task, fence, step, step, output])

    workers.repeat(run_unit)


def measure_throughput(database: psycopg.Connection[Any], tasks: int, steps: int) -> dict[str, Any]:
    """Steps per second from the first committed submission to the last task done."""
    begun = 0.0
    for _ in range(tasks):
        database.execute("INSERT INTO task (steps) VALUES (%s)", [steps])
        begun = begun or time.time()

    def read(query: str) -> Any:
        row = database.execute(query).fetchone()
        return row and row[0]

    work.wait_for(
        "all is done", lambda: read("SELECT count(*) FROM task WHERE status = 'done'") == tasks
    )
    ended = read("SELECT extract(epoch FROM max(finished_at))::float8 FROM task")
    stored = read("SELECT count(*) FROM output")
    if stored != tasks * steps:
        raise RuntimeError(f"{stored} outputs instead of {tasks * steps}")
    return {"rate": tasks * steps / (ended - begun)}


def main() -> None:
    """One run in the empty database at `--url`: its figure as a line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=["w1", "w2", "worker"])
    parser.add_argument("--url", required=True)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--name", default="")
    parser.add_argument("--listen", action="store_true")
    options = parser.parse_args()
    if options.workload == "worker":
        return run_worker(options.url, options.name, options.listen)
    database = psycopg.connect(options.url, autocommit=True)
    database.execute(SCHEMA)
    more = ["--listen"] if options.workload == "w2" else []
    with workers.two_loops("benchmarks.raw_postgresql", "--url", options.url, *more):
        if options.workload == "w1":
            found = measure_throughput(database, options.tasks, options.steps)
        else:
            submit = functools.partial(database.execute, SUBMIT, [1])
            found = {"latencies": work.measure_latencies(lambda _: submit(), options.tasks)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
