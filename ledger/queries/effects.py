"""What a task did to the world outside, in order."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import Case, QuerySet, When

from ledger import states
from ledger.models import Effect, Task
from ledger.models.effects import COMPENSATED, DONE, INTENT, NOT_DONE
from ledger.queries.paging import DEFAULT_LIMIT, Page, clamp_limit, read_seq
from ledger.queries.seen import hide_value

UNKNOWN = "unknown"
"""Begun by an attempt that is over, and nobody knows what came of it."""

MARKS = {
    UNKNOWN: (DONE, NOT_DONE, COMPENSATED),
    NOT_DONE: (DONE,),
    DONE: (COMPENSATED,),
}
"""What a person may make of an effect, by its state."""


OWN = "agent."
"""Begins the names of effects that are an agent's own and nothing outside: what a model said."""


def list_outside(task_id: UUID) -> QuerySet[Effect]:
    """The effects of a task on the world outside."""
    return Effect.objects.filter(task=task_id).exclude(name__startswith=OWN)


def list_effects(
    task_id: UUID, *, limit: int = DEFAULT_LIMIT, cursor: str = ""
) -> Page[dict[str, Any]]:
    """The effects of a task, in the order in which they were first begun."""
    size = clamp_limit(limit)
    rows = Effect.objects.filter(task=task_id, pk__gt=read_seq(cursor)).select_related("task")
    shown = [show_effect(row) for row in rows.order_by("pk")[: size + 1]]
    return Page(shown[:size], str(shown[size - 1]["id"]) if len(shown) > size else None)


def list_latest_effects(task_id: UUID, limit: int = 50) -> list[dict[str, Any]]:
    """Those that are not settled first, then the latest: what a page shows of a task's effects."""
    settled = Case(When(status__in=(INTENT, NOT_DONE), then=0), default=1)
    rows = list_outside(task_id).select_related("task").order_by(settled, "-pk")
    return [show_effect(row) for row in rows[:limit]]


def show_effect(row: Effect) -> dict[str, Any]:
    """The Effect JSON; a lost worker's intent has the state `unknown`."""
    names = "step turn round name key args result tries late begun_at done_at".split()
    shown = {name: getattr(row, name) for name in names}
    shown |= {name: hide_value(shown[name]) for name in ("args", "result")}
    return {"id": row.pk, "state": name_state(row, row.task), **shown,
            "marked_by": row.marked_by or None, "compensation": _show_undo(row)}  # fmt: skip


def _show_undo(row: Effect) -> dict[str, Any] | None:
    if not row.compensation:
        return None
    return {
        "name": row.compensation, "key": row.undo_key, "state": name_undo(row, row.task),
        "tries": row.undo_tries, "result": hide_value(row.undo_result), "done_at": row.undone_at,
    }  # fmt: skip


def list_marks(state: str, undo: str | None) -> tuple[str, ...]:
    """What a person may make of an effect in `state`, whose compensation (if any) is in `undo`.

    DONE of one that is done says that it is not undone, where nobody knows.
    """
    return MARKS.get(state, ()) + (DONE,) * (state == DONE and undo == UNKNOWN)


def name_state(row: Effect, task: Task) -> str:
    """What is known of an effect now."""
    if row.status != INTENT:
        return row.status
    return INTENT if _is_in_hand(row.fences, task) else UNKNOWN


def name_undo(row: Effect, task: Task) -> str:
    """The same of its compensation: NOT_DONE before it was first called, or by a person's word."""
    if row.undone_at is not None:
        return DONE
    if not row.undo_fences or not row.undo_fences[-1][0].isdigit():
        return NOT_DONE
    return INTENT if _is_in_hand(row.undo_fences, task) else UNKNOWN


def _is_in_hand(fences: list[str], task: Task) -> bool:
    """Whether the last attempt that began it holds the task."""
    running = task.status == states.RUNNING
    return running and fences[-1] == f"{task.fence}:{task.lease_owner}"
