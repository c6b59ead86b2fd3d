"""Who is first at a budget that tasks share: the more urgent that waits for room in it.

Without that a task of a better priority would see its parent's money go from call to call of the
others, for each of them asks again sooner than it looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django.db.models import QuerySet

from ledger import clock, states
from ledger.models import Task


def find_more_urgent(task: Task, owners: Sequence[UUID]) -> UUID | None:
    """Of the tasks whose budgets this one shares, the first for whose room a task of a better
    priority waits."""
    if not owners:
        return None
    waiting = _list_waiting(owners).filter(priority__gt=task.priority)
    wanted = set(waiting.values_list("waits__of", flat=True).distinct())
    return next((one for one in owners if str(one) in wanted), None)


def hurry_first(owners: Sequence[UUID]) -> None:
    """Something was given back to these budgets: of those that wait for it the first looks now.

    In the transaction that holds the owners. A row that somebody has locked is not waited for,
    since all others lock from the child up.
    """
    if not owners:
        return
    rows = _list_waiting(owners).order_by("-priority", "rank").values_list("pk", flat=True)
    first = rows.select_for_update(skip_locked=True).first()
    if first is not None:
        Task.objects.filter(pk=first).update(available_at=clock.now())


def _list_waiting(owners: Sequence[UUID]) -> QuerySet[Task]:
    return Task.objects.filter(
        status=states.WAITING,
        status_reason=states.BUDGET,
        waits__of__in=[str(one) for one in owners],
    ).order_by()
