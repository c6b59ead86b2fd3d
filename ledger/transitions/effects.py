"""The record of effects: begun and finished by holders, settled by people where nobody knows.

Each write is a commit of its own: an intent must be there before the action, and its result must
last whatever becomes of the unit. The task's row is locked first, as everywhere.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any
from uuid import UUID

from django.db.models import F

from ledger import canonical, clock, sql, states
from ledger.errors import EffectConflict, LeaseLost, NotFound, TaskNotFound, WrongStatus
from ledger.events import Actor, record_event
from ledger.models import Effect, Task
from ledger.models.effects import COMPENSATED, DONE, INTENT, NOT_DONE
from ledger.queries.effects import UNKNOWN, list_marks, name_state, name_undo
from ledger.sql import Claimed
from ledger.transitions.endings import list_open
from ledger.transitions.moves import (
    FRESH_UNIT,
    lock_held,
    lock_task,
    move_task,
    require_status,
    update_row,
)
from ledger.transitions.operators import check_reason

NEW = "new"


@dataclasses.dataclass(frozen=True, slots=True)
class Begun:
    """What was found: NEW (nothing, or known as not done), UNKNOWN, or DONE with its result."""

    state: str
    result: Any = None


def begin_effect(held: Claimed, name: str, args: Any, compensation: str = "") -> Begun:
    """Store the intent, or find what an earlier attempt at this unit left of it.

    `compensation` is what undoes it, by name. Raises LeaseLost, and EffectConflict for other `args`
    than it was begun with, or when it was undone since.
    """
    text = canonical.dump_json(args, "args")
    fingerprint = hashlib.sha256(text.encode()).hexdigest()
    mine = _name_attempt(held.lease)
    with lock_held(held.lease, "effect") as (task, now):
        effect = Effect.objects.filter(task=task, **_name_unit(held, name)).first()
        if effect is None:
            Effect.objects.create(
                task=task, **_name_unit(held, name), fingerprint=fingerprint, args=args,
                status=INTENT, fences=[mine], begun_at=now, compensation=compensation,
            )  # fmt: skip
            update_row(task, {})
            return Begun(NEW)
        if effect.fingerprint != fingerprint:
            raise EffectConflict(name, "was begun with other arguments in this unit")
        if effect.status == COMPENSATED:
            raise EffectConflict(name, "was undone; a restart from its step does it anew")
        if effect.status == DONE:
            return Begun(DONE, effect.result)
        found = NEW if effect.status == NOT_DONE else UNKNOWN
        fences = [one for one in effect.fences if one != mine]
        Effect.objects.filter(pk=effect.pk).update(
            status=INTENT, fences=[*fences, mine], tries=F("tries") + 1, compensation=compensation
        )
        update_row(task, {})
        return Begun(found)


def finish_effect(held: Claimed, name: str, result: Any) -> Any:
    """Store the result, unless there is one; returns the one that stands.

    Also for a holder that lost its lease since it began the effect: the first result is a fact,
    whoever brings it. Raises LeaseLost for who did not begin it.
    """
    canonical.check_json(result, f"the result of effect {name}")
    mine = _name_attempt(held.lease)
    with sql.atomic():
        task = Task.objects.select_for_update().filter(pk=held.task_id).first()
        if task is None:
            raise TaskNotFound(held.task_id)
        effect = Effect.objects.filter(task=task, **_name_unit(held, name)).first()
        if effect is None or mine not in effect.fences:
            raise LeaseLost(held.task_id, held.fence, "effect")
        if effect.done_at is not None:
            return effect.result
        status = effect.status
        if status in {INTENT, NOT_DONE}:
            status = DONE
        Effect.objects.filter(pk=effect.pk, done_at__isnull=True).update(
            status=status,
            result=result,
            done_at=clock.now(),
            late=name_state(effect, task) != INTENT,
        )
        update_row(task, {})
        return result


def begin_undo(held: Claimed, effect_id: int) -> tuple[str, Effect]:
    """Store the intent to undo an effect; what is known of that before, and the effect as it is.

    NEW, UNKNOWN after an attempt that did not tell, or DONE when it is no more to be undone.
    Raises LeaseLost.
    """
    mine = _name_attempt(held.lease)
    with lock_held(held.lease, "compensation") as (task, _):
        effect = list_open(task.pk).filter(pk=effect_id).first()
        if effect is None:  # a person settled it meanwhile, or a lost attempt told late
            return DONE, Effect.objects.get(pk=effect_id)
        known = name_undo(effect, task)
        fences = [*(one for one in effect.undo_fences or () if one != mine), mine]
        Effect.objects.filter(pk=effect_id).update(
            undo_fences=fences, undo_tries=F("undo_tries") + 1
        )
        update_row(task, {})
        return NEW if known == NOT_DONE else UNKNOWN, effect


def finish_undo(held: Claimed, effect_id: int, result: Any, log_tail: str = "") -> None:
    """Store that an effect is undone, unless that is on record.

    Also for a holder that lost its lease since it began that. Raises LeaseLost for who did not.
    """
    canonical.check_json(result, "the result of a compensation")
    mine = _name_attempt(held.lease)
    with sql.atomic():
        task = Task.objects.select_for_update().filter(pk=held.task_id).first()
        if task is None:
            raise TaskNotFound(held.task_id)
        effect = Effect.objects.get(pk=effect_id)
        if mine not in (effect.undo_fences or []):
            raise LeaseLost(held.task_id, held.fence, "compensation")
        if effect.undone_at is not None:
            return
        now = clock.read()
        Effect.objects.filter(pk=effect_id).update(
            status=COMPENSATED, undo_result=result, undone_at=now
        )
        record_event(
            task, "compensated", Actor("worker", held.owner), now, step=effect.step,
            turn=effect.turn, fence=held.fence, effect=effect.name, by=effect.compensation,
            started_at=held.started_at.isoformat(), log_tail=log_tail,
        )  # fmt: skip
        update_row(task, {"last_progress_at": now, "updated_at": now})


def compensate_task(
    task_id: UUID | str, *, actor: Actor, reason: str = "", revision: int | None = None
) -> None:
    """dead or failed -> queued: undo its effects after all; it then ends as it has ended.

    Raises WrongStatus when it has none that is open and has a compensation.
    """
    check_reason(reason)
    with lock_task(task_id, revision) as (task, now):
        require_status(task, "compensate", {states.DEAD, states.FAILED})
        count = list_open(task.pk).count()
        if not count:
            hint = "None of its effects is both open and has a compensation."
            raise WrongStatus("compensate", task.status, hint)
        ending = task.ending or {
            "status": task.status, "reason": task.status_reason, "error": task.error,
            "actor": str(actor), "data": {"reason": task.status_reason, "error": task.error},
        }  # fmt: skip
        record_event(task, "compensating", actor, now, then=ending["status"], count=count,
                     reason=reason)  # fmt: skip
        move_task(task, now, "compensate_task", states.QUEUED, ending=ending, **FRESH_UNIT)


def mark_effect(
    task_id: UUID | str,
    effect_id: int,
    *,
    to: str,
    actor: Actor,
    result: Any = None,
    reason: str = "",
    revision: int | None = None,
) -> None:
    """Settle by a person's word what nobody else knows: `done`, `not_done` or `compensated`.

    `done` is also the word for what is still done, where an attempt to undo it was lost or failed.
    `result` is what the step gets of an effect that is done. Raises NotFound, and EffectConflict
    while a worker is at it or when it is settled otherwise.
    """
    check_reason(reason)
    canonical.check_json(result, "result")
    with lock_task(task_id, revision) as (task, now):
        effect = Effect.objects.filter(pk=effect_id, task=task).first()
        if effect is None:
            raise NotFound("effect", effect_id)
        state, undo = name_state(effect, task), name_undo(effect, task)
        if state == INTENT:
            raise EffectConflict(effect.name, "is in a worker's hands now")
        if undo == INTENT:
            raise EffectConflict(effect.name, "is being undone by a worker now")
        if to not in list_marks(state, undo):
            raise EffectConflict(effect.name, f"is {state}, so it can't be marked {to}")
        fields: dict[str, Any] = {"status": to, "marked_by": str(actor)}
        if to == DONE and effect.done_at is None:
            fields |= {"result": result, "done_at": now}
        if to == DONE and undo == UNKNOWN:
            fields["undo_fences"] = [*(effect.undo_fences or ()), str(actor)]
        Effect.objects.filter(pk=effect.pk).update(**fields)
        record_event(
            task, "effect_marked", actor, now, step=effect.step, turn=effect.turn, reason=reason,
            effect=effect.name, before={"state": state}, after={"state": to},
        )  # fmt: skip
        update_row(task, {"updated_at": now})


def _name_attempt(lease: sql.Lease) -> str:
    return f"{lease.fence}:{lease.owner}"


def _name_unit(held: Claimed, name: str) -> dict[str, Any]:
    return {"step": held.step_name, "turn": held.turn, "round": held.round, "name": name}
