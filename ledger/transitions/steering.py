"""Messages of people to a running agent: sent, withdrawn, taken by the unit that delivers them.

A message is a signal of a reserved name, so it waits in the task's mailbox. The unit that is about
to ask its model takes what is there, in one commit with an effect that names it: every attempt at
that unit tells the model the same. It is delivered when the unit's output is stored. A restart that
comes between puts it back.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

from ledger import registry, states
from ledger.auditing import audit_refusal
from ledger.bounds import MESSAGE, WITHDRAWN
from ledger.errors import IdempotencyConflict, InvalidInput, NotFound, WrongStatus
from ledger.events import Actor, record_event
from ledger.models import Effect, Signal
from ledger.models.effects import DONE
from ledger.queries.effects import OWN
from ledger.sql import Claimed
from ledger.transitions.mailbox import list_pending
from ledger.transitions.moves import lock_held, lock_task, require_status, update_row
from ledger.transitions.operators import check_reason
from ledger.transitions.submit import check_key

HEARD = f"{OWN}heard"
"""The effect whose result is what the unit has taken."""

OPEN = frozenset(states.STATUSES) - states.FINAL
"""Where a message may still be delivered."""

MAX_PENDING = 20
"""Messages that wait for the next turn; nothing is unlimited."""


@audit_refusal("steered", "task")
def steer_task(
    task_id: UUID | str,
    *,
    text: str,
    key: str | None = None,
    actor: Actor,
    reason: str = "",
    revision: int | None = None,
) -> int:
    """Tell the agent of an unfinished task something at its next turn; the message's number.

    The same `key` sends the same text once. Raises TaskNotFound, WrongStatus, StaleRevision,
    IdempotencyConflict, and InvalidInput naming the field, also for a task that has no agent.
    """
    check_reason(reason)
    check_reason(text, "text")
    if not text.strip():
        raise InvalidInput("text", "is empty")
    check_key(key)
    with lock_task(task_id, revision) as (task, now):
        if key is not None and (same := Signal.objects.filter(task=task, key=key).first()):
            if same.name not in {MESSAGE, WITHDRAWN} or same.data != {"text": text}:
                raise IdempotencyConflict(key)
            return int(same.pk)
        require_status(task, "steer", states.UNFINISHED)
        if registry.runs_agent(task) is False:
            raise InvalidInput("task", f"has no agent: no step of {task.workflow} hears a message.")
        if list_pending(task.pk).count() >= MAX_PENDING:
            raise InvalidInput("text", f"{MAX_PENDING} messages wait already; withdraw some.")
        message = Signal.objects.create(
            task=task, name=MESSAGE, key=key or f"message:{uuid4()}", data={"text": text},
            by=str(actor), at=now,
        )  # fmt: skip
        record_event(task, "steered", actor, now, message=message.pk, text=text, reason=reason)
        update_row(task, {"updated_at": now})
        return int(message.pk)


@audit_refusal("steer_withdrawn", "task")
def withdraw_message(
    task_id: UUID | str,
    message: int,
    *,
    actor: Actor,
    reason: str = "",
    revision: int | None = None,
) -> None:
    """Take back a message that no unit has taken. Raises TaskNotFound, NotFound, WrongStatus."""
    check_reason(reason)
    with lock_task(task_id, revision) as (task, now):
        found = Signal.objects.filter(task=task, pk=message, name__in=(MESSAGE, WITHDRAWN)).first()
        if found is None:
            raise NotFound("message", message)
        if found.name == WITHDRAWN:
            return
        if found.consumed_seq is not None:
            raise WrongStatus("withdraw the message to", "told to its agent already")
        require_status(task, "withdraw a message to", OPEN)
        record_event(task, "steer_withdrawn", actor, now, message=message, reason=reason)
        Signal.objects.filter(pk=message).update(name=WITHDRAWN, consumed_seq=task.event_seq)
        update_row(task, {"updated_at": now})


def take_messages(held: Claimed) -> list[dict[str, Any]]:
    """All that wait, for the unit that `held` runs, in order: `{id, by, at, text}`.

    From now on they are this unit's, at all of its attempts. Raises LeaseLost.
    """
    unit = {"step": held.step_name, "turn": held.turn, "round": held.round, "name": HEARD}
    with lock_held(held.lease, "message") as (task, now):
        if (found := Effect.objects.filter(task=task, **unit).first()) is not None:
            stored: Any = found.result
            return list(stored)
        rows = list(list_pending(task.pk))
        told = [
            {"id": row.pk, "by": row.by, "at": row.at.isoformat(), "text": read_text(row)}
            for row in rows
        ]
        if not told:
            return []
        numbers = [row.pk for row in rows]
        record_event(task, "steer_heard", Actor("worker", held.owner), now, messages=numbers)
        Signal.objects.filter(pk__in=numbers).update(consumed_seq=task.event_seq)
        Effect.objects.create(
            task=task, **unit, fingerprint="", status=DONE, result=told, begun_at=now, done_at=now,
            fences=[f"{held.lease.fence}:{held.lease.owner}"],
        )  # fmt: skip
        update_row(task, {})
        return told


def read_text(message: Signal) -> str:
    """What a message says."""
    data: Any = message.data
    return str(data["text"])
