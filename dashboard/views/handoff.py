"""What units were told of the work before them, and what the next one is told."""

from __future__ import annotations

import difflib
from typing import Any
from uuid import UUID

from django.http import HttpResponseBase
from django.views.decorators.http import require_safe

from dashboard.access import PageRequest, allow
from dashboard.diffs import Line, mark_diff
from dashboard.htmx import render_page
from ledger import queries
from ledger.access import READ
from ledger.errors import NotFound
from ledger.handoff import build_handoff
from ledger.queries.paging import read_seq

SHOWN = 50
CONTEXT = 2
"""Lines around a change."""


@require_safe
@allow(READ)
def show_handoff(request: PageRequest, task_id: UUID) -> HttpResponseBase:
    """One as it was sent (`sent`, its number), else as the next unit gets it; and what is new."""
    row = queries.find_task(task_id)
    queries.require_payload()
    told = queries.list_handoffs(task_id, limit=SHOWN)
    chosen = read_seq(request.GET.get("sent", ""), "sent")
    if chosen:
        text, before = read_sent(told, chosen)
    else:
        text, before = build_handoff(task_id).markdown, told[0]["text"] if told else None
    context = {
        "section": "tasks",
        "task": {"id": row.pk, "name": row.title or row.workflow},
        "text": text,
        "told": told,
        "chosen": chosen,
        "changes": None if before is None else {"lines": compare(before, text), "path": "it"},
    }
    return render_page(request, "dashboard/handoff.html", context)


def read_sent(told: list[dict[str, Any]], chosen: int) -> tuple[str, str | None]:
    """The text of that one and of the one before it. Raises NotFound."""
    texts = [one["text"] for one in told if one["id"] <= chosen]
    if chosen not in {one["id"] for one in told}:
        raise NotFound("handoff", chosen)
    return texts[0], texts[1] if len(texts) > 1 else None


def compare(before: str, after: str) -> tuple[Line, ...]:
    """The lines of the change, none if there is none."""
    old, new = before.splitlines(), after.splitlines()
    lines = list(difflib.unified_diff(old, new, lineterm="", n=CONTEXT))
    return mark_diff("\n".join(lines[2:])) if lines else ()
