"""What an agent said and did: a page, and the part of a task's page that follows it."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpResponseBase
from django.views.decorators.http import require_safe

from dashboard import words
from dashboard.access import PageRequest, allow
from dashboard.htmx import find_unchanged, render_page
from dashboard.transcript import find_circle, show_messages, show_turns
from ledger import states, transcripts
from ledger.access import OPERATE, READ
from ledger.queries.paging import read_seq

PAGE, LAST = 20, 5
"""Turns on the page, and in the panel of a task's page."""


@require_safe
@allow(READ)
def show_transcript(request: PageRequest, task_id: UUID) -> HttpResponseBase:
    """Its turns, the newest first, or those before the unit `before`; with `panel` the last few."""
    row, doing = transcripts.read_doing(task_id)
    before = read_seq(request.GET.get("before", ""), "before")
    tag = ".".join([str(row.revision), *(str(one.key) for one in doing)])
    if unchanged := find_unchanged(request, tag):
        return unchanged
    panel = "panel" in request.GET
    size = LAST if panel else PAGE
    turns = transcripts.list_latest_turns(task_id, before=before, limit=size + 1)
    shown = show_turns(turns[:size])
    look = words.LOOKS[row.status]
    context = {
        "section": "tasks",
        "row": row,
        "task": {"id": row.pk, "name": row.title or row.workflow, "step": row.step_name,
                 "turn": row.turn},
        "turns": shown,
        "circle": None if before or row.status in states.FINISHED else find_circle(shown),
        "before": turns[size - 1]["seq"] if len(turns) > size else 0,
        "after": before,
        "panel": panel,
        "here": "" if panel else request.path,
        "doing": doing,
        "said": [] if before else show_messages(task_id, row.status),
        "steers": OPERATE in request.scopes and row.status in states.UNFINISHED,
        "withdraws": OPERATE in request.scopes and row.status not in states.FINAL,
        "running": row.status == states.RUNNING,
        "look": look,
        "why": row.status_reason,
        "polls": not before and row.status not in states.FINISHED,
        "tag": tag,
    }  # fmt: skip
    return render_page(
        request, "dashboard/transcript.html", context, part="task-transcript", tag=tag
    )
