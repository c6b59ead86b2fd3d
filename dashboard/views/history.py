"""The whole record of a task, page by page, and one unit in full."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import HttpResponseBase
from django.views.decorators.http import require_safe

from dashboard import past, shown, words
from dashboard.access import PageRequest, allow
from dashboard.actions import offer_edit
from dashboard.htmx import render_page
from ledger import queries
from ledger.access import OPERATE, READ
from ledger.errors import InvalidInput
from ledger.events import KINDS
from ledger.queries.paging import read_seq

PAGE = 100


@require_safe
@allow(READ)
def show_outputs(request: PageRequest, task_id: UUID) -> HttpResponseBase:
    """The units, newest first, superseded ones marked."""
    before = read_seq(request.GET.get("before", ""))
    rows = name_editors(queries.list_latest_outputs(task_id, before=before, limit=PAGE))
    return render_record(request, task_id, {"outputs": rows, "what": "Units"}, rows)


@require_safe
@allow(READ)
def show_events(request: PageRequest, task_id: UUID) -> HttpResponseBase:
    """The events, newest first, timers too; narrowed by `kind`, and by text (`q`)."""
    kind = request.GET.get("kind", "")
    if kind and kind not in KINDS:
        raise InvalidInput("kind", f"is none; it takes one of {', '.join(sorted(KINDS))}.")
    before = read_seq(request.GET.get("before", ""))
    text = request.GET.get("q", "").replace("\0", "").strip()[:100]
    rows = queries.list_latest_events(task_id, before=before, limit=PAGE, kind=kind, text=text)
    called = shown.name_actors({past.actor_text(row["actor"]) for row in rows})
    events = past.tell_events(rows, called)
    there = queries.list_kinds(task_id)
    kinds = sorted((words.EVENTS[one].label, one) for one in KINDS if one in there)
    context = {"events": events, "what": "Events", "kind": kind, "kinds": kinds, "text": text}
    return render_record(request, task_id, context, rows)


@require_safe
@allow(READ)
def show_output(request: PageRequest, task_id: UUID, seq: int) -> HttpResponseBase:
    """One unit: its output, where and when it ran, what it cost, the end of its log."""
    [unit] = name_editors([queries.find_output(task_id, seq)])
    if unit["edited_by"]:
        unit["reason"] = queries.find_edit_reason(task_id, seq)
    return render_record(request, task_id, {"unit": unit, "what": f"Unit {seq}"}, [])


def name_editors(units: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Output JSONs with `by`, what the person who wrote one in a worker's place is called."""
    called = shown.name_actors({unit["edited_by"] for unit in units if unit["edited_by"]})
    return [unit | {"by": called.get(unit["edited_by"], "")} for unit in units]


def render_record(
    request: PageRequest, task_id: UUID, context: dict[str, Any], rows: list[dict[str, Any]]
) -> HttpResponseBase:
    """The page; `before` continues a list that fills it."""
    task = queries.find_task(task_id)
    unit = context.get("unit") if OPERATE in request.scopes else None
    more = {
        "edits": offer_edit(task, unit) if unit else [],
        "row": task,
        "task": {"id": task.pk, "name": task.title or task.workflow},
        "section": "tasks",
        "before": rows[-1]["seq"] if len(rows) == PAGE else None,
    }
    return render_page(request, "dashboard/record.html", context | more)
