"""The product on the same work: `manage.py qcluster` with two workers, submissions by
`ledger.client`, every setting at its default. The database is the empty one of
LONGWATCH_DATABASE_URL."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import django

from benchmarks import work, workers


@contextmanager
def cluster() -> Iterator[None]:
    """The real cluster, both of its workers registered and waiting."""
    from django.db import connection

    from ledger.models import Worker

    def is_idle() -> bool:
        read_log()
        if Worker.objects.count() < 2:
            return False
        if connection.vendor != "postgresql":
            return True
        with connection.cursor() as cursor:  # both wait on their LISTEN
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                "AND state = 'idle' AND query LIKE 'LISTEN%%'"
            )
            return bool(cursor.fetchone()[0] >= 2)

    with workers.running("manage.py", "qcluster", "--workers", "2") as read_log:
        work.wait_for("two workers are idle", is_idle)
        yield


def measure_throughput(tasks: int, steps: int) -> dict[str, Any]:
    """Units per second from the first committed submission to the last task done."""
    from django.db.models import Max

    from ledger import client
    from ledger.models import StepOutput, Task

    begun = 0.0
    for number in range(tasks):
        client.submit(f"bench-{steps}", {"task": number})
        begun = begun or time.time()
    submitted = time.time()
    work.wait_for("all is done", lambda: Task.objects.filter(status="completed").count() == tasks)
    ended = Task.objects.aggregate(last=Max("finished_at"))["last"].timestamp()
    stored = StepOutput.objects.count()
    if stored != tasks * steps:
        raise RuntimeError(f"{stored} outputs instead of {tasks * steps}")
    return {
        "rate": tasks * steps / (ended - begun),
        "submit_ms": (submitted - begun) * 1000 / tasks,
    }


def submit_stamped(number: int) -> None:
    """One task whose first instruction notes the time."""
    from ledger import client

    client.submit("bench-stamped", {"task": number})


def main() -> None:
    """One run: its figure as a line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=["w1", "w2"])
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    django.setup()
    from ledger import registry

    registry.load_all()  # a client's start, like its connection: no part of what is measured
    with cluster():
        if options.workload == "w1":
            found = measure_throughput(options.tasks, options.steps)
        else:
            found = {"latencies": work.measure_latencies(submit_stamped, options.tasks)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
