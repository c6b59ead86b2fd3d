"""What every edge shares: lock the row, move it under a guard, keep the columns in step."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import F

from ledger import auditing, clock, conf, hours, sql, states
from ledger.calls import sees_lane
from ledger.errors import (
    AlreadySettled,
    ContentsRemoved,
    InvalidInput,
    LeaseLost,
    StaleRevision,
    TaskNotFound,
    WrongStatus,
)
from ledger.events import SYSTEM, Actor, record_event
from ledger.models import Event, StepOutput, Task

NO_LEASE: dict[str, Any] = {"lease_owner": "", "lease_until": None}
NO_FLAGS: dict[str, Any] = {
    "cancel_requested": False, "cancel_by": "", "pause_requested": False, "pause_by": "",
}  # fmt: skip
FRESH_UNIT: dict[str, Any] = {"attempts": 0, "reclaims": 0, "releases": 0}
NO_REPORT: dict[str, Any] = {"progress_done": None, "progress_total": None, "progress_note": ""}
"""What a step said of itself is not true of the next one."""

KEEP_WAIT = {states.WAITING, states.FAILED, states.DEAD, states.CANCELLED}
"""Where a wait that has not come to its end is remembered."""


@contextmanager
def lock_task(
    task_id: UUID | str, revision: int | None = None
) -> Iterator[tuple[Task, dt.datetime]]:
    """A transaction holding the row; yields it with the database's time read after the lock.

    What people do inside is in the audit log. In a lane that the caller does not see is no task.
    Raises TaskNotFound, and StaleRevision when the caller looked at an older revision.
    """
    with sql.atomic():
        task = Task.objects.select_for_update().filter(pk=task_id).first()
        if task is None or not sees_lane(task.lane):
            raise TaskNotFound(task_id)
        if revision is not None and revision != task.revision:
            raise StaleRevision(revision, task.revision)
        watch = auditing.Watch(task, clock.read())
        yield task, watch.now
        watch.write()


@contextmanager
def lock_if_free(task_id: UUID) -> Iterator[tuple[Task, dt.datetime] | None]:
    """The same for a sweep: yields None for a row that somebody else holds, or that is gone.

    Sweeps run on the thread that beats for its worker's lease, so they wait for nobody.
    """
    with sql.atomic():
        task = skip_locked(Task.objects.filter(pk=task_id)).first()
        yield None if task is None else (task, clock.read())


def skip_locked(query: Any) -> Any:
    """The rows of `query` that nobody holds, locked. On SQLite BEGIN IMMEDIATE holds everything."""
    if connection.vendor == "postgresql":
        return query.select_for_update(skip_locked=True)
    return query


@contextmanager
def lock_held(lease: sql.Lease, what: str) -> Iterator[tuple[Task, dt.datetime]]:
    """The same for the holder of `lease`: status, fence and owner, never expiry.

    Raises LeaseLost (and records the refused write), or AlreadySettled when this very lease has
    ended its attempt before.
    """
    with sql.atomic():
        task = (
            Task.objects.select_for_update()
            .filter(
                pk=lease.task_id,
                status=states.RUNNING,
                fence=lease.fence,
                lease_owner=lease.owner,
            )
            .first()
        )
        if task is not None:
            yield task, clock.read()
            return
    refuse_write(lease, what)


def refuse_write(lease: sql.Lease, what: str) -> None:
    """Name why the holder's guard failed: raise AlreadySettled or LeaseLost, on record once."""
    actor = Actor("worker", lease.owner)
    refusal = "stale_write_refused"
    under_it: dict[str, Any] = {"task_id": lease.task_id, "fence": lease.fence}
    ended = Event.objects.filter(**under_it, actor=str(actor))
    ended = ended.exclude(kind__in=(refusal, "compensated"))
    if StepOutput.objects.filter(**under_it).exists() or ended.exists():
        raise AlreadySettled(f"The unit under fence {lease.fence}")
    try:
        with lock_task(lease.task_id) as (task, now):
            if not Event.objects.filter(**under_it, kind=refusal).exists():
                record_event(task, refusal, actor, now, fence=lease.fence, what=what)
                update_row(task, {})
    except TaskNotFound:  # only a person at the database's prompt can do that
        raise LeaseLost(lease.task_id, lease.fence, deleted=True) from None
    raise LeaseLost(lease.task_id, lease.fence)


