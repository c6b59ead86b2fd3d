"""Tokens and money that a task's children share with it, and each other.

What a child spends or reserves counts in every task above it at once, under locks taken from the
child up (`limits.lock_line`). Where that leaves no room the child waits, and the task whose limit
it is comes to its end, or asks, as with any used-up limit; after a raise its children go on. Those
of less priority reserve nothing while it waits (`ledger.precedence`).
"""

from __future__ import annotations

import datetime as dt
from uuid import UUID

from django.db.models import Q

from ledger import limits, precedence, states
from ledger.errors import LimitReached
from ledger.events import SYSTEM, Actor, record_event
from ledger.models import Task
from ledger.sql import Claimed
from ledger.transitions.approvals import void_open_approval
from ledger.transitions.holder import Attempt, leave_if_cancelled, record_attempt
from ledger.transitions.limit_questions import ask_limit, describe_place
from ledger.transitions.moves import lock_held, lock_if_free, make_error, move_task, requeue_task

LOOK_AGAIN = dt.timedelta(seconds=10)
"""A child that waits for room looks for it that often: a raise, or a call that cost less."""


def await_budget(held: Claimed, attempt: Attempt | None, short: LimitReached) -> None:
    """running -> waiting (budget), uncharged: a task above has no tokens or money left for it.

    `attempt` is None when that was found before the step began.
    """
    with lock_held(held.lease, "budget") as (task, now):
        if attempt is not None:
            record_attempt(task, held, attempt, now, "attempt_failed")
        if leave_if_cancelled(task, held, now, "await_budget", {}):
            return
        need = {"tokens": short.amount if short.reason == states.LIMIT_TOKENS else 0,
                "cost": short.amount if short.reason == states.LIMIT_COST else 0}  # fmt: skip
        error = make_error(task, "LimitReached", str(short))
        record_event(task, "waiting", Actor("worker", held.owner), now, reason=states.BUDGET,
                     of=short.owner, limit=short.reason)  # fmt: skip
        move_task(
            task, now, "await_budget", states.WAITING, reason=states.BUDGET, by_holder=True,
            available_at=now + LOOK_AGAIN if short.gives_way else now, error=error,
            waits={"for": states.BUDGET, "of": short.owner, **need},
        )  # fmt: skip


def go_on_with_budget(task_id: UUID) -> bool:
    """waiting (budget) -> queued once there is room; else a later look, and the parent stops.

    True when either of the two moved.
    """
    with lock_if_free(task_id) as found:
        if found is None:
            return False
        task, now = found
        waits = task.waits or {}
        if task.status_reason != states.BUDGET or task.available_at > now:
            return False
        short = limits.find_shortage(task.parent_id, waits["tokens"], waits["cost"])
        if short is None and not _gives_way(task, waits.get("of")):
            record_event(task, "promoted", SYSTEM, now, reason=states.BUDGET)
            requeue_task(task, now, "go_on_with_budget", error=None)
            return True
        # No revision: nothing has changed that a person could see.
        Task.objects.filter(pk=task_id, status=task.status, fence=task.fence).update(
            available_at=now + LOOK_AGAIN
        )
    return short is not None and _stop_owner(short[0].pk, short[1])


def _gives_way(task: Task, owner_id: str | None) -> bool:
    """There is room, and someone more urgent waits for it too."""
    owners = Task.objects.filter(pk=owner_id) if owner_id else ()
    return precedence.find_more_urgent(task, list(owners)) is not None


def _stop_owner(task_id: UUID, short: LimitReached) -> bool:
    """A task that waits for children which its limits keep from going on; unless a call under way
    below it may yet cost less than it has reserved."""
    with lock_if_free(task_id) as found:
        if found is None:
            return False
        task, now = found
        if (task.status, task.status_reason) != (states.WAITING, states.CHILDREN):
            return False
        spent = limits.find_spent(task)
        if spent is None and _may_free(task):
            return False
        return stop_by_limit(task, now, spent or short.reason, 0 if spent else short.least)


def _may_free(task: Task) -> bool:
    """Whether anybody below runs, or is to run again with a call that its lost attempt left."""
    reserved = Q(reserved_tokens__gt=0) | Q(reserved_cost__gt=0)
    again = Q(status__in=(states.QUEUED, states.SCHEDULED)) & reserved
    parents = [task.pk]
    while parents:
        below = Task.objects.filter(parent__in=parents)
        if below.filter(Q(status=states.RUNNING) | again).exists():
            return True
        parents = list(below.filter(children_open__gt=0).values_list("pk", flat=True))
    return False


def stop_by_limit(task: Task, now: dt.datetime, reason: str, least: int = 0) -> bool:
    """A locked task that does not run -> dead by a limit, or a question about it."""
    text = limits.describe_reason(reason)
    error = make_error(task, "LimitReached", text)
    if limits.asks_people(task, reason):
        if task.status == states.WAITING and task.status_reason in states.FOR_PEOPLE:
            return False  # one question at a time: the limit's comes when it would go on
        ask_limit(task, now, "enforce_limit", reason, SYSTEM, {"error": error},
                  describe_place(task), least)  # fmt: skip
        return True
    void_open_approval(task, SYSTEM, now, text)
    record_event(task, "dead", SYSTEM, now, reason=reason, error=error)
    move_task(task, now, "enforce_limit", states.DEAD, reason=reason, error=error)
    return True
