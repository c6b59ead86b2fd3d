"""Delete the demo's tasks: finished ones that nothing else stands on. No other task is deleted.

The audit log keeps what each was and had spent. Files stay until `collecting` finds them unnamed.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from django.db import IntegrityError
from django.db.models import F, ProtectedError, Q, QuerySet, TextField
from django.db.models.functions import Cast

from ledger import hours, states, tallies
from ledger.auditing import write_entry
from ledger.calls import sees_lane
from ledger.errors import TaskNotFound
from ledger.events import Actor
from ledger.limits import describe_used
from ledger.models import (
    Approval,
    ApprovalLook,
    ApprovalVote,
    Artifact,
    Effect,
    Event,
    Handoff,
    LiveLog,
    Reservation,
    Signal,
    Spend,
    StepOutput,
    Task,
)
from ledger.queries.seen import see_tasks
from ledger.transitions.moves import lock_task
from ledger.transitions.operators import check_reason

DEMO = Actor("cli", "demo")
"""Who submits the demo; with a key that begins with `demo-`, which no edit changes."""

KEY = "demo-"
OWN = (Approval, Artifact, Handoff, LiveLog, Signal, Reservation, Spend, Event, StepOutput)
"""What goes with a task, in this order; votes and looks go before their approvals."""

MAX_DEMO = 1_000


class Verdict(NamedTuple):
    """A demo task, and why it stays; empty when it can be deleted, or was."""

    id: UUID
    title: str
    why: str


def list_demo() -> list[Verdict]:
    """The demo's tasks, oldest first, each with what keeps it from being deleted now."""
    return [Verdict(task.pk, _name_task(task), find_obstacle(task)) for task in _select_demo()]


def has_demo() -> bool:
    """Whether there is any."""
    return _select_demo().exists()


def delete_demo(*, actor: Actor, reason: str = "") -> list[Verdict]:
    """Delete what can be deleted of the demo, each in a transaction of its own, on the audit log.

    Returns all of them, with why those stay that do. Raises InvalidInput for a bad reason.
    """
    check_reason(reason)
    verdicts = (_delete_one(task, actor, reason) for task in _select_demo())
    return [verdict for verdict in verdicts if verdict is not None]


def _select_demo() -> QuerySet[Task]:
    rows = see_tasks().filter(submitted_by=str(DEMO), idempotency_key__startswith=KEY)
    return rows.order_by("created_at", "id")[:MAX_DEMO]


def _delete_one(seen: Task, actor: Actor, reason: str) -> Verdict | None:
    try:
        with lock_task(seen.pk) as (task, now):
            why = find_obstacle(task)
            if not why:
                before = {
                    "title": task.title, "workflow": task.workflow, "status": task.status,
                    "submitted_by": task.submitted_by, "used": describe_used(task),
                    "created_at": task.created_at.isoformat(),
                }  # fmt: skip
                write_entry(
                    actor, "deleted", f"task:{task.pk}", at=now, task=task.pk, reason=reason,
                    before=before,
                )  # fmt: skip
                _delete_rows(task)
    except TaskNotFound:
        return None  # somebody else's click was first
    except (ProtectedError, IntegrityError):
        why = "other rows of the ledger name it"
    return Verdict(seen.pk, _name_task(seen), why)


def _delete_rows(task: Task) -> None:
    tallies.keep_task(task.pk)
    for of_approval in (ApprovalLook, ApprovalVote):
        of_approval.objects.filter(approval__task=task).delete()
    for table in OWN:
        table._default_manager.filter(task=task).delete()
    hours.note_change(task.finished_at)
    task.delete()


def find_obstacle(task: Task) -> str:
    """Why the task can't be deleted, as half a sentence; empty when it can."""
    if task.status not in states.FINISHED:
        return f"it is {task.status}; cancel it first"
    others = Task.objects.exclude(pk=task.pk).order_by("created_at", "id")
    if copy := others.filter(copied_from=task).first():
        return f"{_name_other(copy)} was copied from it"
    if child := others.filter(parent=task).first():
        return f"{_name_other(child)} is its child"
    if Effect.objects.filter(task=task).exists():
        return "what it did outside is on record"
    if user := _find_user(task, others):
        return f"{_name_other(user)} has one of its artifacts as input"
    return ""


def _find_user(task: Task, others: QuerySet[Task]) -> Task | None:
    """A task whose input names an artifact of this one: nothing but its text says so."""
    named = Q()
    for key in Artifact.objects.filter(task=task).values_list("pk", flat=True):
        named |= Q(text__contains=str(key))
    return (
        others.annotate(text=Cast(F("input"), TextField())).filter(named).first() if named else None
    )


def _name_other(task: Task) -> str:
    """Its id, for who sees its lane."""
    return str(task.pk) if sees_lane(task.lane) else "a task of another lane"


def _name_task(task: Task) -> str:
    return task.title or task.workflow
