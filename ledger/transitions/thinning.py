"""Contents of what is over go, proof stays: retention's writes, in short transactions.

First a task is marked, which nothing undoes: it can't go on or be copied from then. Then its rows
are stripped, some at a time; last its own row, which says that all of it is done. Killed anywhere,
the next pass finds the mark without that and goes on: what is stripped stays as it is.

What stays is what somebody sees who is not shown contents (`queries.seen`), with the digest and the
size of whatever went: steps, times, workers, money, votes and decisions, the keys of effects.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final
from uuid import UUID

from django.db import connection
from django.db.models import F, Model, Q

from ledger import clock, sql, states
from ledger.auditing import write_entry
from ledger.events import Actor
from ledger.keeping import REMOVED, say_why, strip_text, strip_value
from ledger.models import (
    Approval,
    ApprovalVote,
    Artifact,
    AuditEntry,
    Effect,
    Event,
    Handoff,
    LiveLog,
    Outbox,
    Signal,
    StepOutput,
    Task,
)
from ledger.queries.seen import OPEN_COLUMNS, OPEN_DATA, drop_contents
from ledger.sql.rows import write_rows
from ledger.transitions.moves import skip_locked

ROWS: Final = 500
"""Of one transaction."""

Strip = Callable[[Any, float], Any]


def _strip_error(error: Any, days: float) -> Any:
    """An error keeps its type and where it happened."""
    if not isinstance(error, dict) or not error.get("message"):
        return error
    kept = {name: error[name] for name in ("type", "step", "turn", "attempt") if name in error}
    return kept | {"message": strip_text(str(error["message"]), days)}


def _strip_data(data: dict[str, Any], days: float) -> dict[str, Any]:
    """An event keeps statuses, times, names, figures and the reasons that people gave."""
    if REMOVED in data:
        return data
    kept = drop_contents(data)
    if data.get("error"):
        kept["error"] = _strip_error(data["error"], days)
    return kept if kept == data else kept | strip_value(data, days)


def _strip_entry(data: Any, days: float) -> Any:
    """The same of what the audit log says was there before, or after."""
    if not isinstance(data, dict) or REMOVED in data:
        return data
    kept = {name: value for name, value in data.items() if name in OPEN_DATA | OPEN_COLUMNS}
    return kept if kept == data else kept | strip_value(data, days)


def _drop(value: Any, days: float) -> Any:
    return "" if isinstance(value, str) else None


CONTENTS: Final[dict[type[Model], dict[str, Strip]]] = {
    StepOutput: {"output": strip_value, "log_tail": strip_text, "workspace": _drop},
    Event: {"data": _strip_data},
    Effect: {"args": strip_value, "result": strip_value, "undo_result": strip_value},
    Signal: {"data": strip_value},
    Approval: {
        "body": strip_text, "payload": strip_value, "form": _drop, "proposal": _drop,
        "values": strip_value,
    },
    ApprovalVote: {"values": strip_value},
    Handoff: {"text": strip_text},
    LiveLog: {"text": strip_text},
    AuditEntry: {"before": _strip_entry, "after": _strip_entry},
}  # fmt: skip
OWN: Final[dict[str, Strip]] = {
    "input": strip_value, "progress": strip_value, "result": strip_value, "answer": _drop,
    "feedback": strip_value, "error": _strip_error, "progress_note": _drop, "workspace": _drop,
}  # fmt: skip
"""Of the task's own row, which goes last."""


def write_over(cutoff: dt.datetime) -> Q:
    """Tasks that ended before that, and, of those that gave up, were looked at since."""
    over = Q(status__in=sorted(states.FINISHED), finished_at__lt=cutoff)
    return over & (~Q(status=states.DEAD) | Q(seen_at__gte=F("finished_at")))


def mark_tasks(ids: Sequence[UUID], cutoff: dt.datetime) -> list[UUID]:
    """Mark those of the tasks that are over and that nothing needs; returns them.

    A copy is made, a task set going again and a child spawned under the lock that is held here. A
    row that somebody else holds waits for the next pass.
    """
    with sql.atomic():
        over = Task.objects.filter(write_over(cutoff), pk__in=ids)
        held = list(skip_locked(over.only("id", "parent_id", "thinned_at")))
        needed = find_needed(held, cutoff)
        free = [task.pk for task in held if task.pk not in needed]
        fresh = Task.objects.filter(pk__in=free, thinned_at=None)
        fresh.update(thinned_at=clock.now(), revision=F("revision") + 1)
    return free


