"""Sums of what ended, by hour: made once an hour is over, and anew when a task of it changes.

Whoever changes a finished task (sets it going again, deletes it, books money on it) notes its hour
in the same transaction; who sums an hour takes away the notes that it read before. An hour with a
note, or without a sum, is added up from its tasks by whoever asks. So no sum is ever trusted that
a committed change made wrong, and nobody who changes a task waits for a sum.
"""

from __future__ import annotations

import datetime as dt
import random
from typing import Any, Final

from django.db import connection
from django.db.models import Count, Q

from ledger import clock, sql, states
from ledger.models import Hour, HourSum

KEPT: Final = 24 * 8
"""Hours back from now that are summed, and kept: the longest range of a page and a day."""

MARGIN_SECONDS: Final = 300
"""After an hour's end: who read the clock before it has committed, or is seen to be under way."""

STEPS: Final = 4
"""Of the scale of durations for each doubling: a step is 19 % long."""

TICK_SECONDS: Final = 60.0
"""Between looks. The first is at random within it, so that a fleet does not look as one."""

_LOCK: Final = 0x6C77686F
"""The advisory lock of whoever sums: "lwho"."""


def note_change(*moments: dt.datetime | None) -> None:
    """Tasks that ended at these times change: their hours are to be summed anew. Part of the
    transaction that changes them; writes one row for each hour."""
    found = {int(moment.timestamp()) // 3600 for moment in moments if moment is not None}
    Hour.objects.bulk_create(Hour(hour=hour, changed=True) for hour in sorted(found))


class Summing:
    """A process's summing, called by its guardian thread: not at once, and not when others do."""

    def __init__(self) -> None:
        self._begun = False

    def tick(self) -> float:
        """Sum an hour, if one is due; returns in how many seconds to be called again."""
        if not self._begun:
            self._begun = True
            return random.uniform(TICK_SECONDS / 4, TICK_SECONDS)
        return 0.0 if sum_hour() else TICK_SECONDS


def sum_hour() -> bool:
    """Sum the last hour that is due, in one transaction; False if there was nothing to do.

    Safe from any number of processes: one at a time sums, the others have nothing to do.
    """
    if not _list_due(read_oldest())[0]:
        return False
    with sql.atomic():
        if not _try_lock():
            return False
        # Read under the lock, before the tasks are: a note that comes later stays.
        due, first = _list_due(read_oldest())
        if not due:
            return False
        notes = list(Hour.objects.filter(hour__in=due).values_list("pk", "hour"))
        full = _find_full(due[0], first)
        done = [hour for hour in due if hour >= full]
        HourSum.objects.filter(hour__in=done).delete()
        if full in done:
            _sum_tasks(full)
        read = [key for key, hour in notes if hour in done]
        for start in range(0, len(read), 1_000):
            Hour.objects.filter(pk__in=read[start : start + 1_000]).delete()
        Hour.objects.bulk_create(Hour(hour=hour) for hour in done)
        for table in (Hour, HourSum):
            table._default_manager.filter(hour__lt=first).delete()
    return True


def _find_full(last: int, first: int) -> int:
    """The latest hour up to `last` in which a task ended; `first` if none did. Those after it are
    done with it: a new ledger is summed at one go."""
    end = bound_hours(last, last + 1)[1]
    with connection.cursor() as cursor:
        cursor.execute("SELECT max(finished_at) FROM longwatch_task WHERE finished_at < %s", [end])
        found = cursor.fetchone()[0]
    if found is None:
        return first
    return min(last, max(first, int(clock.parse(found).timestamp()) // 3600))


def read_oldest() -> int:
    """The second since which what is written may not be committed: that of the oldest transaction
    that wrote, or waits to; on SQLite nobody else writes under the lock."""
    if connection.vendor != "postgresql":
        return int(clock.read().timestamp())
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT CAST(floor(extract(epoch FROM least(statement_timestamp(), "
            "(SELECT min(xact_start) FROM pg_stat_activity WHERE datname = current_database() "
            "AND (backend_xid IS NOT NULL OR wait_event_type = 'Lock') "
            "AND pid <> pg_backend_pid())))) AS bigint)"
        )
        return int(cursor.fetchone()[0] + clock.offset)


def _list_due(oldest: int) -> tuple[list[int], int]:
    """(the hours to be summed, the last first; the first hour that is kept)."""
    closed = (oldest - MARGIN_SECONDS) // 3600
    first = closed - KEPT
    good = list_good()
    due = [hour for hour in range(closed - 1, first - 1, -1) if hour not in good]
    return due, first


def _try_lock() -> bool:
    """Until the transaction ends. On SQLite there is one that writes."""
    if connection.vendor != "postgresql":
        return True
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [_LOCK])
        return bool(cursor.fetchone()[0])


def _sum_tasks(hour: int) -> None:
    seconds = write_seconds()
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO longwatch_hour_sum (hour, lane, workflow, version, status, began, took, "
            f"tasks, cost, tokens, repairs, seconds) SELECT {hour}, lane, workflow, "
            f"workflow_version, status, {write_slot('started_at', 3600)}, {write_step()}, "
            "count(*), sum(used_cost), sum(used_tokens_in + used_tokens_out), sum(repair_count), "
            f"coalesce(sum({seconds}), 0) FROM longwatch_task "
            "WHERE finished_at >= %s AND finished_at < %s GROUP BY 2, 3, 4, 5, 6, 7",
            bound_hours(hour, hour + 1),
        )


def bound_hours(first: int, after: int) -> list[Any]:
    """The times at which the hours `first` and `after` begin, for a statement."""
    moments = (dt.datetime.fromtimestamp(hour * 3600, dt.UTC) for hour in (first, after))
    return [clock.store(moment, connection.vendor) for moment in moments]


def write_slot(column: str, size: int) -> str:
    """SQL text: in which `size` seconds since 1970 the time lies."""
    if connection.vendor == "postgresql":
        return f"CAST(floor(extract(epoch FROM {column})) AS bigint) / {size}"
    # A double of days is good to some 50 microseconds; stored times have milliseconds.
    return f"CAST((julianday({column}) - 2440587.5) * 86400.0 + 0.0005 AS integer) / {size}"


def write_seconds() -> str:
    """SQL text: from a completed task's first claim to its end; NULL for others."""
    if connection.vendor == "postgresql":
        took = "CAST(extract(epoch FROM finished_at - started_at) AS double precision)"
    else:
        took = "round((julianday(finished_at) - julianday(started_at)) * 86400.0, 3)"
    return f"CASE WHEN status = '{states.COMPLETED}' THEN {took} END"


def write_step() -> str:
    """SQL text: the step of that on the scale of durations, from 1 ms up."""
    seconds = write_seconds()
    least = f"CASE WHEN {seconds} < 0.001 THEN 0.001 ELSE {seconds} END"
    return f"CAST(floor(ln({least}) * {STEPS / 0.6931471805599453}) AS integer)"


def list_good() -> set[int]:
    """The hours that are summed, and of which no task changed since."""
    changes = Count("id", filter=Q(changed=True))
    notes = Hour.objects.order_by("hour").values_list("hour").annotate(changes=changes)
    return {hour for hour, changed in notes if not changed}
