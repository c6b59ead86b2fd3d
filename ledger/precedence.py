"""Who is first at a budget that tasks share: the more urgent that waits for room in it.

Without that a task of a better priority would see its parent's money go from call to call of the
others, for each of them asks again sooner than it looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import QuerySet

from ledger import clock, states
from ledger.models import Task

MOST = 100
"""So many that wait are looked at."""


def find_more_urgent(task: Task, owners: Sequence[Task]) -> Task | None:
    """Of the tasks whose budgets this one shares, the first for whose room a task of a better
    priority waits. One whose call passes the limit even when all others have given back what they
    hold waits for none: a person has to raise it, and meanwhile the others go on."""
    if not owners:
        return None
    waiting = _list_waiting(owners).filter(priority__gt=task.priority).order_by("-priority")
    wanted: list[Any] = list(waiting.values_list("waits", flat=True)[:MOST])
    for owner in owners:
        tokens = owner.limit_tokens - owner.used_tokens_in - owner.used_tokens_out
        cost = owner.limit_cost - owner.used_cost
        for one in wanted:
            fits = one["tokens"] <= tokens and one["cost"] <= cost
            if fits and one["of"] == str(owner.pk):
                return owner
    return None


def hurry_first(owners: Sequence[Task]) -> None:
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


def _list_waiting(owners: Sequence[Task]) -> QuerySet[Task]:
    return Task.objects.filter(
        status=states.WAITING,
        status_reason=states.BUDGET,
        waits__of__in=[str(one.pk) for one in owners],
    ).order_by()
