"""`python -m benchmarks.pages`: what the pages take on a ledger of 100,000 tasks.

The answer of a view through the whole stack of middleware, without a socket: each page in turn with
a bare Django view of one indexed query, so that the ratio of the two says more than milliseconds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from benchmarks import figures
from benchmarks.databases import DURABLE, read_environment
from benchmarks.workers import ROOT
from tests.pg import Cluster

TARGETS = {"overview": 150, "list": 120, "detail": 150, "approval": 100, "search": 250}
"""Milliseconds at p95."""
POLL_MS, POLL_BYTES = 5, 300
"""Of a poll that finds nothing new."""
PART = {"HX-Request": "true"}
POLLED = ("overview", "list", "approvals", "stalled", "workers", "waiting detail", "running detail")


def main() -> int:
    """Fill a database, measure in a process of its own, print; 1 if a target was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pages", description=__doc__)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--keep", type=Path, help="a folder: what is filled is used again")
    parser.add_argument("--fill", action="store_true", help="only fill it, measure nothing")
    parser.add_argument("--report", type=Path, help="the page whose table is written anew")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(measure_pages(options.rounds)))
        return 0
    with contextlib.ExitStack() as stack:
        temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="lw-pages-"))
        folder = (options.keep or Path(temporary)).resolve()
        keep = folder / "postgresql" if options.keep else None
        cluster = stack.enter_context(Cluster(keep=keep, **DURABLE))
        environment, about = prepare_database(cluster, folder, options.tasks)
        if options.fill:
            print(about)
            return 0
        found = json.loads(
            run(environment, "-m", "benchmarks.pages", "--inside", "--rounds", str(options.rounds))
        )
        table = write_table(found, f"{figures.write_stamp()}: {about}, {options.rounds} rounds")
        print(table)
        if options.report:
            figures.put_into(options.report, table, figures.BEGIN_PAGES)
    missed = find_missed(found)
    for line in missed:
        print(f"MISSED: {line}")
    return 1 if missed else 0


def prepare_database(cluster: Cluster, folder: Path, tasks: int) -> tuple[dict[str, str], str]:
    """(the environment of a run on a database with so many tasks, what it is).

    A database gets its name when it is filled, so that one with this name is whole.
    """
    name, began = f"tasks_{tasks}", time.monotonic()
    root = cluster.url.rpartition("/")[0]
    with psycopg.connect(cluster.url, autocommit=True) as admin:
        there = admin.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone()
        if there is None:
            admin.execute("DROP DATABASE IF EXISTS filling WITH (FORCE)")
            admin.execute("CREATE DATABASE filling")
            filling = read_environment(f"{root}/filling", folder)
            run(filling, "manage.py", "migrate", "--verbosity", "0")
            run(filling, "manage.py", "demo_data", "--tasks", str(tasks))
            with psycopg.connect(f"{root}/filling", autocommit=True) as inside:
                inside.execute("VACUUM ANALYZE")
            admin.execute(f"ALTER DATABASE filling RENAME TO {name}")
    environment = read_environment(f"{root}/{name}", folder)
    run(environment, "manage.py", "migrate", "--verbosity", "0")  # kept ones may be older
    run(environment, "manage.py", "collectstatic", "--noinput", "--verbosity", "0")
    with psycopg.connect(f"{root}/{name}") as inside:
        rows: Any = inside.execute(
            "SELECT current_setting('server_version'), (SELECT sum(reltuples)::bigint "
            "FROM pg_class WHERE relname IN ('longwatch_step_output', 'longwatch_event'))"
        ).fetchone()
    filled = "kept" if there else f"filled in {time.monotonic() - began:.0f} s"
    return environment, (
        f"PostgreSQL {rows[0].split()[0]}, {tasks:,} tasks, some {rows[1]:,} outputs and events "
        f"({filled})"
    )


def run(environment: dict[str, str], *arguments: str) -> str:
    """What a process of this Python prints; its standard error goes through."""
    ended = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, check=True,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return ended.stdout


def measure_pages(rounds: int) -> dict[str, dict[str, float]]:
    """p50 and p95 in milliseconds, bytes and queries of each page and of the bare view."""
    import django

    django.setup()
    from django.test.utils import override_settings

    with override_settings(ROOT_URLCONF="benchmarks.bare", ALLOWED_HOSTS=["*"]):
        return _measure(rounds)


