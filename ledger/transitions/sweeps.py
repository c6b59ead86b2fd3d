"""The edges that time takes: reclaim, promote, expire, apply, enforce. Bounded, one task each.

Any process may run any of them at any time; each looks again under the row lock, and a row that
somebody else holds is skipped. A task that can't be moved is logged, and stops no other.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from django.db import OperationalError, connection
from django.db.models import Case, F, Q, QuerySet, Value, When
from django.db.models.expressions import RawSQL

from ledger import clock, conf, limits, sql, states
from ledger.events import SYSTEM, Actor, record_event
from ledger.models import Approval, Event, Task
from ledger.transitions import approvals, budgets, children, overdue, waits
from ledger.transitions.budgets import stop_by_limit
from ledger.transitions.endings import end_task
from ledger.transitions.moves import lock_if_free, make_error, move_task, skip_locked

log = logging.getLogger(__name__)


def move_each(keys: Iterable[UUID], move: Callable[[UUID], object]) -> int:
    """How many of `keys` `move` moved, each in a transaction of its own.

    Raises only what says that the database is away.
    """
    moved = 0
    for key in list(keys):
        try:
            moved += bool(move(key))
        except Exception as error:
            if sql.is_outage(error):
                raise
            log.exception("%s can't be swept; the others go on", key)
    return moved


def find_expired(lease_seconds: float, limit: int = 100) -> list[UUID]:
    """Tasks whose lease is over, or lies further in the future than two leases could put it.

    The second kind is left by a database clock that stepped back; it would strand the task.
    """
    return list(
        Task.objects.filter(status=states.RUNNING)
        .filter(Q(lease_until__lte=clock.now()) | Q(lease_until__gt=clock.now(2 * lease_seconds)))
        .order_by("id").values_list("id", flat=True)[:limit]
    )  # fmt: skip


class _Seen(threading.local):
    """What this sweeper saw: attempts (task, fence) whose row was locked when it would have ended
    them, and when that was."""

    def __init__(self) -> None:
        self.locked: dict[tuple[UUID, int], float] = {}


_seen = _Seen()

type Explain = Callable[[str], str]
"""What is known here of how a worker (by its name as owner) ended; "" for nothing."""


def reclaim_expired(
    lease_seconds: float, limit: int = 100, explain: Explain = lambda owner: ""
) -> int:
    """running -> queued for every task whose worker was lost; how many."""
    expired = find_expired(lease_seconds, limit)
    return move_each(expired, lambda key: reclaim_task(key, lease_seconds, explain))


def reclaim_task(
    task_id: UUID, lease_seconds: float, explain: Explain = lambda owner: ""
) -> str | None:
    """running -> queued at the head (or dead, cancelled, paused): the worker was lost.

    Returns the new status, or None when the lease lives or somebody else was here. Not a repair:
    the same unit runs again. Counted here, by a sweeper that survives, and never by the worker.
    Raises OperationalError after waiting for SQLite's lock for more than a heartbeat: meanwhile
    no holder could beat, so its lease is over by another program's fault.
    """
    asked = time.monotonic()
    with lock_if_free(task_id) as found:
        if time.monotonic() - asked > conf.load().heartbeat_seconds:
            raise OperationalError("the lock came late; the holders of leases beat first")
        if found is None:
            fences = Task.objects.filter(pk=task_id).values_list("fence", flat=True)
            _seen.locked.update({(task_id, fence): asked for fence in fences})
            return None
        task, now = found
        if task.status != states.RUNNING or task.lease_until is None or _is_spared(task):
            return None
        horizon = now + dt.timedelta(seconds=2 * lease_seconds)
        if now < task.lease_until <= horizon:
            return None
        cause = explain(task.lease_owner) or "it stopped beating: killed, cut off or stuck"
        return end_lease(task, now, cause)


def end_lease(
    task: Task, now: dt.datetime, cause: str, actor: Actor = SYSTEM, reason: str = ""
) -> str:
    """The edge itself, of a running task that is locked: its worker is lost, by `cause`.

    Charged as a reclaim, whoever says so; returns the new status.
    """
    reclaims = task.reclaims + 1
    lost = make_error(task, "WorkerLost", f"The worker was lost in this unit; {cause}.")
    said: dict[str, Any] = {"reason": reason} if reason else {}
    record_event(task, "reclaimed", actor, now, worker=task.lease_owner, reclaims=reclaims,
                 started_at=_format(task.claimed_at), error=lost, **said)  # fmt: skip
    fields: dict[str, Any] = {"reclaims": reclaims}
    target, why = states.QUEUED, ""
    if reclaims > conf.load().max_reclaims and not task.cancel_requested:
        target, why = states.DEAD, states.RECLAIMS_EXHAUSTED
        fields["error"] = make_error(
            task,
            "WorkerLost",
            f"{reclaims} workers were lost at this step; of the last, {cause}.",
        )
        record_event(task, "dead", SYSTEM, now, reason=why, error=fields["error"])
    elif task.cancel_requested:
        return end_task(
            task, now, "reclaim_task", states.CANCELLED, actor=Actor.parse(task.cancel_by),
            reason=states.CANCELLED_BY_OPERATOR, said={}, **fields,
        )  # fmt: skip
    elif task.pause_requested:
        target, why = states.PAUSED, states.PAUSED_BY_OPERATOR
        record_event(task, "paused", Actor.parse(task.pause_by), now)
        fields["pause_requested"] = False
    else:
        # It keeps the place it was claimed with: it has waited its turn already.
        fields |= {"rank": task.rank, "available_at": task.available_at}
    move_task(task, now, "reclaim_task", target, reason=why, **fields)
    return target


def _is_spared(task: Task) -> bool:
    """True for two heartbeats after a look at a row that was locked: whoever locked it kept its
    holder from beating too, and that one beats first."""
    ago = time.monotonic() - 2 * conf.load().heartbeat_seconds
    for key in [key for key, at in _seen.locked.items() if at < ago]:
        del _seen.locked[key]
    return (task.pk, task.fence) in _seen.locked


def promote_due(limit: int = 100) -> int:
    """scheduled -> queued (or paused) for what is due; the rank is the time it was due at."""
    due = Task.objects.filter(status=states.SCHEDULED, available_at__lte=clock.now())
    try:
        return _promote(due.order_by("available_at", "id")[:limit])
    except Exception as error:
        if sql.is_outage(error):
            raise
        log.warning("a batch can't be promoted, now each by itself: %s", error)
        keys = due.values_list("id", flat=True)[:limit]
        return move_each(keys, lambda key: _promote(due.filter(pk=key)))


def _promote(query: QuerySet[Task]) -> int:
    with sql.atomic():
        due = list(skip_locked(query))
        if not due:
            return 0
        now = clock.read()
        going = [task for task in due if not task.pause_requested]
        for task in due:
            if task.pause_requested:
                record_event(task, "paused", Actor.parse(task.pause_by), now)
                move_task(task, now, "promote_due", states.PAUSED,
                          reason=states.PAUSED_BY_OPERATOR, pause_requested=False)  # fmt: skip
        _promote_all(going, now)
        return len(due)


def _promote_all(tasks: list[Task], now: dt.datetime) -> None:
    """The plain ones in two statements: a storm of retries is due in the same second."""
    if not tasks:
        return
    Event.objects.bulk_create(
        Event(
            task_id=task.id, seq=task.event_seq + 1, at=now, kind="promoted", actor=str(SYSTEM),
            step=task.step_name, turn=task.turn, fence=task.fence,
            data={"reason": task.status_reason},
        )
        for task in tasks
    )  # fmt: skip
    going_on = clock.fragment(connection.vendor, "wall_left").replace("%", "%%")
    micros = (
        "CAST(extract(epoch FROM available_at) * 1000000 AS bigint)"
        if connection.vendor == "postgresql"
        else "CAST((julianday(available_at) - 2440587.5) * 86400000000 AS integer)"
    )
    rank = f"{micros} - priority * CAST({conf.RANK_PER_PRIORITY} AS bigint)"  # else an integer
    Task.objects.filter(pk__in=[task.pk for task in tasks], status=states.SCHEDULED).update(
        status=states.QUEUED, updated_at=now,
        status_reason=Case(When(ending__isnull=True, then=Value("")),
                           default=Value(states.COMPENSATING)),
        rank=RawSQL(rank, []),
        wall_until=RawSQL(f"coalesce(wall_until, {going_on})", []), wall_left=None,
        event_seq=F("event_seq") + 1, revision=F("revision") + 1,
    )  # fmt: skip
    sql.wake_workers()


def apply_decisions(limit: int = 100) -> int:
    """waiting (decided) -> on, for every decision whose undo window is over."""
    ready = Task.objects.filter(
        status=states.WAITING, status_reason=states.DECIDED, available_at__lte=clock.now()
    ).order_by("available_at").values_list("id", flat=True)[:limit]  # fmt: skip
    return move_each(ready, approvals.apply_decision)


def expire_signals(limit: int = 100) -> int:
    """waiting (signal) -> on, or dead, for every wait whose time is over."""
    over = Task.objects.filter(
        status=states.WAITING, status_reason=states.SIGNAL, available_at__lte=clock.now()
    ).order_by("available_at").values_list("id", flat=True)[:limit]  # fmt: skip
    return move_each(over, waits.expire_signal)


def tell_parents(limit: int = 100) -> int:
    """Parents are told which of their children ended; how many were."""
    untold = Task.objects.filter(
        parent__isnull=False, finished_at__isnull=False, parent_told=False
    ).order_by().values_list("parent_id", flat=True).distinct()[:limit]  # fmt: skip
    return move_each(untold, children.tell_parent)


def join_parents(limit: int = 100) -> int:
    """waiting (children) -> on, for those that are to be looked at again by now."""
    due = Task.objects.filter(
        status=states.WAITING, status_reason=states.CHILDREN, available_at__lte=clock.now()
    ).order_by("available_at").values_list("id", flat=True)[:limit]  # fmt: skip
    return move_each(due, children.join_children)


def end_orphans(limit: int = 100) -> int:
    """Any unfinished child -> cancelled, of parents that no longer want it."""
    marked = Task.objects.filter(cascade_upto__isnull=False).values_list("id", flat=True)[:limit]
    return move_each(marked, children.end_children)


def look_at_budgets(limit: int = 100) -> int:
    """waiting (budget) -> on, for those whose parents have room again; how many."""
    due = Task.objects.filter(
        status=states.WAITING, status_reason=states.BUDGET, available_at__lte=clock.now()
    ).order_by("-priority", "available_at").values_list("id", flat=True)[:limit]  # fmt: skip
    return move_each(due, budgets.go_on_with_budget)


def expire_approvals(limit: int = 100) -> int:
    """waiting (approval) -> the next people, or what the workflow says, for what ran out."""
    over = Approval.objects.filter(status="open", expires_at__lte=clock.now()).order_by(
        "expires_at"
    )
    return move_each(over.values_list("id", flat=True)[:limit], overdue.expire_approval)


def remind_approvals(limit: int = 100) -> int:
    """waiting (approval) -> the same, with a reminder on record, for every question it is due."""
    due = Approval.objects.filter(
        status="open", remind_at__lte=clock.now(), expires_at__gt=clock.now()
    ).order_by("remind_at")
    return move_each(due.values_list("id", flat=True)[:limit], overdue.remind_approval)


def enforce_limits(limit: int = 100) -> int:
    """queued, scheduled, waiting, paused -> dead or a question, past the wall limit or deadline.

    What runs is judged by its holder at the unit's end, which has a bound of its own; what undoes
    its effects by nobody.
    """
    may_end = Task.objects.filter(
        status__in=sorted(states.UNFINISHED - {states.RUNNING}), ending__isnull=True
    ).exclude(on_limit="ask", status=states.WAITING, status_reason__in=states.FOR_PEOPLE)
    late = may_end.filter(wall_until__lte=clock.now(), lease_owner="").order_by("wall_until")
    due = may_end.filter(deadline_at__lte=clock.now(), finished_at=None).order_by("deadline_at")
    # One by one: of both in one condition SQLite reads every task there is.
    overdue = [one for rows in (late, due) for one in rows.values_list("id", flat=True)[:limit]]
    return move_each(overdue, enforce_limit)


def enforce_limit(task_id: UUID) -> bool:
    """The edge itself; False when the task has room again, runs, or is somebody else's just now."""
    with lock_if_free(task_id) as found:
        if found is None:
            return False
        task, now = found
        reason = limits.find_overdue(task, now)
        if reason is None or task.status not in states.UNFINISHED - {states.RUNNING}:
            return False
        if task.ending is not None:
            return False
        return stop_by_limit(task, now, reason)


def _format(moment: dt.datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
