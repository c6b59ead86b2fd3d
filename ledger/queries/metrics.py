"""The figures of /metrics: five statements, each over a partial index or cut at a bound.

They are of the whole ledger, so only who sees every lane may be shown them.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import Counter

from django.db import connection
from django.db.models import QuerySet

from ledger import clock, conf, states, tallies
from ledger.models import Worker
from ledger.queries import crew, trouble
from ledger.queries.fleet import build_fleet
from ledger.queries.overview import read_rows
from ledger.queries.tasks import COUNT_CAP
from ledger.sql import sqlite

COUNTED = (*sorted(states.UNFINISHED), states.DEAD, states.FAILED)
"""Statuses of which tasks are counted; of the others the counters say how many there were."""

QUEUED_CAP = 100_000
"""Queued tasks are counted up to here, from their index alone; those of another status up to
COUNT_CAP."""

HEADS = 2_000
"""Groups of queued tasks (lane, workflow, version) that are looked at."""

MAX_WORKERS = 5_000


@dataclasses.dataclass(frozen=True, slots=True)
class Metrics:
    """Everything at one moment; ages and sums in seconds, money in nano-units."""

    tasks: dict[tuple[str, str], int]
    """By (workflow, status)."""
    capped: dict[str, bool]
    """By status, whether there are more than are counted."""
    oldest: dict[str, float]
    """Workflow -> for how long the task that comes next has been queued."""
    trouble: dict[str, trouble.Trouble]
    now: dt.datetime
    workers: Counter[str]
    """By `crew.STATES`, those of the last ten minutes."""
    totals: tallies.Totals

    def age(self, kind: str) -> float:
        """For how long the first of a kind of trouble has been so; 0 without any."""
        first = self.trouble[kind].first
        return 0.0 if first is None else max(0.0, (self.now - first).total_seconds())


def load_metrics() -> Metrics:
    """The figures as of now."""
    totals = tallies.read_totals()
    tasks, capped = _count_tasks()
    heads = _read_heads()
    oldest: dict[str, float] = {}
    for workflow, _, age in heads:
        oldest[workflow] = max(oldest.get(workflow, 0.0), age)
    beat = conf.load().heartbeat_seconds
    rows = list(_select_workers())
    now = rows[0].read_at if rows else clock.read()  # type: ignore[attr-defined]
    shown = [crew.show_one(row, [], now, beat)["state"] for row in rows]
    live = [row for row, state in zip(rows, shown, strict=True) if state in crew.BEATING]
    fleet = build_fleet([row.knows for row in live], [row.told for row in live])
    unknown = frozenset(pair[:2] for pair in heads if fleet.find_obstacle(*pair[:2]))
    found = trouble.count_trouble(unknown)
    return Metrics(tasks, capped, oldest, found, now, Counter(shown), totals)


def _select_workers() -> QuerySet[Worker]:
    """Those of late, with the time as `read_at`."""
    fresh = Worker.objects.filter(seen_at__gt=clock.now(-crew.FOLD_SECONDS))
    return fresh.annotate(read_at=clock.now()).order_by("-seen_at")[:MAX_WORKERS]


def _count_tasks() -> tuple[dict[tuple[str, str], int], dict[str, bool]]:
    parts = []
    for status in COUNTED:
        cap = QUEUED_CAP if status == states.QUEUED else COUNT_CAP
        parts.append(
            f"SELECT '{status}', workflow, count(*), {cap} FROM (SELECT workflow FROM "
            f"longwatch_task WHERE status = '{status}' LIMIT {cap}) AS few GROUP BY workflow"
        )
    tasks: dict[tuple[str, str], int] = {}
    sums, caps = Counter[str](), dict[str, int]()
    for status, workflow, count, cap in read_rows(" UNION ALL ".join(parts), []):
        tasks[workflow, status] = count
        sums[status] += count
        caps[status] = cap
    return tasks, {status: sums[status] >= caps.get(status, COUNT_CAP) for status in COUNTED}


def _read_heads() -> list[tuple[str, str, float]]:
    """(workflow, version, seconds queued) of the task that comes next in each group: one probe of
    the claim's index for each. Its rank is when it was queued, less its priority."""
    text = _HEADS_POSTGRESQL if connection.vendor == "postgresql" else _HEADS_SQLITE
    now = clock.micros_fragment(connection.vendor)
    rows = read_rows(
        f"{text} SELECT workflow, workflow_version, {now} - rank - "
        f"priority * {conf.RANK_PER_PRIORITY} FROM g LIMIT {HEADS}",
        [],
    )
    return [(workflow, version, max(0.0, micros / 1e6)) for workflow, version, micros in rows]


_KEY = "lane, workflow, workflow_version"
_HEAD = f"""SELECT {_KEY}, rank, CAST(priority AS bigint) AS priority FROM longwatch_task
  WHERE status = '{states.QUEUED}'"""
_HEADS_POSTGRESQL = f"""WITH RECURSIVE g AS (
  ({_HEAD} ORDER BY {_KEY}, rank, id LIMIT 1)
  UNION ALL SELECT n.* FROM g CROSS JOIN LATERAL (
    {_HEAD} AND ({_KEY}) > (g.lane, g.workflow, g.workflow_version)
    ORDER BY {_KEY}, rank, id LIMIT 1) n)"""
_HEADS_SQLITE = f"""WITH RECURSIVE g({_KEY}, rank, priority) AS (
  SELECT * FROM (SELECT {_KEY}, rank, priority {sqlite.QUEUED} ORDER BY {_KEY}, rank, id LIMIT 1)
  UNION ALL SELECT q.lane, q.workflow, q.workflow_version, q.rank, q.priority
  FROM g JOIN longwatch_task q ON q.rowid = {sqlite.NEXT_GROUP})"""
