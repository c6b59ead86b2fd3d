"""Saved views of the task list: which there are for a person, and how many tasks each shows."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connection
from django.db.models import Q, QuerySet, Value

from ledger.events import Actor
from ledger.models import SavedView
from ledger.queries.filters import TaskFilter
from ledger.queries.seen import see_tasks
from ledger.queries.tasks import COUNT_CAP

MAX_SHOWN = 200
"""Views that one person is shown; their own come first."""


def see_views(actor: Actor) -> QuerySet[SavedView]:
    """A person's own views and those that others share."""
    return SavedView.objects.filter(Q(owner=str(actor)) | Q(shared=True))


def list_views(actor: Actor) -> list[SavedView]:
    """The same by name, one's own first."""
    rows = list(see_views(actor).order_by("name", "id")[: 5 * MAX_SHOWN])
    return sorted(rows, key=lambda row: row.owner != str(actor))[:MAX_SHOWN]


def count_lists(lists: Sequence[TaskFilter]) -> list[int | None]:
    """How many tasks the caller finds in each list, up to COUNT_CAP; all in one statement, with one
    before it for how far back they are looked for. None where text would be searched for: that
    takes long, and is done for a list that is opened.
    """
    bounds: list[dt.datetime | None] = []
    parts: list[str] = []
    values: list[Any] = []
    for number, wanted in enumerate(lists):
        if wanted.find_text():
            continue
        if wanted.is_scan:
            bounds = bounds or [wanted.bound_search().since]
            wanted = dataclasses.replace(wanted, since=bounds[0])
        rows = wanted.apply(see_tasks()).order_by().values_list(Value(1))[:COUNT_CAP]
        try:
            statement, given = rows.query.sql_with_params()
        except EmptyResultSet:
            parts.append("SELECT %s, 0")
            values.append(number)
            continue
        parts.append(f"SELECT %s, (SELECT count(*) FROM ({statement}) AS capped)")
        values += [number, *given]
    if not parts:
        return [None] * len(lists)
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(parts), values)
        found = dict(cursor.fetchall())
    return [found.get(number) for number in range(len(lists))]