def _measure(rounds: int) -> dict[str, dict[str, float]]:
    from ledger import hours

    while hours.sum_hour():  # as workers do, for as long as any hour is left
        pass
    client = _sign_in()
    with _holding_one() as running:
        pages = _list_pages() | {"running detail": running}
        asked: dict[str, tuple[str, dict[str, str]]] = {"bare": ("/bare/", {})}
        asked |= {name: (path, {}) for name, path in pages.items()}
        for name in POLLED:
            asked[f"poll of {name}"] = (pages[name], PART | {"HX-PTag": ""})
        found = {name: _look_at(client, *one) for name, one in asked.items()}
        took: dict[str, list[float]] = {name: [] for name in asked}
        for _ in range(rounds):
            for name, (path, headers) in asked.items():
                began = time.perf_counter()
                answer = client.get(path, headers=headers)
                spent = (time.perf_counter() - began) * 1000
                if "HX-PTag" in headers:
                    headers["HX-PTag"] = answer["HX-PTag"]
                    if answer.status_code != 304:  # something was written meanwhile
                        continue
                took[name].append(spent)
    for name, times in took.items():
        times.sort()
        found[name] |= {"p50": times[len(times) // 2], "p95": times[int(len(times) * 0.95)]}
    return found


def _look_at(client: Any, path: str, headers: dict[str, str]) -> dict[str, float]:
    """Queries and bytes; of a poll, once it stands."""
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    expected = 200
    if "HX-PTag" in headers:
        headers["HX-PTag"] = _find_tag(client, path)
        headers["HX-PTag"] = client.get(path, headers=headers)["HX-PTag"]
        expected = 304
    with CaptureQueriesContext(connection) as queries:
        answer = client.get(path, headers=headers)
        number = len(queries)
    if answer.status_code != expected:
        raise RuntimeError(f"{path} answered {answer.status_code}, not {expected}")
    return {"queries": number, "bytes": len(answer.content)}


@contextlib.contextmanager
def _holding_one() -> Iterator[str]:
    """The path of a task that runs meanwhile, and is given back after."""
    from django.urls import reverse

    from ledger import sql
    from ledger.events import Actor
    from ledger.models import Task
    from ledger.transitions import operators

    row = Task.objects.filter(status="queued").order_by("-id")[0]
    groups = [(row.lane, row.workflow, row.workflow_version)]
    held = sql.claim_task("bench:1:pages", groups, 3600.0)
    if held is None:
        raise RuntimeError("no task could be claimed")
    try:
        yield reverse("dashboard:task", args=[held.task_id])
    finally:
        operators.retry_task(held.task_id, actor=Actor("cli", "bench"))


def _sign_in() -> Any:
    from django.contrib.auth import get_user_model
    from django.contrib.auth.models import Group
    from django.test import Client

    user: Any = get_user_model()
    person, _ = user.objects.get_or_create(username="bench")
    person.groups.add(Group.objects.get_or_create(name="operator")[0])
    client = Client()
    client.force_login(person)
    return client


def _list_pages() -> dict[str, str]:
    from django.urls import reverse

    from ledger.models import Approval, Task

    tasks = reverse("dashboard:tasks")
    longest = Task.objects.filter(status="completed").order_by("-used_units", "-id")[0]
    question = Approval.objects.filter(status="open").order_by("-id")[0]
    middle = Task.objects.order_by("-created_at", "-id")[Task.objects.count() // 2]
    return {
        "overview": reverse("dashboard:overview"),
        "list": tasks,
        "failed list": f"{tasks}?status=failed",
        "detail": reverse("dashboard:task", args=[longest.pk]),
        "waiting detail": reverse("dashboard:task", args=[question.task_id]),
        "approvals": reverse("dashboard:approvals"),
        "approval": reverse("dashboard:approval", args=[question.pk]),
        "stalled": reverse("dashboard:trouble"),
        "workers": reverse("dashboard:workers"),
        "search": f"{tasks}?q=invoices+{middle.title.rpartition(' ')[2]}",
        "search for nothing": f"{tasks}?q=zebra-crossing",
        "search by id": f"{tasks}?q={str(middle.pk)[-12:]}",
    }


def _find_tag(client: Any, path: str) -> str:
    found = re.search(r'hx-ptag="([^"]+)"', client.get(path).content.decode())
    if found is None:
        return str(client.get(path, headers=PART)["HX-PTag"])
    return found[1]


def find_bound(name: str) -> int | None:
    """Milliseconds that p95 may be, of what has a target."""
    if name.startswith("poll of "):
        return POLL_MS
    return TARGETS["search"] if name.startswith("search") else TARGETS.get(name)


def find_missed(found: dict[str, dict[str, float]]) -> list[str]:
    """Every target that was not reached, as a sentence."""
    missed = []
    for name, one in found.items():
        bound = find_bound(name)
        if bound is not None and one["p95"] > bound:
            missed.append(f"{name}: {one['p95']:.1f} ms at p95, at most {bound}")
        if bound == POLL_MS and one["bytes"] > POLL_BYTES:
            missed.append(f"{name}: {one['bytes']:.0f} bytes, at most {POLL_BYTES}")
    return missed


def write_table(found: dict[str, dict[str, float]], about: str) -> str:
    """The figures as Markdown."""
    bare = found["bare"]["p95"]
    lines = [
        f"{about}. {figures.describe_machine()}",
        "",
        "| page | p50 ms | p95 ms | at most | of the bare view | queries | bytes |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, one in found.items():
        lines.append(
            f"| {name} | {one['p50']:.1f} | {one['p95']:.1f} | {find_bound(name) or ''} "
            f"| {one['p95'] / bare:.1f} "
            f"| {one['queries']:.0f} | {one['bytes']:.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
