"""Counters that never fall: totals of outputs, events and money, and what came since.

Rows of those tables are only added, numbered upwards. A sender adds them up now and then, as far as
nobody can still commit a lower number; who reads the totals adds the rows after that. Both are one
statement's snapshot, so a counter is exact at any moment, the same in every process, and outlives
rows that are deleted: who deletes a task adds to the totals what of it is not in them yet.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final
from uuid import UUID

from django.db import connection
from django.db.models import Max, Model

from ledger import clock, hours, sql
from ledger.models import Event, Spend, StepOutput, Tally, Task

BUCKETS: Final = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0,
)  # fmt: skip
"""Upper ends of the classes of durations, in seconds; the last class is REST."""

REST: Final = "+Inf"

UNIT, CLAIM, EVENT, TOKENS, COST = "unit", "claim", "event", "tokens", "cost"
SECONDS_OF: Final = {UNIT: "unit_micros", CLAIM: "claim_micros"}
"""Where the sum of a histogram's durations stands, in microseconds."""

CREATED: Final = "created"
"""Of EVENT: the first of a task, whatever its kind."""

KINDS: Final = (
    "completed", "failed", "dead", "cancelled", "reclaimed", "attempt_failed", "released",
    "repaired", "stale_write_refused",
)  # fmt: skip
"""Events that are counted, each by its own kind."""

OTHER: Final = "other"
LABELS: Final = 100
"""Workflows with totals of their own; those whose first task came later are OTHER together."""

TICK_SECONDS: Final = 3.0
CHUNK: Final = 50_000
"""Numbers of one table that are added up in one transaction."""

WINDOW: Final = 100_000
"""Numbers of one table, after the totals, that a reader looks at: where no sender runs, counters
stop there rather than cost more with each look."""

_SOURCES: Final[tuple[type[Model], ...]] = (StepOutput, Event, Spend)
_CURSOR, _MARK, _MARKED, _BIRTH = "cursor", "mark", "marked", "birth"
_LOCK: Final = 0x6C777461
"""The advisory lock of whoever writes totals: "lwta"."""

_INNER: Final = frozenset({_CURSOR, _MARK, _MARKED})

_QUEUED: Final = "'submitted', 'forked', 'promoted', 'resumed', 'retried'"
"""Events by which a task that nobody has claimed yet is queued."""

type Totals = dict[tuple[str, str, str], int]
"""By (name, workflow, detail)."""


class Tallying:
    """A sender's adding up."""

    def __init__(self) -> None:
        self._next = 0.0

    def tick(self) -> None:
        """Add up what is due, if it is time to look again."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + TICK_SECONDS
            while add_up():
                pass


def read_totals() -> Totals:
    """Every counter as of now: two statements, or four if the totals were raised between."""
    state = _read_stored()
    while True:
        reads = [_STORED, _write_births(state)]
        for source in _SOURCES:
            # As numbers: for an index the planner must know how few rows these are.
            first = state.read(_CURSOR, source.__name__)
            reads.append(_write_read(source, f"o.id > {first} AND o.id <= {first + WINDOW}"))
        sums = _Sums()
        sums.add(_run_reads(reads))
        if all(sums.read(_CURSOR, one.__name__) == state.read(_CURSOR, one.__name__)
               for one in _SOURCES):  # fmt: skip
            return {key: value for key, value in sums.totals.items() if key[0] not in _INNER}
        state = sums


def add_up() -> bool:
    """Add rows to the totals up to the mark, or set the next mark; True if there is more to do at
    once. Safe from any number of processes: one at a time writes."""
    if not _is_behind():
        return False
    with sql.atomic():
        if not _take_lock(wait=False):
            return False
        sums = _read_stored()
        if hours.read_oldest() <= sums.read(_MARKED) + 1:
            # Who has a number up to the mark may still commit it. A second more: between
            # drawing a number and being seen to write there is a moment.
            return False
        sums.add(_run_reads([_write_births(sums)]))
        done = _add_to_marks(sums)
        if not done:
            # The clock after the numbers: who draws a lower one has begun by then.
            for source in _SOURCES:
                sums.put((_MARK, "", source.__name__), _read_last(source))
            sums.put((_MARKED, "", ""), int(clock.read().timestamp()))
        _store(sums)
    return done


def keep_task(task_id: UUID) -> None:
    """Add to the totals what of a task is not in them yet: part of the transaction that deletes
    it, before its rows go."""
    _take_lock(wait=True)
    sums = _read_stored()
    sums.add(_run_reads([_write_births(sums)]))
    key = Task._meta.pk.get_db_prep_value(task_id, connection)
    for source in _SOURCES:
        first = sums.read(_CURSOR, source.__name__)
        sums.add(_run_reads([_write_read(source, f"o.task_id = %s AND o.id > {first}")], key))
    _store(sums)


def find_uncounted(task_ids: Sequence[UUID]) -> set[UUID]:
    """Those of the tasks of which something is not in the totals yet."""
    sums, found = _read_stored(), set[UUID]()
    for source in _SOURCES:
        first = sums.read(_CURSOR, source.__name__)
        rows = source._default_manager.filter(task__in=task_ids, pk__gt=first).order_by()
        found |= set(rows.values_list("task", flat=True).distinct())
    return found


def _add_to_marks(sums: _Sums) -> bool:
    """Whether there was anything up to them."""
    done = False
    for source in _SOURCES:
        name = source.__name__
        first = sums.read(_CURSOR, name)
        last = min(sums.read(_MARK, name), first + CHUNK)
        if last > first:
            sums.add(_run_reads([_write_read(source, f"o.id > {first} AND o.id <= {last}")]))
            sums.put((_CURSOR, "", name), last)
            done = True
    return done


class _Sums:
    """Totals, and which of them differ from what is stored."""

    def __init__(self) -> None:
        self.totals: Totals = {}
        self.changed: set[tuple[str, str, str]] = set()
        self._labels: set[str] = set()

    def read(self, name: str, detail: str = "") -> int:
        return self.totals.get((name, "", detail), 0)

    def put(self, key: tuple[str, str, str], value: int) -> None:
        self.totals[key] = value
        self.changed.add(key)

    def add(self, rows: Iterable[Sequence[Any]]) -> None:
        for _, name, workflow, detail, count, micros in rows:
            workflow = self._label(workflow)
            if name == _BIRTH:
                continue
            self._raise((name, workflow, detail), int(count))
            if name in SECONDS_OF:
                self._raise((SECONDS_OF[name], workflow, ""), int(micros))

    def _label(self, workflow: str) -> str:
        """The workflow's own label as long as there are any."""
        if workflow not in {"", OTHER} and workflow not in self._labels:
            if len(self._labels) >= LABELS:
                return OTHER
            self._labels.add(workflow)
        return workflow

    def _raise(self, key: tuple[str, str, str], by: int) -> None:
        self.put(key, self.totals.get(key, 0) + by)


