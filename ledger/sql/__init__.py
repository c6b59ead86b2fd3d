"""The hot statements: claim, checkpoint, settle-and-claim, heartbeat, group scan, overdue scan.

Raw and prepared, because a unit of work costs one round trip and one commit here where the ORM
needs eight round trips (PERFORMANCE: 0.5 ms against 2.8 ms). PostgreSQL runs each as one
statement; SQLite runs the same steps under one BEGIN IMMEDIATE, which is its only lock.

They write only the plain course of things: claim, go on, complete. A checkpoint whose task has a
flag or a used-up limit moves nothing and returns None, and the caller takes the slow way
(`transitions.holder`), where such cases are decided with events in ordinary transactions.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any
from uuid import UUID

from django.db import (
    DEFAULT_DB_ALIAS,
    InterfaceError,
    OperationalError,
    connection,
    connections,
)
from django.db.models import DateTimeField, ForeignKey, JSONField, UUIDField

from ledger.errors import LeaseLost
from ledger.models import Task
from ledger.sql import postgresql, sqlite
from ledger.sql.columns import CLAIM_COLUMNS, make_task

Group = tuple[str, str, str]
"""(lane, workflow, workflow_version): the unit of choice of a claim."""


class Queue(Group):
    """A group as a list found it. A claim from it begins at `floor`, the rank of what was first
    there: before that lies only what is gone, which PostgreSQL would go through each time while
    somebody's old snapshot keeps it, and what has come since, which the next list finds."""

    floor: int

    def __new__(cls, row: Sequence[Any]) -> Queue:
        made = super().__new__(cls, row[:3])
        made.floor = row[3]
        return made


@dataclasses.dataclass(frozen=True, slots=True)
class Lease:
    """The right to write to a task: id, fence and owner (`host:pid:boot-uuid`), all three."""

    task_id: UUID
    fence: int
    owner: str


@dataclasses.dataclass(slots=True)
class Claimed:
    """A claimed task as its holder sees it: the lease and all that one attempt starts from."""

    task_id: UUID
    fence: int
    owner: str
    workflow: str
    workflow_version: str
    definition_digest: str
    lane: str
    title: str
    submitted_by: str
    step_index: int
    step_name: str
    turn: int
    total_steps: int
    attempts: int
    reclaims: int
    releases: int
    round: int
    repair_count: int
    max_repairs: int
    input: Any
    progress: dict[str, Any]
    feedback: Any
    answer: dict[str, Any] | None
    workspace: str
    limit_units: int
    limit_tokens: int
    limit_cost: int
    used_units: int
    used_tokens_in: int
    used_tokens_out: int
    used_cost: int
    parent_id: UUID | None
    ending: dict[str, Any] | None
    """How a task ends that undoes its effects first; None: it runs its steps."""
    event_seq: int
    started_at: dt.datetime
    kept: bool = False
    """A checkpoint of this worker kept it: that statement has judged the limits as they are."""

    @property
    def lease(self) -> Lease:
        """The lease this attempt writes under."""
        return Lease(self.task_id, self.fence, self.owner)


@dataclasses.dataclass(slots=True)
class Unit:
    """What a finished unit leaves: JSON texts (canonical), log, spend, and the next position.

    `progress` is the whole merged object or None for unchanged. `result` is set to finish the
    task. `next_*` is the position after it; of a finishing unit, its own.
    """

    output: str
    progress: str | None
    next_index: int
    next_name: str
    next_turn: int
    log_tail: str = ""
    tokens: int = 0
    cost: int = 0
    workspace: str = ""
    result: str | None = None


@dataclasses.dataclass(slots=True)
class Settled:
    """The outcome of a checkpoint: the own task's next fence and start, or what was claimed."""

    kept_fence: int | None
    kept_at: dt.datetime | None
    claimed: Claimed | None


@dataclasses.dataclass(frozen=True, slots=True)
class Beaten:
    """A lease that a heartbeat extended, with the flags that its task carries."""

    task_id: UUID
    fence: int
    cancel_requested: bool


_JSON_AT = [
    CLAIM_COLUMNS.index(name) for name in ("input", "progress", "feedback", "answer", "ending")
]
_PARENT_AT = CLAIM_COLUMNS.index("parent_id")
_CONVERTED = {
    str(field.column): field
    for field in Task._meta.concrete_fields
    if isinstance(field, (DateTimeField, UUIDField, ForeignKey))
}
"""The columns that a database does not take as they are."""
_JSON = {str(field.column) for field in Task._meta.concrete_fields if isinstance(field, JSONField)}


def is_outage(error: BaseException) -> bool:
    """True when the database is away, or takes no writes for now, and so says nothing of the task.

    25006: a standby that is about to take over answers, but only to reads. 0A000: a migration has
    changed a column under this connection's prepared statement; a new connection plans it anew.
    """
    return isinstance(error, (OperationalError, InterfaceError)) or (
        getattr(error.__cause__, "sqlstate", None) in {"25006", "0A000"}
    )


def is_locked(error: BaseException) -> bool:
    """True when PostgreSQL's `lock_timeout` ended the wait for a row that somebody holds."""
    return getattr(error.__cause__, "sqlstate", None) == "55P03"


@functools.cache
def _dialect() -> ModuleType:
    return postgresql if connection.vendor == "postgresql" else sqlite


def _read_claimed(row: Sequence[Any] | None) -> Claimed | None:
    if row is None or row[0] is None:
        return None
    values = list(row)
    for at in _JSON_AT:
        values[at] = None if values[at] is None else json.loads(values[at])
    if isinstance(values[_PARENT_AT], str):  # SQLite's
        values[_PARENT_AT] = UUID(values[_PARENT_AT])
    return Claimed(*values)


