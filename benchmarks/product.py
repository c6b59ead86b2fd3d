"""The product on the same work: `manage.py qcluster` with two workers, submissions by
`ledger.client`, answers by its API behind gunicorn, every setting at its default. The database is
the empty one of LONGWATCH_DATABASE_URL."""

from __future__ import annotations

import argparse
import itertools
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import django

from benchmarks import work, workers
from benchmarks.databases import COUNTERS
from tests.pg import find_free_port

COUNTED_SECONDS = 11.0
"""An idle session of PostgreSQL has told the statistics what it did after ten seconds."""


@contextmanager
def cluster(*, idle: bool = True) -> Iterator[None]:
    """The real cluster; both of its workers registered and waiting, if there is nothing to do."""
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
        if idle:
            work.wait_for("two workers are idle", is_idle)
        yield


def measure_throughput(tasks: int, steps: int) -> dict[str, Any]:
    """Units per second from the first committed submission to the last task done; and how many
    statements this driver itself needed to see that."""
    from django.db import connection
    from django.db.models import Max

    from ledger import client
    from ledger.models import StepOutput, Task

    polls = itertools.count(2)  # the last time, the outputs
    begun = 0.0
    for number in range(tasks):
        client.submit(f"bench-{steps}", {"task": number})
        begun = begun or time.time()
    submitted = time.time()

    def is_done() -> bool:
        next(polls)
        with connection.cursor() as cursor:  # a plain statement, as the reference's driver
            cursor.execute("SELECT count(*) FROM longwatch_task WHERE status = 'completed'")
            return bool(cursor.fetchone()[0] == tasks)

    work.wait_for("all is done", is_done)
    ended = Task.objects.aggregate(last=Max("finished_at"))["last"].timestamp()
    stored = StepOutput.objects.count()
    if stored != tasks * steps:
        raise RuntimeError(f"{stored} outputs instead of {tasks * steps}")
    return {
        "rate": tasks * steps / (ended - begun),
        "submit_ms": (submitted - begun) * 1000 / tasks,
        "polls": next(polls),
    }


def measure_commits(tasks: int, steps: int) -> dict[str, Any]:
    """The same, with what the server had counted before the first submission."""
    from django.db import connection

    time.sleep(COUNTED_SECONDS)
    with connection.cursor() as cursor:
        cursor.execute(COUNTERS, [connection.settings_dict["NAME"]])
        commits, fsyncs = cursor.fetchone()
    found = measure_throughput(tasks, steps)
    return {"commits": commits, "fsyncs": fsyncs, "polls": found["polls"] + 1}


def submit_stamped(number: int) -> None:
    """One task whose first instruction notes the time."""
    from ledger import client

    client.submit("bench-stamped", {"task": number})


def measure_answers(count: int) -> list[float]:
    """Tasks that wait, answered by the API one by one; milliseconds from just before each request
    to the first instruction of the step after it, in ascending order."""
    from ledger import client, tokens
    from ledger.models import Approval

    _, token = tokens.make_token("bench", ["approve"], created_by="cli:bench")
    for number in range(count):
        client.submit("bench-asking", {"task": number})
    work.wait_for("all have asked", lambda: Approval.objects.count() == count)
    asked = {row.payload["task"]: row for row in Approval.objects.all()}
    url = f"http://127.0.0.1:{find_free_port()}"

    def answer(number: int) -> None:
        body = {"decision": "approve", "digest": asked[number].digest}
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        path = f"{url}/api/v1/approvals/{asked[number].pk}/answer"
        request = urllib.request.Request(path, json.dumps(body).encode(), headers)
        urllib.request.urlopen(request, timeout=30).close()

    with workers.running("-m", "gunicorn", "harness_site.wsgi", "--bind", url[7:]) as read_log:
        work.wait_for("the web answers", lambda: read_log() is not None and _is_ready(url))
        return work.measure_latencies(answer, count)


def _is_ready(url: str) -> bool:
    try:
        urllib.request.urlopen(f"{url}/readyz", timeout=10).close()
    except urllib.error.URLError:
        return False
    return True


def main() -> None:
    """One run: its figure as a line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=["w1", "commits", "w2", "answers"])
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    django.setup()
    from ledger import registry

    registry.load_all()  # a client's start, like its connection: no part of what is measured
    with cluster():
        if options.workload == "w1":
            found = measure_throughput(options.tasks, options.steps)
        elif options.workload == "commits":
            found = measure_commits(options.tasks, options.steps)
        elif options.workload == "answers":
            found = {"latencies": measure_answers(options.tasks)}
        else:
            found = {"latencies": work.measure_latencies(submit_stamped, options.tasks)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
