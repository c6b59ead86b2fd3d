"""Many workers, each waiting in a step: what they take, and whether a beat is missed."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import django
import psutil

from benchmarks import work, workers

LATE_SECONDS = 5.0
"""A beat that comes so much later than the heartbeat's interval counts as missed."""


def read_pss(pid: int) -> int:
    """Bytes of a process: its own, and its share of what it shares. 0 once it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def look(lease: float) -> dict[str, float]:
    """Running tasks, the age of the oldest lease since its last beat, and sessions."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*), coalesce(max(extract(epoch FROM clock_timestamp() - lease_until)), "
            "-%s)::float8 + %s, (SELECT count(*) FROM pg_stat_activity WHERE datname = "
            "current_database() AND pid <> pg_backend_pid()) "
            "FROM longwatch_task WHERE status = 'running'",
            [lease, lease],
        )
        running, age, sessions = cursor.fetchone()
    return {"running": running, "age": age, "connections": sessions}


def count_missed(heartbeat: float) -> int:
    """Beats that a task should have had while it ran, less those that it had; and reclaims."""
    from ledger.models import Event, Task

    missed = Event.objects.filter(kind__in=("reclaimed", "attempt_failed")).count()
    for task in Task.objects.all():
        assert task.started_at is not None
        assert task.finished_at is not None
        ran = (task.finished_at - task.started_at).total_seconds()
        missed += max(0, int((ran - LATE_SECONDS) / heartbeat) - task.beat)
    return missed


def measure(count: int, seconds: float) -> dict[str, float]:
    """`count` workers of one cluster, a task of `seconds` for each."""
    from ledger import client, conf
    from ledger.models import Task, Worker

    tunables = conf.load()
    begun = time.monotonic()
    with workers.running("manage.py", "qcluster", "--workers", str(count)) as read_log:
        work.wait_for(
            "all workers are there",
            lambda: read_log() is not None and Worker.objects.count() >= count, 180.0,
        )  # fmt: skip
        started = time.monotonic() - begun
        family = psutil.Process().children(recursive=True)
        for number in range(count):
            client.submit("bench-waiting", {"task": number, "seconds": seconds})
        seen: list[dict[str, float]] = []
        memory = 0

        def is_over() -> bool:
            nonlocal memory
            seen.append(look(tunables.lease_seconds))
            if not memory and seen[-1]["running"] == count:
                memory = sum(read_pss(process.pid) for process in family)
            time.sleep(0.5)
            return Task.objects.filter(status="completed").count() == count

        work.wait_for("all is done", is_over, seconds + 120.0)
    late = max(one["age"] for one in seen)
    missed = count_missed(tunables.heartbeat_seconds)
    return {
        "started": started,
        "running": max(one["running"] for one in seen),
        "memory": memory / 1e6,
        "each": memory / 1e6 / count,
        "connections": max(one["connections"] for one in seen),
        "late": late,
        "missed": missed + (late > tunables.heartbeat_seconds + LATE_SECONDS),
    }


def main() -> None:
    """One run in the empty database of LONGWATCH_DATABASE_URL: its figures as a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    django.setup()
    from ledger import registry

    registry.load_all()
    print(json.dumps(measure(options.workers, options.seconds)))


if __name__ == "__main__":
    main()