def claim_task(
    owner: str, groups: Sequence[Group] | None, lease_seconds: float, this: UUID | None = None
) -> Claimed | None:
    """queued -> running: the best task of `groups` (in their order of lanes), or None.

    `groups` holds the (lane, workflow, version) heads to look at, lanes in order of preference.
    With `this` it is that task or none.
    """
    if this is not None:
        return _read_claimed(_dialect().claim_this(owner=owner, task=this, lease=lease_seconds))
    if not groups:
        return None
    row = _dialect().claim(owner=owner, groups=groups, lease=lease_seconds)
    return _read_claimed(row)


def checkpoint_unit(
    held: Claimed,
    unit: Unit,
    *,
    lease_seconds: float,
    groups: Sequence[Group] | None,
    this: UUID | None = None,
) -> Settled | None:
    """running -> running, queued or completed, by the holder: store the output and go on.

    With `groups` None (within the slice) the holder keeps the task: new fence, new lease. With
    groups it gives way to the best queued task of them, if that ranks before its own new place,
    and claims it in the same commit. A unit with a `result` completes the task and claims next.
    `this` is the task to give way to, and no other.

    Returns None, having written nothing, when the guard or the plain course failed: lease lost,
    a flag set, a limit used up. The caller then takes `transitions.holder`.
    """
    row = _dialect().checkpoint(held=held, unit=unit, lease=lease_seconds, groups=groups, this=this)
    if row is None:
        return None
    kept_fence, kept_at, *claimed = row
    return Settled(kept_fence, kept_at, _read_claimed(claimed) if claimed else None)


def beat_leases(owner: str, held: Sequence[Lease], lease_seconds: float) -> list[Beaten]:
    """Extend these leases of `owner` by the database's clock; those that are lost are missing.

    Expiry is no part of the guard: an expired lease that nobody reclaimed may go on.
    """
    if not held:
        return []
    return [Beaten(*row) for row in _dialect().beat(owner=owner, held=held, lease=lease_seconds)]


def list_groups() -> list[Group]:
    """Every (lane, workflow, version) with something queued: one index probe for each."""
    return [group for group, _ in list_heads()]


def list_heads() -> list[tuple[Group, int]]:
    """The same, each with the rank of what is first there."""
    return [(Queue(row), row[3]) for row in _dialect().groups()]


def insert_task(columns: dict[str, Any], actor: str, note: dict[str, Any]) -> Task:
    """nothing -> queued or scheduled: the row, its event `submitted` (data: `note`), the wake-up.

    Joins the caller's transaction, if any. What `columns` leaves out has its default; the times,
    the rank and the end of the wall limit are the database's, and of a scheduled one given:
    `available_at`, `rank`, `wall_left` and a `wall_until` of None. Two ORM inserts cost three
    times as much, and every column as a parameter half as much again, which is felt where tasks
    are submitted by the hundred.
    """
    # Not the proxy `connection`, which looks itself up at each use.
    database = connections[DEFAULT_DB_ALIAS]
    row = dict(columns)
    for column, value in columns.items():
        if value is None:
            continue
        if column in _JSON:
            row[column] = json.dumps(value)
        elif column in _CONVERTED:
            row[column] = _CONVERTED[column].get_db_prep_save(value, database)
    made = _dialect().insert_task(row=row, actor=actor, note=json.dumps(note))
    at, available_at, rank, wall_until = made
    return make_task(
        columns
        | {
            "created_at": at, "updated_at": at, "last_progress_at": at,
            "available_at": available_at, "rank": rank, "wall_until": wall_until,
        }
    )  # fmt: skip


def fetch_row(text: str, *params: Any, prepare: bool = False) -> Sequence[Any]:
    """The row of a statement that is written for this database: `$1` or `?` for a parameter.
    `prepare` is for workers only: in a web process the connection may be a pooler's."""
    found: Sequence[Any] = _dialect().fetch_row(text, params, prepare=prepare)
    return found


def warm_up() -> None:
    """Have this connection's statements parsed and planned, once, before there is work: a worker's
    first units would wait for that. Raises what the database does."""
    _dialect().warm_up()


def wake_workers() -> None:
    """Tell idle workers that something is queued; inside the transaction that queued it."""
    _dialect().wake()


def atomic() -> AbstractContextManager[None]:
    """A transaction that writes. Every one of the ledger begins here: SQLite's one lock is shared
    evenly only if nobody waits for it by SQLite's own means."""
    found: AbstractContextManager[None] = _dialect().atomic()
    return found


@contextmanager
def hold_task(lease: Lease, what: str) -> Iterator[Task]:
    """A transaction that holds the task row FOR SHARE under the holder's guard.

    For fenced inserts into other tables, named by `what`. Raises LeaseLost.
    """
    with atomic():
        query = Task.objects.filter(
            pk=lease.task_id, status="running", fence=lease.fence, lease_owner=lease.owner
        )
        if connection.vendor == "postgresql":
            # FOR NO KEY UPDATE on a plain row would make two reports of one unit wait for each
            # other and for the heartbeat; the insert needs only that the row does not move.
            rows = list(
                Task.objects.raw(
                    "SELECT * FROM longwatch_task WHERE id = %s AND status = 'running' "
                    "AND fence = %s AND lease_owner = %s FOR SHARE",
                    [lease.task_id, lease.fence, lease.owner],
                )
            )
        else:
            rows = list(query)
        if not rows:
            raise LeaseLost(lease.task_id, lease.fence, what)
        yield rows[0]


def read_task(task: Task) -> Claimed:
    """A running task's row, read by the ORM, as its holder's claim."""
    assert task.claimed_at is not None
    values: list[Any] = [getattr(task, name) for name in CLAIM_COLUMNS]
    return Claimed(*values)
