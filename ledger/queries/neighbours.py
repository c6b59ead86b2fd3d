"""The tasks beside one in a list: what its page leads on to."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from django.db.models import Q, Subquery

from ledger.queries.filters import TaskFilter
from ledger.queries.seen import see_tasks


class Neighbours(NamedTuple):
    """The next task above and below; None where the list ends."""

    newer: UUID | None
    older: UUID | None


def find_neighbours(task_id: UUID, wanted: TaskFilter) -> Neighbours:
    """Those of the list that `wanted` narrows, newest first, also of a task that it leaves out.

    Two look-ups, each from the task's place on. Raises InvalidInput.
    """
    at = Subquery(see_tasks().filter(pk=task_id).values("created_at")[:1])
    rows = wanted.apply(see_tasks()).values_list("pk", flat=True)
    # The first condition is the one that an index on (created_at, id) can begin at.
    above = rows.filter(Q(created_at__gt=at) | Q(pk__gt=task_id), created_at__gte=at)
    below = rows.filter(Q(created_at__lt=at) | Q(pk__lt=task_id), created_at__lte=at)
    return Neighbours(
        above.order_by("created_at", "pk").first(), below.order_by("-created_at", "-pk").first()
    )
