"""The append-only record of a task: one event inside the caller's transaction."""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
from typing import Any

from ledger import canonical, outbox
from ledger.models import Event, Task

KINDS = frozenset(
    [
        "submitted",
        "repaired",
        "attempt_failed",
        "released",
        "reclaimed",
        "scheduled",
        "promoted",
        "approval_requested",
        "approval_voted",
        "approval_decided",
        "approval_undone",
        "approval_expired",
        "approval_escalated",
        "approval_reminded",
        "approval_voided",
        "waiting",
        "signalled",
        "steered",
        "steer_withdrawn",
        "steer_heard",
        "spawned",
        "cancel_requested",
        "cancelled",
        "pause_requested",
        "paused",
        "resumed",
        "retried",
        "limits_changed",
        "limit_warned",
        "tool_denied",
        "circling",
        "edited",
        "effect_marked",
        "compensating",
        "compensated",
        "forked",
        "completed",
        "failed",
        "dead",
        "stale_write_refused",
    ]
)
"""All kinds; `checkpoint`, the most frequent one, is read from the output rows."""


@dataclasses.dataclass(frozen=True, slots=True)
class Actor:
    """Who did it: kind `user`, `token`, `cli`, `task`, `worker` or `system`, and an id."""

    kind: str
    id: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.id}" if self.id else self.kind

    @classmethod
    def parse(cls, text: str) -> Actor:
        """The actor written as `user:3`."""
        kind, _, key = text.partition(":")
        return cls(kind, key)


SYSTEM = Actor("system")
"""The sweeps: whichever process ran them is of no interest to a reader."""


def record_event(
    task: Task,
    kind: str,
    actor: Actor,
    at: dt.datetime,
    *,
    step: str | None = None,
    turn: int | None = None,
    fence: int | None = None,
    audited: bool = True,
    **data: Any,
) -> Event:
    """Append one event and raise `task.event_seq` on the object; the caller stores that number.

    The row of `task` must be locked by the caller's transaction. Position and fence are the
    task's unless given. `audited` is False where the caller writes the audit entry itself.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown event kind {kind!r}")
    # Put there by ledger.auditing, on a task that is locked.
    if audited and (watch := vars(task).get("watch")) is not None:
        watch.note_event(kind, actor, data)
    task.event_seq += 1
    outbox.note_event(task, kind, at, data)
    return Event.objects.create(
        task_id=task.id,
        seq=task.event_seq,
        at=at,
        kind=kind,
        actor=str(actor),
        step=task.step_name if step is None else step,
        turn=task.turn if turn is None else turn,
        fence=task.fence if fence is None else fence,
        data=data,
    )


SHORT = 2_000
"""Characters of a changed value that an event holds."""


def shorten_values(values: dict[str, Any]) -> dict[str, Any]:
    """Values before or after a change, for an event: what is long is named by its digest."""
    short = {}
    for name, value in values.items():
        text = canonical.dump_json(value, name)
        short[name] = value
        if len(text) > SHORT:
            digest = hashlib.sha256(text.encode()).hexdigest()
            short[name] = {"$long": text[:200], "length": len(text), "sha256": digest}
    return short
