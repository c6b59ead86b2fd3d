"""What needs a person or a worker. One set of rows for each kind serves its count and its list."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connection
from django.db.models import F, Model, QuerySet

from ledger import clock, sql, states
from ledger.models import Task
from ledger.models.approvals import OPEN
from ledger.queries.filters import IsOfVersion, IsStalled, TaskFilter
from ledger.queries.fleet import Fleet
from ledger.queries.overtime import Bounds, match_over
from ledger.queries.seen import hide_error, see_approvals, see_tasks
from ledger.queries.tasks import COUNT_CAP, LARGE

APPROVALS, STALLED, LOST, NO_WORKER, OVER, GAVE_UP = (
    "approvals", "stalled", "lost", "no-worker", "over-time", "gave-up",
)  # fmt: skip
TASK_KINDS = (STALLED, LOST, NO_WORKER, GAVE_UP)
"""Of tasks, without OVER, for which one has to know what is usual."""
FOR_PEOPLE = (APPROVALS, STALLED, NO_WORKER, GAVE_UP)
"""A lost task is queued again by a sweep; the others stay as they are until somebody acts."""

SINCE = {
    APPROVALS: "requested_at",
    STALLED: "last_progress_at",
    LOST: "lease_until",
    NO_WORKER: "available_at",
    OVER: "started_at",
    GAVE_UP: "finished_at",
}
"""The column that says since when."""


@dataclasses.dataclass(frozen=True, slots=True)
class Trouble:
    """How many there are of a kind (up to COUNT_CAP), since when, and for approvals until when."""

    count: int = 0
    first: dt.datetime | None = None
    last: dt.datetime | None = None
    until: dt.datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Narrowed:
    """Tasks of every kind, narrowed by a list's filter, and to those that have been so for
    `seconds`. Over time is what `bounds` say; without them nothing is."""

    wanted: TaskFilter | None = None
    seconds: float = 0.0
    bounds: Bounds = dataclasses.field(default_factory=dict)

    def apply(self, kind: str, rows: QuerySet[Task]) -> QuerySet[Task]:
        """`rows` of a kind. Raises InvalidInput."""
        if self.seconds:
            rows = rows.filter(**{f"{SINCE[kind]}__lt": clock.now(-self.seconds)})
        return rows if self.wanted is None else self.wanted.apply(rows)


ALL = Narrowed()


def select_trouble(
    kind: str, unknown: frozenset[tuple[str, str]], narrowed: Narrowed = ALL
) -> QuerySet[Any]:
    """The rows of a kind. `unknown`: queued workflow versions that no live worker knows."""
    if kind == APPROVALS:
        return see_approvals().filter(status=OPEN)
    return narrowed.apply(kind, _select_tasks(kind, unknown, narrowed.bounds))


def _select_tasks(kind: str, unknown: frozenset[tuple[str, str]], bounds: Bounds) -> QuerySet[Task]:
    tasks = see_tasks()
    if kind == STALLED:
        return tasks.filter(IsStalled(), status=states.RUNNING, lease_until__gte=clock.now())
    if kind == LOST:
        return tasks.filter(status=states.RUNNING, lease_until__lt=clock.now())
    if kind == OVER:
        live = tasks.filter(match_over(bounds), status=states.RUNNING, lease_until__gte=clock.now())
        return live.exclude(IsStalled())
    if kind == GAVE_UP:
        return tasks.filter(status=states.DEAD)
    if not unknown:
        return tasks.none()
    return tasks.filter(IsOfVersion(unknown), status=states.QUEUED)


def list_unknown(fleet: Fleet) -> frozenset[tuple[str, str]]:
    """The (workflow, version) of queued tasks that no live worker knows."""
    waiting = {(workflow, version) for _, workflow, version in sql.list_groups()}
    return frozenset(pair for pair in waiting if fleet.find_obstacle(*pair))


def count_trouble(
    unknown: frozenset[tuple[str, str]], narrowed: Narrowed = ALL
) -> dict[str, Trouble]:
    """Every kind in one statement, each counted up to COUNT_CAP."""
    parts, values = [], []
    for kind, since in SINCE.items():
        until = "expires_at" if kind == APPROVALS else since
        rows = _compile_rows(select_trouble(kind, unknown, narrowed), since, until)
        if rows is None:
            continue
        parts.append(
            "SELECT %s, count(*), min(since), max(since), min(until) "
            f"FROM ({rows[0]} LIMIT {COUNT_CAP}) AS capped"
        )
        values += [kind, *rows[1]]
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(parts), values)
        found = cursor.fetchall()
    counts = {kind: Trouble(n, *(_read_time(at) for at in times)) for kind, n, *times in found}
    return {kind: counts.get(kind, Trouble()) for kind in SINCE}


def list_trouble(
    kind: str,
    unknown: frozenset[tuple[str, str]],
    limit: int = 200,
    narrowed: Narrowed = ALL,
) -> list[Task]:
    """The task rows of a kind without their large columns; who waits longest comes first, of
    those that gave up the last one.
    """
    rows = select_trouble(kind, unknown, narrowed).annotate(stalled=IsStalled()).defer(*LARGE)
    order = f"-{SINCE[kind]}" if kind == GAVE_UP else SINCE[kind]
    found = list(rows.order_by(order, "id")[:limit])
    for row in found:
        row.error = hide_error(row.error)
    return found


def _compile_rows[M: Model](
    rows: QuerySet[M], since: str, until: str
) -> tuple[str, tuple[Any, ...]] | None:
    """The statement behind `rows` as columns `since` and `until`; None when it finds nothing."""
    columns = {"since": F(since), "until": F(until)}
    query = rows.order_by().annotate(**columns).values_list(*columns).query
    try:
        statement, values = query.sql_with_params()
    except EmptyResultSet:
        return None
    return statement, values


def _read_time(value: Any) -> dt.datetime | None:
    return None if value is None else clock.parse(value)
