"""Delete tasks: the demo's on somebody's click, others by the rules of retention; finished ones
that nothing else stands on.

The audit log keeps what each was and had spent. Files stay until `collecting` finds them unnamed.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django.db import IntegrityError
from django.db.models import F, ProtectedError, Q, QuerySet, TextField
from django.db.models.functions import Cast

from ledger import clock, hours, sql, states, tallies
from ledger.auditing import REMOVED_TASK, make_entry, write_entry
from ledger.calls import sees_lane
from ledger.errors import TaskNotFound
from ledger.events import Actor
from ledger.keeping import REMOVED, say_why, strip_value
from ledger.limits import describe_used
from ledger.models import (
    Approval,
    ApprovalLook,
    ApprovalVote,
    Artifact,
    AuditEntry,
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
from ledger.transitions.moves import lock_task, skip_locked
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


BULKY = (Handoff, LiveLog, Spend, Event, StepOutput)
"""What goes first, some rows a transaction; the rest goes with the task and the entry on it."""

ROWS = 500
LISTED = 200
"""Decisions, and effects, that the audit log names of one task."""


def list_free(
    ids: Sequence[UUID], now: dt.datetime, gone: Collection[UUID] = frozenset()
) -> list[UUID]:
    """Those of the tasks that no task but `gone` names as its parent or original, and that spent
    nothing this month: a lane's budget is a sum over what is on record."""
    naming = Task.objects.filter(Q(parent__in=ids) | Q(copied_from__in=ids))
    rows = naming.values_list("pk", "parent", "copied_from")
    kept = {key for own, *named in rows if own not in gone for key in named}
    month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    spent = Spend.objects.filter(task__in=ids, at__gte=month).values_list("task", flat=True)
    kept |= set(spent.distinct())
    return [key for key in ids if key not in kept]


def delete_rows(ids: Sequence[UUID]) -> Iterator[int]:
    """The many rows of tasks that are to be deleted; yields after each transaction its number.

    What is not in the totals yet goes with its task: `delete_tasks` adds it to them.
    """
    late = tallies.find_uncounted(ids)
    counted = [key for key in ids if key not in late]
    for table in BULKY:
        keys = list(table._default_manager.filter(task__in=counted).values_list("pk", flat=True))
        for start in range(0, len(keys), ROWS):
            yield table._default_manager.filter(pk__in=keys[start : start + ROWS]).delete()[0]


def delete_tasks(ids: Sequence[UUID], days: float, actor: Actor) -> int:
    """The tasks themselves, `days` after their end, each with an entry of its own on the audit log
    that keeps proof of what it was; returns how many. One that something names stays."""
    try:
        with sql.atomic():
            held = list(skip_locked(Task.objects.filter(pk__in=ids)))
            keys = [task.pk for task in held]
            proofs = _prove(keys)
            for key in tallies.find_uncounted(keys):
                tallies.keep_task(key)
            AuditEntry.objects.bulk_create(
                make_entry(
                    actor, REMOVED_TASK, f"task:{task.pk}", task=task.pk, reason=say_why(days),
                    before=_describe(task) | proofs[task.pk], after={"days": days},
                )
                for task in held
            )  # fmt: skip
            for of_approval in (ApprovalLook, ApprovalVote):
                of_approval.objects.filter(approval__task__in=keys).delete()
            for table in (*OWN, Effect):
                table._default_manager.filter(task__in=keys).delete()
            recent = clock.read() - dt.timedelta(hours=hours.KEPT + 1)
            ends = [task.finished_at for task in held if task.finished_at]
            hours.note_change(*(end for end in ends if end > recent))
            Task.objects.filter(pk__in=keys).delete()
            return len(keys)
    except (ProtectedError, IntegrityError):
        return sum(delete_tasks([key], days, actor) for key in ids) if len(ids) > 1 else 0


def _describe(task: Task) -> dict[str, Any]:
    """What the audit log keeps of a task that was removed."""
    names = (
        "title workflow workflow_version lane status status_reason submitted_by idempotency_key "
        "body_digest round"
    )
    values = {name: strip_value(getattr(task, name), 0) for name in ("input", "result")}
    return {name: getattr(task, name) for name in names.split()} | {
        "used": describe_used(task),
        "created_at": task.created_at.isoformat(),
        "finished_at": task.finished_at and task.finished_at.isoformat(),
        **{f"{name}_sha256": value[REMOVED]["sha256"] for name, value in values.items() if value},
    }


def _prove(ids: Sequence[UUID]) -> dict[UUID, dict[str, Any]]:
    """Decisions of people, and the keys of effects, by task."""
    found: dict[UUID, dict[str, Any]] = {key: {"decisions": [], "effects": []} for key in ids}
    asked = Approval.objects.filter(task__in=ids).order_by("requested_at", "id")
    for row in asked.defer("body", "payload", "form", "proposal"):
        found[row.task_id]["decisions"].append(
            {
                "approval": str(row.pk), "step": row.step, "turn": row.turn, "status": row.status,
                "digest": row.digest, "decided_by": row.decided_by,
                "decided_at": row.decided_at and row.decided_at.isoformat(),
            }
        )  # fmt: skip
    for effect in Effect.objects.filter(task__in=ids).order_by("id").defer("args", "result"):
        found[effect.task_id]["effects"].append(
            {"key": effect.key, "status": effect.status, "fingerprint": effect.fingerprint}
        )
    return {
        key: {name: many[:LISTED] for name, many in lists.items()} for key, lists in found.items()
    }


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
