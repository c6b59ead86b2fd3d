"""Signals: wait for one, send one, wait no longer. Waiting holds no lease and no worker.

The mailbox and the wait are decided under the lock of one row, the task's, so a signal is either
there when the wait begins or finds the task waiting.
"""

from __future__ import annotations

import datetime as dt
from typing import Any
from uuid import UUID

from ledger import bounds, canonical, conf, states, uploads
from ledger.auditing import audit_refusal
from ledger.errors import (
    IdempotencyConflict,
    InvalidInput,
    NotAllowed,
    PayloadTooLarge,
    UnparsableInput,
    Unserialisable,
)
from ledger.events import SYSTEM, Actor, record_event
from ledger.models import Signal, Task
from ledger.sql import Claimed, Unit
from ledger.transitions.holder import leave_if_cancelled, store_unit
from ledger.transitions.moves import (
    end_wait,
    lock_held,
    lock_if_free,
    lock_task,
    make_error,
    move_task,
    require_status,
    update_row,
)
from ledger.transitions.submit import check_key
from ledger.workflows import WaitFor

MAX_UNREAD = 1_000
"""Signals that a task's mailbox holds; nothing is unlimited."""


def await_signal(held: Claimed, unit: Unit, wait: WaitFor, *, last: bool) -> None:
    """running -> waiting (signal); or on at once, when the signal was sent before.

    Output, wait and release are one commit. `last`: no step follows, so the signal completes the
    task. Raises LeaseLost or AlreadySettled.
    """
    with lock_held(held.lease, "wait") as (task, now):
        fields = store_unit(task, held, unit, now)
        if leave_if_cancelled(task, held, now, "await_signal", fields):
            return
        seconds = conf.load().approval_seconds if wait.timeout is None else wait.timeout
        task.waits = {
            "for": states.SIGNAL, "name": wait.signal, "seconds": seconds, "last": last,
            "goes_on": wait.timeout is not None, "step": unit.next_name,
        }  # fmt: skip
        until = now + dt.timedelta(seconds=seconds)
        record_event(task, "waiting", Actor("worker", held.owner), now, reason=states.SIGNAL,
                     name=wait.signal, until=until.isoformat())  # fmt: skip
        unread = Signal.objects.filter(task=task, name=wait.signal, consumed_seq__isnull=True)
        signal = unread.order_by("id").first()
        if signal is None:
            return move_task(task, now, "await_signal", states.WAITING, reason=states.SIGNAL,
                             by_holder=True,
                             **{"available_at": until, "waits": task.waits, **fields})  # fmt: skip
        record_event(task, "promoted", SYSTEM, now, reason=states.SIGNAL, signal=signal.pk)
        Signal.objects.filter(pk=signal.pk).update(consumed_seq=task.event_seq)
        _go_on(task, now, "await_signal", signal, by_holder=True, **fields)


@audit_refusal("signalled", "task")
def send_signal(
    task_id: UUID | str,
    *,
    name: str,
    data: Any = None,
    key: str | None = None,
    actor: Actor,
    reason: str = "",
    revision: int | None = None,
    only_own: bool = False,
) -> bool:
    """Put a signal into an unfinished task's mailbox; a task that waits for it goes on.

    True unless the same `key` sent the same signal before. `only_own`: the actor may signal just
    what it submitted. Raises TaskNotFound, WrongStatus, StaleRevision, NotAllowed,
    IdempotencyConflict, PayloadTooLarge, and InvalidInput naming the field.
    """
    _check_signal(name, data, key)
    uploads.keep_named(data)
    with lock_task(task_id, revision) as (task, now):
        if only_own and task.submitted_by != str(actor):
            raise NotAllowed("With the scope submit alone, a caller signals its own tasks only.")
        if key is not None and (same := Signal.objects.filter(task=task, key=key).first()):
            if (same.name, same.data) != (name, data):
                raise IdempotencyConflict(key)
            return False
        require_status(task, "signal", states.UNFINISHED)
        taken = _is_awaited(task, name, now)
        if not taken:
            unread = Signal.objects.filter(task=task, consumed_seq__isnull=True).count()
            if unread >= MAX_UNREAD:
                raise InvalidInput("name", f"{unread} signals are unread; the task takes no more")
        record_event(task, "signalled", actor, now, name=name, key=key, taken=taken,
                     reason=reason)  # fmt: skip
        signal = Signal.objects.create(
            task=task, name=name, key=key, data=data, by=str(actor), at=now,
            consumed_seq=task.event_seq if taken else None,
        )  # fmt: skip
        if taken:
            _go_on(task, now, "send_signal", signal)
        else:
            update_row(task, {"updated_at": now})
        return True


def expire_signal(task_id: UUID) -> bool:
    """waiting (signal) -> on without it, or dead (signal_expired), once its time is over."""
    with lock_if_free(task_id) as found:
        if found is None:
            return False
        task, now = found
        if (task.status, task.status_reason) != (states.WAITING, states.SIGNAL):
            return False
        if task.available_at > now:
            return False
        assert task.waits is not None
        if task.waits["goes_on"]:
            record_event(task, "promoted", SYSTEM, now, reason=states.SIGNAL, signal=None)
            _go_on(task, now, "expire_signal", None)
            return True
        error = make_error(task, "SignalExpired", f"No signal {task.waits['name']!r} came in time.")
        record_event(task, "dead", SYSTEM, now, reason=states.SIGNAL_EXPIRED, error=error)
        move_task(task, now, "expire_signal", states.DEAD, reason=states.SIGNAL_EXPIRED,
                  error=error)  # fmt: skip
        return True


def revive_wait(task: Task, now: dt.datetime) -> dict[str, Any]:
    """Where a dead task goes that a person sets going again, as fields of `move_task`.

    To its wait, with all of its time, if that is what it died in; else into the queue, also to
    undo its effects, which it had begun.
    """
    if task.waits is None or task.ending is not None:
        return {"target": states.QUEUED}
    # For children no time at all: what became of them meanwhile is looked at at once.
    until = now + dt.timedelta(seconds=task.waits.get("seconds", 0))
    return {"target": states.WAITING, "reason": task.waits["for"], "available_at": until}


def _go_on(
    task: Task, now: dt.datetime, edge: str, signal: Signal | None, *, by_holder: bool = False,
    **fields: Any,
) -> None:  # fmt: skip
    """The wait is over: the next step sees the signal; none (None) after a timeout."""
    seen = signal and {
        "name": signal.name, "data": signal.data, "by": signal.by, "at": signal.at.isoformat(),
    }  # fmt: skip
    end_wait(task, now, edge, {"signal": seen}, by_holder=by_holder, **fields)


def _is_awaited(task: Task, name: str, now: dt.datetime) -> bool:
    """The time is read after the row lock, so it holds with every sweeper stopped."""
    return (
        (task.status, task.status_reason) == (states.WAITING, states.SIGNAL)
        and task.waits is not None
        and task.waits["name"] == name
        and task.available_at > now
    )


def _check_signal(name: Any, data: Any, key: Any) -> None:
    try:
        bounds.check_signal(name, "name")
    except ValueError as error:
        raise InvalidInput("name", str(error).partition(": ")[2]) from None
    check_key(key)
    try:
        size = len(canonical.dump_json([name, key, data], "data"))
    except Unserialisable as error:
        raise UnparsableInput(error.path, error.why) from None
    bound = conf.load().inline_output_bytes
    if size > bound:
        raise PayloadTooLarge("data", f"is {size} bytes, the bound is {bound}; send a reference")
