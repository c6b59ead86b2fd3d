"""What the overview adds up: facts of the last tasks, each query bounded by COUNT_CAP rows.

Ages are seconds before now by the database's clock, so that no process's clock is compared with a
stored time.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from django.db import connection

from ledger import clock, states
from ledger.models import Task
from ledger.queries.seen import hide_error, see_tasks, write_lanes
from ledger.queries.tasks import COUNT_CAP

FAILURES_READ = 500
"""Failed and dead tasks that are grouped; the last ones, as older ones repeat them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """A task that ended: how long ago, how long after its first claim, and what it used."""

    ago: float
    took: float | None
    status: str
    workflow: str
    version: str
    cost: int
    tokens: int
    repairs: int


@dataclasses.dataclass(frozen=True, slots=True)
class Unfinished:
    """A task under way: how long ago it was submitted and first claimed, who holds it, and what it
    has used so far."""

    submitted: float
    started: float | None
    status: str
    workflow: str
    version: str
    owner: str
    cost: int
    tokens: int


@dataclasses.dataclass(frozen=True, slots=True)
class Trials:
    """What went wrong and was dealt with, of the last COUNT_CAP events.

    `whole` is False when those do not reach back to the beginning of the range.
    """

    lost: int
    repaired: int
    failed_attempts: int
    whole: bool


def list_ended(seconds: float) -> list[Ended]:
    """The tasks that ended in the last `seconds`, the newest first."""
    took = _seconds_between("started_at", "finished_at")
    lanes, values = write_lanes()
    return [
        Ended(*row)
        for row in read_rows(
            f"SELECT {_seconds_ago('finished_at')}, {took}, status, workflow, workflow_version, "
            "used_cost, used_tokens_in + used_tokens_out, repair_count FROM longwatch_task "
            f"WHERE finished_at > {_moment_ago()}{lanes} "
            f"ORDER BY finished_at DESC LIMIT {COUNT_CAP}",
            [-seconds, *values],
        )
    ]


def list_unfinished() -> list[Unfinished]:
    """Tasks under way, in no order."""
    marks = ", ".join(["%s"] * len(states.UNFINISHED))
    lanes, values = write_lanes()
    return [
        Unfinished(*row)
        for row in read_rows(
            f"SELECT {_seconds_ago('created_at')}, {_seconds_ago('started_at')}, status, "
            "workflow, workflow_version, lease_owner, used_cost, used_tokens_in + used_tokens_out "
            "FROM longwatch_task "
            f"WHERE status IN ({marks}){lanes} LIMIT {COUNT_CAP}",
            [*sorted(states.UNFINISHED), *values],
        )
    ]


def count_trials(seconds: float) -> Trials:
    """Lost workers, repairs and failed attempts of the last `seconds`: one look at the last events.

    Events have no index on their kind; an index on a table that grows by millions for one figure
    would cost every writer.
    """
    kinds = [f"coalesce(sum(CASE WHEN kind = '{kind}' AND at > line THEN 1 ELSE 0 END), 0)"
             for kind in ("reclaimed", "repaired", "attempt_failed")]  # fmt: skip
    lanes, values = write_lanes()
    own = f"WHERE task_id IN (SELECT id FROM longwatch_task WHERE true{lanes}) " if lanes else ""
    rows = read_rows(
        f"SELECT {', '.join(kinds)}, count(*), max(CASE WHEN at <= line THEN 1 ELSE 0 END) FROM "
        f"(SELECT kind, at, {_moment_ago()} AS line FROM longwatch_event "
        f"{own}ORDER BY id DESC LIMIT {COUNT_CAP}) AS latest",
        [-seconds, *values],
    )
    lost, repaired, failed, seen, reached = rows[0]
    return Trials(lost, repaired, failed, bool(reached) or seen < COUNT_CAP)


def list_failures(seconds: float) -> list[Task]:
    """The last tasks that failed or gave up in the last `seconds`, with their errors."""
    columns = (
        "workflow", "workflow_version", "status", "status_reason", "step_name", "error",
        "used_cost", "finished_at",
    )  # fmt: skip
    rows = see_tasks().filter(
        status__in=(states.FAILED, states.DEAD), finished_at__gt=clock.now(-seconds)
    )
    found = list(rows.only(*columns).order_by("-finished_at")[:FAILURES_READ])
    for row in found:
        row.error = hide_error(row.error)
    return found


def _seconds_ago(column: str) -> str:
    return _seconds_between(column, clock.fragment(connection.vendor))


def _seconds_between(start: str, end: str) -> str:
    if connection.vendor == "postgresql":
        return f"CAST(extract(epoch FROM {end} - {start}) AS double precision)"
    # A double of days is good to some 50 microseconds; stored times have milliseconds.
    return f"round((julianday({end}) - julianday({start})) * 86400.0, 3)"


def _moment_ago() -> str:
    """Takes a (negative) number of seconds as the statement's parameter."""
    return clock.fragment(connection.vendor, "%s")


def read_rows(statement: str, values: list[Any]) -> list[tuple[Any, ...]]:
    if connection.vendor == "sqlite":
        # strftime's own signs; a placeholder stays one.
        statement = statement.replace("%", "%%").replace("%%s", "%s")
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return list(cursor.fetchall())
