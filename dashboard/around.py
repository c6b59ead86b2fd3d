"""The list that a task's page was opened from: the way back, and the tasks beside it there."""

from __future__ import annotations

from typing import Any

from django.http import QueryDict
from django.urls import reverse

from dashboard.listing import read_wanted
from dashboard.wish import Wish
from ledger import queries


def read_list(wish: Wish) -> queries.TaskFilter | None:
    """What the list is narrowed to; None for a page that was not opened from one."""
    if not wish.list:
        return None
    wanted, entry, _ = read_wanted(QueryDict(wish.list))
    return queries.TaskFilter([*wanted.pairs, *entry.typed])


def find_around(wish: Wish, row: Any) -> dict[str, Any]:
    """`{back, newer, older}` as addresses, which keep the list and how a task is shown; `row` is of
    `queries.find_shown`, which looked beside it."""
    query = wish.go_on().write()
    return {"back": f"{reverse('dashboard:tasks')}?{wish.list}"} | {
        name: reverse("dashboard:task", args=[key]) + query if key else ""
        for name, key in (("newer", row.newer), ("older", row.older))
    }