def _read_stored() -> _Sums:
    sums = _Sums()
    sums.add(_run_reads([_STORED]))
    sums.changed.clear()
    return sums


def _store(sums: _Sums) -> None:
    rows = [Tally(name=name, workflow=workflow, detail=detail, value=sums.totals[key])
            for key in sorted(sums.changed) for name, workflow, detail in [key]]  # fmt: skip
    Tally.objects.bulk_create(
        rows, update_conflicts=True, update_fields=["value"],
        unique_fields=["name", "workflow", "detail"],
    )  # fmt: skip


def _is_behind() -> bool:
    """Whether a table has rows beyond its total. All that an idle sender does."""
    newer = " OR ".join(
        f"coalesce((SELECT max(id) FROM {source._meta.db_table}), 0) > coalesce((SELECT value FROM "
        f"longwatch_tally WHERE name = '{_CURSOR}' AND workflow = '' "
        f"AND detail = '{source.__name__}'), 0)"
        for source in _SOURCES
    )
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {newer}")
        return bool(cursor.fetchone()[0])


def _read_last(source: type[Model]) -> int:
    return int(source._default_manager.aggregate(last=Max("pk"))["last"] or 0)


def _take_lock(*, wait: bool) -> bool:
    """Until the transaction ends. On SQLite there is one that writes."""
    if connection.vendor != "postgresql":
        return True
    with connection.cursor() as cursor:
        how = "pg_advisory_xact_lock" if wait else "pg_try_advisory_xact_lock"
        cursor.execute(f"SELECT {how}(%s)", [_LOCK])
        return wait or bool(cursor.fetchone()[0])


def _run_reads(reads: Iterable[_Read], *values: Any) -> list[tuple[Any, ...]]:
    """The rows of all in one statement, in their order."""
    reads = list(reads)
    rows = ", ".join(
        f"{name} AS MATERIALIZED ({text})" for one in reads for name, text in one.rows.items()
    )
    text = f"WITH {rows} " * bool(rows) + " UNION ALL ".join(
        part for one in reads for part in one.sums
    )
    with connection.cursor() as cursor:
        cursor.execute(text, list(values) * text.count("%s"))
        return sorted(cursor.fetchall())


@dataclasses.dataclass(frozen=True, slots=True)
class _Read:
    """Parts of a statement: the rows of a table, each gone through once, and what they add up to
    (place in the order, name, workflow, detail, count, microseconds)."""

    rows: dict[str, str]
    sums: list[str]


