"""A task as its page needs it: the row, and in the same query what stands around it."""

from __future__ import annotations

import datetime as dt
from typing import Any
from uuid import UUID

from django.db.models import OuterRef, Q, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce

from ledger import clock, states
from ledger.models import Task
from ledger.queries.counting import CountRows
from ledger.queries.filters import SEARCHED, SEARCHED_TEXT, IsStalled, TaskFilter
from ledger.queries.pages import select_waiting
from ledger.queries.searching import HasText
from ledger.queries.seen import explain_missing, find_hidden_family, see_tasks

_EVER = Value(dt.datetime(1, 1, 2, tzinfo=dt.UTC))


def find_shown(task_id: UUID, beside: TaskFilter | None = None) -> Any:
    """The row as `find_task` gives it, with `waiting_count`, the open approvals of all tasks, and
    `family_hidden`, whether children of it are in lanes that the caller does not see.

    With `beside`, a list newest first, also `newer` and `older`: the tasks next to it there, None
    where the list ends; also of a task that the list leaves out. Raises TaskNotFound, InvalidInput.
    """
    looks: dict[str, Any] = {
        "stalled": IsStalled(),
        "read_at": clock.now(),
        "waiting_count": CountRows(select_waiting().values("pk")),
        "family_hidden": find_hidden_family(),
    }
    if beside is not None:
        looks |= _look_beside(beside)
    row = see_tasks().annotate(**looks).filter(pk=task_id).first()
    if row is None:
        raise explain_missing(task_id)
    return row


def _look_beside(wanted: TaskFilter) -> dict[str, Subquery]:
    """Two look-ups, each from the task's place on."""
    rows = _narrow(wanted)
    moment, key = OuterRef("created_at"), OuterRef("pk")
    # The last condition is the one that an index on (created_at, id) can begin at.
    above = rows.filter(Q(created_at__gt=moment) | Q(pk__gt=key), created_at__gte=moment)
    below = rows.filter(Q(created_at__lt=moment) | Q(pk__lt=key), created_at__lte=moment)
    return {
        "newer": Subquery(above.order_by("created_at", "pk").values("pk")[:1]),
        "older": Subquery(below.order_by("-created_at", "-pk").values("pk")[:1]),
    }


def _narrow(wanted: TaskFilter) -> QuerySet[Task]:
    """The tasks of the list, bounded as `TaskFilter.bound_search` bounds it: where no index finds
    what is asked for, finished ones among the newest only. A text is looked for as far as the next
    task that has it."""
    text = wanted.find_text()
    pairs = [pair for pair in wanted.pairs if not (text and pair[0] == "q")]
    rows = TaskFilter(pairs).apply(see_tasks())
    if text:
        rows = rows.filter(HasText(text))
    if not wanted.is_scan:
        return rows
    count = SEARCHED_TEXT if text else SEARCHED
    times = Task.objects.order_by("-created_at", "-pk").values("created_at")
    since = Coalesce(Subquery(times[count - 1 : count]), _EVER)
    return rows.filter(Q(created_at__gte=since) | Q(status__in=states.UNFINISHED))