def find_needed(tasks: Sequence[Task], cutoff: dt.datetime) -> set[UUID]:
    """Those whose parent, or a copy of which or of its copies, has not been over as long."""
    over = Task.objects.filter(write_over(cutoff))
    parents = {task.parent_id for task in tasks if task.parent_id}
    gone = set(over.filter(pk__in=parents).values_list("pk", flat=True)) if parents else set()
    needed = {task.pk for task in tasks if task.parent_id and task.parent_id not in gone}
    roots = {task.pk: task.pk for task in tasks}
    while roots:
        copies = Task.objects.filter(copied_from__in=roots).values_list("pk", "copied_from")
        found = {key: roots[origin] for key, origin in copies if origin is not None}
        done = set(over.filter(pk__in=found).values_list("pk", flat=True)) if found else set()
        needed |= {root for key, root in found.items() if key not in done}
        roots = found
    return needed


def strip_tasks(
    ids: Sequence[UUID], days: float, tables: Iterable[type[Model]] = tuple(CONTENTS)
) -> Iterator[int]:
    """Strip the rows of marked tasks; yields after each transaction how many rows it wrote."""
    for table in tables:
        columns = CONTENTS[table]
        of = "approval__task__in" if table is ApprovalVote else "task__in"
        keys = list(table._default_manager.filter(**{of: ids}).values_list("pk", flat=True))
        for start in range(0, len(keys), ROWS):
            rows = table._default_manager.filter(pk__in=keys[start : start + ROWS])
            yield _strip_rows(table, rows.values_list("pk", *columns), columns, days)


def _strip_rows(
    table: type[Model], rows: Iterable[Sequence[Any]], columns: dict[str, Strip], days: float
) -> int:
    changed = []
    for key, *values in rows:
        new = [strip(one, days) for strip, one in zip(columns.values(), values, strict=True)]
        if new != values:
            changed.append([key, *new])
    write_rows(table, list(columns), changed)
    return len(changed)


def end_thinning(ids: Sequence[UUID], days: float, actor: Actor) -> None:
    """The tasks' own rows, and the names of their files; on the audit log, one entry for all."""
    with sql.atomic():
        dropped = _drop_files(ids)
        rows = Task.objects.filter(pk__in=ids).values_list("pk", *OWN)
        _strip_rows(Task, rows, OWN, days)
        Task.objects.filter(pk__in=ids).update(thinned_days=days, revision=F("revision") + 1)
        told = {"tasks": len(ids), "days": days, "artifacts": dropped}
        write_entry(actor, "contents_removed", "retention", reason=say_why(days), after=told)


def strip_alerts() -> None:
    """What alerts, told and kept for a while, say of errors of tasks whose contents went, or which
    went themselves. The proof is with the task's event."""
    saying = Outbox.objects.filter(data__has_key="error").exclude(data__error__message="")
    rows = list(saying.order_by("pk").values_list("pk", "task", "data")[:ROWS])
    while rows:
        kept = Task.objects.filter(pk__in={task for _, task, _ in rows}, thinned_days=None)
        stay = set(kept.values_list("pk", flat=True))
        gone = [
            [key, data | {"error": data["error"] | {"message": ""}}]
            for key, task, data in rows
            if task not in stay
        ]
        write_rows(Outbox, ["data"], gone)
        later = saying.filter(pk__gt=rows[-1][0]).order_by("pk")
        rows = list(later.values_list("pk", "task", "data")[:ROWS])


def _drop_files(ids: Sequence[UUID]) -> int:
    """All artifacts, those that are values and logs too; their bytes go by the collector."""
    now = clock.fragment(connection.vendor).replace("%", "%%")
    make = "jsonb_build_object" if connection.vendor == "postgresql" else "json_object"
    key: Any = Task._meta.pk
    stored = [key.get_db_prep_value(one, connection) for one in ids]
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {Artifact._meta.db_table} AS own SET blob_id = NULL, expired_at = {now}, "
            f"proof = {make}('sha256', b.digest, 'size', b.size) FROM longwatch_blob AS b "
            f"WHERE b.digest = own.blob_id AND own.task_id IN ({', '.join(['%s'] * len(ids))})",
            stored,
        )
        return int(cursor.rowcount)
