"""The list that a task's page was opened from: the way back, and the tasks beside it there."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import QueryDict
from django.urls import reverse

from dashboard.listing import read_wanted
from dashboard.wish import Wish
from ledger import queries


def find_around(wish: Wish, task_id: UUID) -> dict[str, Any] | None:
    """`{back, newer, older}` as addresses, which keep the list and how a task is shown; None for
    a page that was not opened from a list. At most three queries."""
    if not wish.list:
        return None
    wanted, entry, _ = read_wanted(QueryDict(wish.list))
    pairs = [*wanted.pairs, *entry.typed]
    beside = queries.find_neighbours(task_id, queries.TaskFilter(pairs).bound_search())
    query = wish.go_on().write()
    return {"back": f"{reverse('dashboard:tasks')}?{wish.list}"} | {
        name: reverse("dashboard:task", args=[key]) + query if key else ""
        for name, key in beside._asdict().items()
    }
