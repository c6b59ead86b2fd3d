"""What somebody may mean by the few letters that they type to go somewhere."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

from django.db.models import Q

from ledger.models import Task
from ledger.queries.fleet import list_live_workers
from ledger.queries.seen import see_tasks

RECENT = 2_000
"""Tasks whose titles are looked at, the newest."""

MIN_ID = 4
"""Letters of an id that name few enough tasks."""


def find_tasks(text: str, limit: int = 6) -> list[dict[str, Any]]:
    """`{id, title, workflow, status}` of tasks whose id begins so, or, of the newest RECENT, whose
    title holds the text; the newest first. One query, by the primary key alone."""
    columns = ("id", "title", "workflow", "status")
    if bounds := _bound_ids(text):
        found = list(see_tasks().filter(pk__range=bounds).order_by("-pk").values(*columns)[:limit])
        if found:
            return found
    recent = Task.objects.order_by("-pk").values("pk")[:RECENT]
    named = Q(title__icontains=text) if text else Q()
    rows = see_tasks().filter(named, pk__in=recent)
    return list(rows.order_by("-pk").values(*columns)[:limit])


def find_workers(text: str, limit: int = 3) -> list[str]:
    """Owners (`host:pid:boot`) of live workers whose host or process begins so."""
    rows = list_live_workers().filter(owner__icontains=text).order_by("owner")
    return list(rows.values_list("owner", flat=True)[:limit])


def _bound_ids(text: str) -> tuple[UUID, UUID] | None:
    digits = text.replace("-", "").casefold()
    if not MIN_ID <= len(digits) <= 32 or not re.fullmatch("[0-9a-f]+", digits):
        return None
    return UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
