"""What units were told of the work before them, and what the next one is told."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpResponseBase
from django.views.decorators.http import require_safe

from dashboard.access import PageRequest, allow
from dashboard.diffs import compare_texts
from dashboard.htmx import render_page
from ledger import queries
from ledger.access import READ
from ledger.handoff import build_handoff, count_tokens
from ledger.queries.paging import read_seq

SHOWN = 50


@require_safe
@allow(READ)
def show_handoff(request: PageRequest, task_id: UUID) -> HttpResponseBase:
    """One as it was sent (`sent`, its number), else as the next unit gets it; and what is new."""
    row = queries.find_shown(task_id)
    request.waiting_count = row.waiting_count
    queries.require_payload()
    queries.require_family(task_id, row)
    chosen = read_seq(request.GET.get("sent", ""), "sent")
    told = queries.list_handoffs(task_id, limit=SHOWN, before=chosen)
    sent = queries.find_handoff(task_id, chosen) if chosen else None
    text = sent["text"] if sent else build_handoff(task_id, task=row).markdown
    before = next((one["shown"] for one in told if one["shown"]), "")
    context = {
        "section": "tasks",
        "row": row,
        "task": {"id": row.pk, "name": row.title or row.workflow},
        "text": text,
        "tokens": count_tokens(text),
        "sent": sent,
        "told": told,
        "chosen": chosen,
        "changes": {"lines": compare_texts(before, text), "path": "it"}
        if before and text
        else None,
    }
    return render_page(request, "dashboard/handoff.html", context)
