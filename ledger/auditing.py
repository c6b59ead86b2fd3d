"""The audit log: every write by a person or a token, and every refused try.

What moves a task is written in the transaction that moves it (`Watch`, held by `lock_task`); other
writes call `write_entry` inside their own. Refused tries have a transaction of their own, and a
bound: a flood of them is counted, not stored.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from django.db import DatabaseError, InterfaceError

from ledger import clock
from ledger.calls import read_call
from ledger.conf import format_money
from ledger.errors import NotAllowed
from ledger.events import Actor, shorten_values
from ledger.models import Artifact, AuditEntry, Task

logger = logging.getLogger(__name__)

REMOVED_TASK = "removed"
"""The action of the entry that stays of a task which retention deleted."""

PEOPLE = frozenset({"user", "token", "cli"})
"""Kinds of actors whose writes are audited; workers and sweeps have the events."""

NOISE = frozenset({"updated_at", "event_seq", "revision", "rank", "wall_until", "wall_left"})
"""Columns that follow from the others."""

OWN = frozenset({"before", "after", "reason", "error", "log_tail"})
"""Of an event's data, what has a place of its own in an entry, or is none of the action's."""


def write_entry(actor: Actor | str, action: str, target: str, **what: Any) -> None:
    """Put one entry on record, in the caller's transaction; `what` as of `make_entry`."""
    AuditEntry.objects.bulk_create([make_entry(actor, action, target, **what)])


def make_entry(
    actor: Actor | str,
    action: str,
    target: str,
    *,
    at: dt.datetime | None = None,
    task: UUID | None = None,
    reason: str = "",
    before: Any = None,
    after: Any = None,
    allowed: bool = True,
    address: str = "",
) -> AuditEntry:
    """The row, not stored yet; request and, unless given, address are the call's."""
    call = read_call()
    return AuditEntry(
        at=at or clock.now(), actor=str(actor)[:200], action=action[:60], target=target[:200],
        task=task, reason=reason, before=before, after=after, allowed=allowed,
        address=(address or call.address)[:64], request_id=call.request_id,
    )  # fmt: skip


def audit_submissions(tasks: Sequence[Task], actor: Actor) -> None:
    """Who submitted `tasks`, if a person or a token did: one statement for a whole batch."""
    if actor.kind in PEOPLE and tasks:
        names = ("workflow", "workflow_version", "title", "lane", "priority", "status")
        AuditEntry.objects.bulk_create(
            [
                make_entry(
                    actor, "submitted", f"task:{task.pk}", at=task.created_at, task=task.pk,
                    after={name: getattr(task, name) for name in names},
                )
                for task in tasks
            ],
            batch_size=200,
        )  # fmt: skip


def audit_upload(actor: str, artifact: Artifact, size: int) -> None:
    """Who uploaded `artifact`, in the transaction that stores it."""
    if Actor.parse(actor).kind in PEOPLE:
        after = {"name": artifact.name, "size": size, "sha256": artifact.blob_id}
        write_entry(actor, "upload", f"artifact:{artifact.pk}", after=after)


class Watch:
    """What one transaction does to a task that it locked, and who did it.

    `record_event` notes each event, `update_row` each change of the row, `write` makes entries.
    """

    def __init__(self, task: Task, now: dt.datetime) -> None:
        self.task, self.now, self.changes = task, now, dict[str, Any]()
        self._before = dict(vars(task))
        self._notes: list[tuple[str, Actor, dict[str, Any]]] = []
        task.__dict__["watch"] = self

    def note_event(self, kind: str, actor: Actor, data: dict[str, Any]) -> None:
        """One event; those of workers and sweeps are of no interest here.

        Nor are those of a second person in the same transaction: a wish to pause, say, that takes
        effect by somebody else's answer was on record when it was made.
        """
        if actor.kind in PEOPLE and all(actor == other for _, other, _ in self._notes):
            self._notes.append((kind, actor, data))

    def write(self) -> None:
        """One entry for each event, with what changed of the row and what the event says."""
        if not self._notes:
            return
        changed = [name for name in self.changes if self._differs(name)]
        before = {name: _show(name, self._before[name]) for name in changed}
        after = {name: _show(name, self.changes[name]) for name in changed}
        AuditEntry.objects.bulk_create(
            [self._make_entry(*note, before, after) for note in self._notes]
        )

    def _differs(self, name: str) -> bool:
        new = self.changes[name]
        if name in NOISE or name not in self._before or hasattr(new, "resolve_expression"):
            return False
        return bool(new != self._before[name])

    def _make_entry(
        self, kind: str, actor: Actor, data: dict[str, Any], before: Any, after: Any
    ) -> AuditEntry:
        told = {name: value for name, value in data.items() if name not in OWN}
        approval = data.get("approval")
        return make_entry(
            actor, kind, f"approval:{approval}" if approval else f"task:{self.task.pk}",
            at=self.now, task=self.task.pk,
            reason=data.get("reason") or data.get("comment") or "",
            before=shorten_values(before | (data.get("before") or {})),
            after=shorten_values(after | told | (data.get("after") or {})),
        )  # fmt: skip


