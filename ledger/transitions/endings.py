"""The ends `failed` and `cancelled`, and what comes before them: effects are undone.

Where a task has effects that it can undo, it is queued for that instead (`compensating`). Each one
is a unit of its own, the last effect first, and after all of them the task ends as it was to.
"""

from __future__ import annotations

import datetime as dt
from typing import Any
from uuid import UUID

from django.db.models import Exists, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce

from ledger import states
from ledger.errors import Compensating, InvalidInput, WrongStatus
from ledger.events import Actor, record_event
from ledger.models import Effect, StepOutput, Task
from ledger.models.effects import COMPENSATED, DONE, INTENT, NOT_DONE
from ledger.queries.effects import name_undo
from ledger.sql import Claimed
from ledger.transitions.moves import (
    FRESH_UNIT,
    NO_FLAGS,
    lock_held,
    move_task,
    requeue_task,
)

ENDS = {states.FAILED: "fails", states.DEAD: "is given up", states.CANCELLED: "is cancelled"}


def list_open(task_id: UUID) -> QuerySet[Effect]:
    """What the task can undo: done, or begun by an attempt that is over; the last one first."""
    rows = Effect.objects.filter(task=task_id, status__in=(DONE, INTENT))
    return rows.exclude(compensation="").order_by("-pk")


def end_task(
    task: Task,
    now: dt.datetime,
    edge: str,
    target: str,
    *,
    actor: Actor,
    reason: str,
    by_holder: bool = False,
    said: dict[str, Any] | None = None,
    **fields: Any,
) -> str:
    """The locked task -> `target` (an end other than completed) along `edge`, with its event.

    Or -> queued, to undo its effects first. `said` is what the event of the end says, if not just
    the `reason`. Returns the new status.
    """
    data = {"reason": reason} if said is None else said
    if target == states.CANCELLED and actor.kind == "task":
        reason = states.CANCELLED_BY_PARENT
    count = list_open(task.pk).count() if target in states.UNDONE_FIRST else 0
    if not count:
        record_event(task, target, actor, now, **data)
        move_task(task, now, edge, target, reason=reason, by_holder=by_holder,
                  **{**fields, "ending": None})  # fmt: skip
        return target
    error = fields.get("error", task.error)
    ending = {"status": target, "reason": reason, "error": error, "actor": str(actor), "data": data}
    record_event(task, "compensating", actor, now, then=target, count=count, **data)
    move_task(task, now, edge, states.QUEUED, by_holder=by_holder,
              **{**fields, **FRESH_UNIT, **NO_FLAGS, "ending": ending})  # fmt: skip
    return states.QUEUED


def settle_undo(held: Claimed) -> None:
    """running -> queued (or paused) for the next effect; after the last: failed, cancelled, dead.

    Raises LeaseLost or AlreadySettled.
    """
    with lock_held(held.lease, "compensation") as (task, now):
        ending = task.ending
        if ending is None:
            raise WrongStatus("undo the effects of", "at its steps")
        if list_open(task.pk).exists():
            return requeue_task(task, now, "settle_undo", by_holder=True, **FRESH_UNIT)
        undone = Effect.objects.filter(task=task, undone_at__isnull=False).count()
        record_event(task, ending["status"], Actor.parse(ending["actor"]), now, **ending["data"],
                     compensated=undone)  # fmt: skip
        move_task(task, now, "settle_undo", ending["status"], reason=ending["reason"],
                  by_holder=True, error=ending["error"], ending=None, **FRESH_UNIT)  # fmt: skip


def is_undoing(task: Task) -> bool:
    """Whether the task undoes its effects, now or when it is let."""
    return task.ending is not None and task.status not in states.FINISHED


def will_end(task: Task, status: str) -> bool:
    """Whether the task undoes its effects, and then ends with `status`."""
    return is_undoing(task) and task.ending is not None and task.ending["status"] == status


def refuse_end(task: Task, action: str) -> None:
    """Raise Compensating when the task undoes its effects: its end is settled."""
    if task.ending is not None and is_undoing(task):
        raise Compensating(action, ENDS[task.ending["status"]])


def find_undone(task: Task, kept: Q | None = None, unit: tuple[Any, ...] = ()) -> Effect | None:
    """What is undone, or may be, though the live outputs that `kept` selects (all) stand on it.

    The first one, with the index of its step as `place`. Also that of the `unit` (step, turn,
    round) which runs again. An output that a person edited stands on what its unit did.
    """
    same = {"task": OuterRef("task"), "step_name": OuterRef("step"), "turn": OuterRef("turn")}
    live = StepOutput.objects.filter(kept or Q(), **same, superseded_in_round__isnull=True)
    anew = StepOutput.objects.filter(**same, round__gt=OuterRef("round"), fence__gt=0)
    begun = Q(status__in=(DONE, INTENT), undo_tries__gt=0)
    rows = Effect.objects.filter(begun | Q(status=COMPENSATED), task=task).exclude(compensation="")
    stored = Subquery(live.values("step_index")[:1])
    rows = rows.annotate(place=Coalesce(stored, -1))
    wanted = Q(~Exists(anew), place__gte=0)
    if unit:
        wanted |= Q(step=unit[0], turn=unit[1], round=unit[2])
    for effect in rows.filter(wanted).order_by("place", "pk"):
        if effect.status == COMPENSATED or name_undo(effect, task) != NOT_DONE:
            return effect
    return None


def explain_undone(effect: Effect, task: Task, way: str = "restart") -> str:
    """Why nothing goes on after it, and from where it can, as the end of a sentence."""
    cure = f"{way} it from {effect.step} or before"
    if effect.status == COMPENSATED:
        return f"its effect {effect.name} of {effect.step} was undone; {cure}"
    if name_undo(effect, task) == INTENT:
        return f"its effect {effect.name} of {effect.step} is being undone by a worker now; {cure}"
    return (
        f"its effect {effect.name} of {effect.step} may be undone, which nobody knows; settle it, "
        f"or {cure}"
    )


def check_kept(task: Task, kept: Q, field: str, step: str, way: str) -> None:
    """Raise InvalidInput where `step` would go on on outputs that stand on what is undone."""
    if (undone := find_undone(task, kept)) is not None:
        why = explain_undone(undone, task, way)
        raise InvalidInput(field, f"{step} would go on as if nothing were undone: {why}")


def check_not_undone(task: Task, action: str) -> None:
    """Raise WrongStatus where the same unit would go on as if what was undone were still done."""
    if task.ending is not None:
        return  # it goes on to undo
    found = find_undone(task, unit=(task.step_name, task.turn, task.round))
    if found is not None:
        why = explain_undone(found, task)
        raise WrongStatus(action, task.status, f"{why[0].upper()}{why[1:]}.")
