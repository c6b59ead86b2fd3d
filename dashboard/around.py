"""The list that a task's page was opened from: the way back, and the tasks beside it there."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs
from uuid import UUID

from django.urls import reverse

from dashboard.views.tasks import KEYS, check_filters, read_entry
from dashboard.wish import Wish
from ledger import queries


def find_around(wish: Wish, task_id: UUID) -> dict[str, Any] | None:
    """`{back, newer, older}` as addresses, which keep the list and how a task is shown; None for
    a page that was not opened from a list. At most three queries."""
    if not wish.list:
        return None
    given = parse_qs(wish.list)
    entry = read_entry(given.get("q", [""])[-1])
    pairs, _ = check_filters(
        [*((key, text) for key in KEYS for text in dict.fromkeys(given.get(key, ()))), *entry.typed]
    )
    if entry.words:
        pairs.append(("q", entry.words))
    beside = queries.find_neighbours(task_id, queries.TaskFilter(pairs).bound_search())
    query = wish.go_on().write()
    return {"back": f"{reverse('dashboard:tasks')}?{wish.list}"} | {
        name: reverse("dashboard:task", args=[key]) + query if key else ""
        for name, key in beside._asdict().items()
    }
