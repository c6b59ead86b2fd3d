"""W3: how fast two workers are with much else in the tables. Fills a database with copies of rows
that the product wrote itself, and measures a number of units there, again and again."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import time
from typing import Any

import django

from benchmarks import work
from benchmarks.product import cluster

READY = 1_000
"""Tasks that are ready to run, in every case, before each run."""

STEPS = 10
FLOW = f"bench-{STEPS}"

TABLES = {"longwatch_task": "id", "longwatch_step_output": "task_id", "longwatch_event": "task_id"}
"""What a task of these workflows has rows in, and by which column."""

CASES = ("1k", "queued", "scheduled", "unclaimable", "finished", "snapshot")


def write_id(number: str) -> str:
    """SQL text: an id as the product makes them (UUIDv7), so many milliseconds after the row's."""
    stamp = f"lpad(to_hex((extract(epoch FROM t.created_at) * 1000)::bigint + {number}), 12, '0')"
    tail = f"md5(t.id::text || {number})"
    return f"({stamp} || '7' || left({tail}, 3) || '8' || right({tail}, 15))::uuid"


def copy_task(task: Any, count: int, changes: dict[str, str]) -> None:
    """`count` copies of a task with all of its rows; `changes` are columns of the task's table as
    SQL text. Their ids are older, as those of a backlog are: among ids that are still to come, each
    new task would split full pages of every index. Foreign keys hold as the rows are made, so
    nobody looks them up three times a row."""
    from django.db import connection

    from ledger.models import Event, StepOutput, Task

    older = f"(n - {count + 1})"
    changes = {"rank": "t.rank + n", **changes, "id": write_id(older)}
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        for model in (Task, StepOutput, Event):
            table = model._meta.db_table
            columns = [f.column for f in model._meta.concrete_fields if not f.generated]
            if model is Task:
                values = [changes.get(column, f"t.{column}") for column in columns]
                source = f"{table} t"
            else:
                columns.remove("id")
                values = [write_id(older) if c == "task_id" else f"o.{c}" for c in columns]
                source = f"longwatch_task t JOIN {table} o ON o.task_id = t.id"
            cursor.execute(
                f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(values)} "
                f"FROM {source}, generate_series(1, %s) AS n WHERE t.id = %s",
                [count, task],
            )
        cursor.execute("SET session_replication_role = DEFAULT")


def run_one() -> Any:
    """A task of one step, run to its end in this process; its id."""
    from ledger import client, runner

    task = client.submit("bench-1", {"task": 0})
    engine = runner.Engine("bench:1:boot")
    held = engine.claim()
    while held is not None:
        held = runner.run_attempt(engine, held)
    return task


def count_all() -> None:
    """What is there is in the totals of /metrics. Else the sender of the first run catches up with
    100,000 submissions that were made in a few seconds, for longer than what is measured lasts."""
    from ledger import tallies
    from ledger.models import Task

    # The task itself and its last copy, whose rows came last.
    newest = list(Task.objects.order_by("-id").values_list("pk", flat=True)[:2])
    work.wait_for(
        "all is counted", lambda: not (tallies.add_up() or tallies.find_uncounted(newest)), 600.0
    )


def fill(case: str, size: int) -> None:
    """What the case has beside the tasks that are to run; then as a sender, which counts what is
    submitted, and autovacuum would leave it."""
    from django.db import connection

    from ledger import client

    if case == "finished":
        copy_task(run_one(), size, {})
    elif case == "scheduled":
        later = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
        task = client.submit(FLOW, {"task": 0}, priority=100, not_before=later)
        copy_task(task, size, {})
    elif case == "unclaimable":
        task = client.submit(FLOW, {"task": 0}, priority=100)
        copy_task(task, size, {"workflow": "'bench-of-nobody'"})
    elif case in {"queued", "snapshot"}:
        copy_task(client.submit(FLOW, {"task": 0}), size, {})
    count_all()
    with connection.cursor() as cursor:
        cursor.execute("VACUUM (ANALYZE)")
        cursor.execute("CHECKPOINT")


def top_up() -> None:
    """At least READY tasks are ready again."""
    from ledger import client
    from ledger.models import Task

    queued = Task.objects.filter(status="queued", workflow=FLOW)[:READY].count()
    if queued < READY:
        copy_task(client.submit(FLOW, {"task": 0}), READY - queued - 1 or 1, {})


def measure(units: int) -> float:
    """Units per second by the times of their outputs, once a seventh of them is done: the first
    ones are slow with whatever a start has to do."""
    from ledger import clock
    from ledger.models import StepOutput, Task

    top_up()
    begun = clock.read()
    # By the time alone, for which there is an index: this looks fifty times a second, and with
    # the status the planner may go through every task that has ever ended.
    done = Task.objects.filter(finished_at__gt=begun)
    with cluster(idle=False):
        work.wait_for("enough is done", lambda: done.count() >= units // STEPS, 180.0)
    times = list(
        StepOutput.objects.filter(task__in=done.values("pk"))
        .order_by("finished_at")
        .values_list("finished_at", flat=True)
    )
    first = units // 7
    return (units - first) / (times[units - 1] - times[first - 1]).total_seconds()


def main() -> None:
    """Fill the database of LONGWATCH_DATABASE_URL, or measure there; a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fill", choices=CASES)
    parser.add_argument("--size", type=int, default=100_000)
    parser.add_argument("--units", type=int, default=7_000)
    options = parser.parse_args()
    django.setup()
    from ledger import registry

    registry.load_all()
    begun = time.monotonic()
    if options.fill:
        fill(options.fill, options.size)
        print(json.dumps({"seconds": time.monotonic() - begun}))
    else:
        print(json.dumps({"rate": measure(options.units)}))


if __name__ == "__main__":
    main()