def note_change(task: Task, fields: dict[str, Any]) -> None:
    """Columns that are about to be written to a locked task."""
    if (watch := vars(task).get("watch")) is not None:
        watch.changes |= fields


def _show(name: str, value: Any) -> Any:
    """A column's value as JSON."""
    if name == "limit_cost":
        return format_money(value)
    if isinstance(value, dt.datetime):
        return value.isoformat()
    return str(value) if isinstance(value, UUID) else value


# --- Refused tries ------------------------------------------------------------------------------
COUNTED_SECONDS = 60.0
MAX_OF_ACTOR, MAX_OF_ALL = 20, 200
"""Different refusals that are stored a minute, of one actor and of all, in each process."""

MANY = ("many", "")
"""Action and target that stand for those beyond the bound."""

type Key = tuple[str, str, str]


@dataclasses.dataclass(slots=True)
class _Seen:
    since: float
    more: int = 0


_seen: dict[Key, _Seen] = {}
_lock = threading.Lock()


def record_refusal(
    actor: Actor | str, action: str, target: str, *, task: UUID | None = None, why: str = ""
) -> None:
    """A refused try, in a transaction of its own; an outage of the database goes to the log.

    The same actor, action and target are stored once a minute. What came in between is counted, and
    the count stored (`repeated`) with the first refusal after that minute.
    """
    key = (str(actor)[:200], action[:60], target[:200])
    with _lock:
        fresh, over = _count(key, time.monotonic())
    try:
        for (who, what, where), count in over:
            write_entry(who, what, where, allowed=False, after={"repeated": count})
        if fresh == key:
            write_entry(*fresh, task=task, reason=why, allowed=False)
        elif fresh is not None:
            write_entry(*fresh, reason=why, allowed=False)
    except (DatabaseError, InterfaceError):
        logger.exception("a refused try of %s is not in the audit log: %s %s", *key)


def forget_refusals() -> None:
    """Begin the counts anew: the minute is over. For tests."""
    with _lock:
        _seen.clear()


def _count(key: Key, now: float) -> tuple[Key | None, list[tuple[Key, int]]]:
    """The key to store, None where it was within the minute; and counts whose minute is over."""
    over = []
    for old, seen in list(_seen.items()):
        if now - seen.since >= COUNTED_SECONDS:
            del _seen[old]
            if seen.more:
                over.append((old, seen.more))
    if key not in _seen and sum(actor == key[0] for actor, _, _ in _seen) >= MAX_OF_ACTOR:
        key = (key[0], *MANY)
    if key not in _seen and len(_seen) >= MAX_OF_ALL:
        key = ("anonymous", *MANY)
    if key in _seen:
        _seen[key].more += 1
        return None, over
    _seen[key] = _Seen(now)
    return key, over


def audit_refusal[**P, R](action: str, kind: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Record what a transition refuses its `actor`; its first argument is the id of a `kind`."""

    def decorate(transition: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(transition)
        def run_transition(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return transition(*args, **kwargs)
            except NotAllowed as error:
                actor: Any = kwargs.get("actor", "")
                task: Any = args[0] if kind == "task" else None
                record_refusal(actor, action, f"{kind}:{args[0]}", task=task, why=str(error))
                error.audited = True
                raise

        return run_transition

    return decorate