def refuse_beat(lease: sql.Lease) -> None:
    """Put the end of a unit that lost its lease on record, unless a person took it: they know.

    Raises as `refuse_write` does.
    """
    if Event.objects.filter(task_id=lease.task_id, fence=lease.fence, kind="reclaimed").exists():
        refuse_write(lease, "heartbeat")


def rank_at(moment: dt.datetime, priority: int) -> int:
    """The place in the queue of what is queued at `moment`: microseconds, lower is earlier."""
    micros = (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
    return micros - priority * conf.RANK_PER_PRIORITY


def update_row(task: Task, fields: dict[str, Any]) -> None:
    """Write `fields` to the locked row, guarded by what was read: one row or WrongStatus."""
    auditing.note_change(task, fields)
    moved = Task.objects.filter(pk=task.pk, status=task.status, fence=task.fence).update(
        **fields, event_seq=task.event_seq, revision=F("revision") + 1
    )
    if moved != 1:
        raise WrongStatus("write to", "another than it was a moment ago")


def move_task(
    task: Task,
    now: dt.datetime,
    edge: str,
    target: str,
    *,
    reason: str = "",
    by_holder: bool = False,
    **fields: Any,
) -> None:
    """Move the locked `task` along `edge` to `target`, with everything that goes with it.

    Lease, fence, wall clock, finish time, rank and wake-up follow from source and target;
    `fields` are the edge's own columns. Events come before, so that their numbers are stored.
    Raises WrongStatus when the diagram has no such arrow, ContentsRemoved for what retention took.
    """
    if not states.allow_edge(edge, task.status, target):
        raise WrongStatus(edge.replace("_", " "), task.status)
    undoing = fields.get("ending", task.ending) is not None
    if undoing and target == states.QUEUED:
        reason = states.COMPENSATING
    columns: dict[str, Any] = {
        "status": target, "status_reason": reason, "updated_at": now,
        **_move_wall(task, now, target, reason), **_move_lease(task, target, by_holder),
    }  # fmt: skip
    if target in states.FINISHED:
        columns |= {"finished_at": now, **NO_FLAGS}
    elif task.status in states.FINISHED:
        if task.thinned_at is not None:
            raise ContentsRemoved
        columns["finished_at"] = None
        hours.note_change(task.finished_at)
    if target == states.QUEUED and task.status != states.QUEUED:
        columns |= {"available_at": now, "rank": rank_at(now, task.priority)}
    if task.waits is not None and target not in KEEP_WAIT and not undoing:
        columns["waits"] = None
    if task.children_open > 0 and target not in {states.WAITING, states.DEAD}:
        columns["cascade_upto"] = task.event_seq
    if target == states.CANCELLED and task.cancel_by.startswith("task:"):
        columns["status_reason"] = states.CANCELLED_BY_PARENT
    frees = task.held_key is not None and target not in {states.QUEUED, states.RUNNING}
    if frees:
        columns["held_key"] = None
    columns |= fields
    update_row(task, columns)
    if (
        task.parent_id
        and task.parent_told
        and task.status in states.FINISHED
        and target not in states.FINISHED
    ):
        # Set going again by a person: its parent has one more to wait for.
        Task.objects.filter(pk=task.pk).update(parent_told=False)
        Task.objects.filter(pk=task.parent_id).update(children_open=F("children_open") + 1)
    if target == states.QUEUED or frees:
        sql.wake_workers()


def requeue_task(
    task: Task, now: dt.datetime, edge: str, *, by_holder: bool = False, **fields: Any
) -> None:
    """Queue a task whose wait is over; or pause it, if that was asked for meanwhile."""
    target, reason = states.QUEUED, ""
    if task.pause_requested:
        record_event(task, "paused", Actor.parse(task.pause_by), now)
        target, reason = states.PAUSED, states.PAUSED_BY_OPERATOR
        fields |= {"pause_requested": False}
    move_task(task, now, edge, target, reason=reason, by_holder=by_holder, **fields)


def complete_task(
    task: Task, now: dt.datetime, edge: str, *, by_holder: bool = False, **fields: Any
) -> None:
    """End a task whose last step waited: its result is its last output."""
    result = (
        StepOutput.objects.filter(task=task, superseded_in_round__isnull=True)
        .order_by("-seq").values_list("output", flat=True).first()
    )  # fmt: skip
    record_event(task, "completed", SYSTEM, now)
    move_task(task, now, edge, states.COMPLETED, result=result, by_holder=by_holder,
              **{"error": None, **fields})  # fmt: skip


def end_wait(
    task: Task,
    now: dt.datetime,
    edge: str,
    told: dict[str, Any],
    *,
    by_holder: bool = False,
    **fields: Any,
) -> None:
    """On from a wait for others: the step (or turn) after it, and no other, sees what it was
    `told`."""
    assert task.waits is not None
    fields["answer"] = {
        "for_step": task.waits["step"], "for_turn": task.waits.get("turn"),
        "step_index": task.step_index, **told,
    }  # fmt: skip
    go = complete_task if task.waits["last"] else requeue_task
    go(task, now, edge, by_holder=by_holder, **fields)


def count_reached(task: Task) -> int:
    """How many steps of its workflow the task has run or is about to run.

    The step after a wait is not among them before the wait is over, nor if it never was. A unit
    that waits for its parent's budget is itself to run again.
    """
    return task.step_index + 1 - ((task.waits or {}).get("last") is False)


def check_reached(task: Task, steps: Sequence[str], index: int, field: str, way: str) -> None:
    """Raise InvalidInput unless the task has reached the step; `way` names what was tried."""
    reached = count_reached(task)
    if index >= reached:
        why = "is not reached before its wait is over" if task.waits else "has not been reached"
        allowed = ", ".join(steps[:reached])
        raise InvalidInput(field, f"{steps[index]} {why}; {way} from {allowed}")


def _move_lease(task: Task, target: str, by_holder: bool) -> dict[str, Any]:
    if task.status != states.RUNNING or target == states.RUNNING:
        return {}
    return NO_LEASE if by_holder else {**NO_LEASE, "fence": task.fence + 1}


def _move_wall(task: Task, now: dt.datetime, target: str, reason: str) -> dict[str, Any]:
    """Stop or start the wall limit; what is left of it is kept while it stands."""
    runs = states.counts_wall(task.status, task.status_reason)
    will_run = states.counts_wall(target, reason)
    if runs and not will_run and task.wall_until is not None:
        left = (task.wall_until - now).total_seconds()
        return {"wall_until": None, "wall_left": left}
    if will_run and not runs:
        left = task.wall_left if task.wall_left is not None else task.limit_wall
        return {"wall_left": None, "wall_until": now + dt.timedelta(seconds=left)}
    return {}


def make_error(task: Task, kind: str, message: str) -> dict[str, Any]:
    """What `Task.error` holds: the type, the text and the unit it happened in."""
    return {
        "type": kind, "message": message, "step": task.step_name, "turn": task.turn,
        "attempt": task.attempts,
    }  # fmt: skip


def require_status(
    task: Task, action: str, allowed: frozenset[str] | set[str], hint: str = ""
) -> None:
    """Raise WrongStatus unless the task is in one of `allowed`."""
    if task.status not in allowed:
        raise WrongStatus(action, task.status, hint)