_STORED: Final = _Read({}, ["SELECT 0, name, workflow, detail, value, 0 FROM longwatch_tally"])
"""First of all, as it says which workflows have totals of their own."""

_LAST: Final = 2**62
"""The place of sums: after the births, of which each has the number of its event."""

_WORKFLOW: Final = "(SELECT t.workflow FROM longwatch_task t WHERE t.id = o.task_id) AS workflow"
"""Not a join: for one of many rows the planner reads all tasks."""


def _write_births(sums: _Sums) -> _Read:
    """Of the workflows that are not in the totals yet, which came first: so whoever reads and adds
    up, however much of it, gives the last labels to the same ones."""
    first = sums.read(_CURSOR, Event.__name__)
    rows = (
        f"SELECT {_WORKFLOW}, o.id FROM longwatch_event o "
        f"WHERE o.id > {first} AND o.id <= {first + WINDOW} AND o.seq = 1"
    )
    found = [f"SELECT min(id), '{_BIRTH}', workflow, '', 0, 0 FROM born GROUP BY 3"]
    return _Read({"born": rows}, found)


def _write_read(source: type[Model], condition: str) -> _Read:
    rows = f"FROM {source._meta.db_table} o WHERE {condition}"
    if source is StepOutput:
        return _write_units(rows)
    if source is Event:
        kinds = ", ".join(f"'{kind}'" for kind in KINDS)
        found = f"SELECT {_WORKFLOW}, o.kind, o.seq {rows} AND (o.seq = 1 OR o.kind IN ({kinds}))"
        return _Read(
            {"happened": found},
            [f"SELECT {_LAST}, '{EVENT}', workflow, kind, count(*), 0 FROM happened "
             f"WHERE kind IN ({kinds}) GROUP BY 3, 4",
             f"SELECT {_LAST}, '{EVENT}', workflow, '{CREATED}', count(*), 0 FROM happened "
             "WHERE seq = 1 GROUP BY 3"],
        )  # fmt: skip
    # Without a lane it is a child's, which counts in its parent once more.
    columns = ((TOKENS, "in", "tokens_in"), (TOKENS, "out", "tokens_out"), (COST, "", "cost"))
    return _Read(
        {"spent": f"SELECT {_WORKFLOW}, o.tokens_in, o.tokens_out, o.cost {rows} AND o.lane <> ''"},
        [f"SELECT {_LAST}, '{name}', workflow, '{detail}', sum({column}), 0 FROM spent GROUP BY 3"
         for name, detail, column in columns],
    )  # fmt: skip


def _write_units(rows: str) -> _Read:
    queued = (
        "coalesce((SELECT max(e.at) FROM longwatch_event e WHERE e.task_id = t.id "
        f"AND e.seq < 50 AND e.fence = 0 AND e.kind IN ({_QUEUED})), t.created_at)"
    )
    waited = (
        f"(SELECT {_write_micros(queued, 't.started_at')} FROM longwatch_task t "
        "WHERE t.id = o.task_id)"
    )
    return _Read(
        {
            # A copy and an edit have no fence: nobody worked on them.
            "worked": f"SELECT o.task_id, {_write_micros('o.started_at', 'o.finished_at')} "
            f"AS micros, o.step_index + o.turn + o.round AS place {rows} AND o.fence > 0",
            # A task is looked up once for all its units.
            "units": f"SELECT {_WORKFLOW}, class, many, micros FROM (SELECT task_id, "
            f"{_write_class('micros')} AS class, count(*) AS many, sum(micros) AS micros "
            "FROM worked GROUP BY 1, 2) AS o",
            "claims": f"SELECT {_WORKFLOW}, {waited} AS micros FROM worked o WHERE place = 0",
        },
        [
            f"SELECT {_LAST}, '{UNIT}', workflow, class, sum(many), sum(micros) FROM units "
            "GROUP BY 3, 4",
            f"SELECT {_LAST}, '{CLAIM}', workflow, {_write_class('micros')}, count(*), sum(micros) "
            "FROM claims GROUP BY 3, 4",
        ],
    )


def _write_micros(start: str, end: str) -> str:
    """SQL text: whole microseconds between two times, never less than none."""
    if connection.vendor == "postgresql":
        return f"greatest(0, CAST(extract(epoch FROM {end} - {start}) * 1000000 AS bigint))"
    # A double of days is good to some 50 microseconds; stored times have milliseconds.
    millis = f"round((julianday({end}) - julianday({start})) * 86400000.0)"
    return f"max(0, CAST({millis} AS integer) * 1000)"


def _write_class(micros: str) -> str:
    """SQL text: the upper end of the class, as Prometheus writes it."""
    cases = " ".join(f"WHEN {micros} <= {round(end * 1e6)} THEN '{end}'" for end in BUCKETS)
    return f"CASE {cases} ELSE '{REST}' END"
