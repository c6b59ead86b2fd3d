"""The whole record of a task, page by page, and one unit in full."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import HttpResponseBase
from django.views.decorators.http import require_safe

from dashboard import shown
from dashboard.access import PageRequest, allow
from dashboard.htmx import render_page
from dashboard.views.task import actor_text
from ledger import queries
from ledger.access import READ
from ledger.queries.paging import read_seq

PAGE = 100


@require_safe
@allow(READ)
def show_outputs(request: PageRequest, task_id: UUID) -> HttpResponseBase:
    """The units, newest first, superseded ones marked."""
    before = read_seq(request.GET.get("before", ""))
    rows = queries.list_latest_outputs(task_id, before=before, limit=PAGE)
    return render_record(request, task_id, {"outputs": rows, "what": "Units"}, rows)


@require_safe
@allow(READ)
def show_events(request: PageRequest, task_id: UUID) -> HttpResponseBase:
    """The events, newest first."""
    before = read_seq(request.GET.get("before", ""))
    rows = queries.list_latest_events(task_id, before=before, limit=PAGE)
    called = shown.name_actors({actor_text(row["actor"]) for row in rows})
    for row in rows:
        row["by"] = called[actor_text(row["actor"])]
        row["summary"] = shown.summarise_data(row["data"])
    return render_record(request, task_id, {"events": rows, "what": "Events"}, rows)


@require_safe
@allow(READ)
def show_output(request: PageRequest, task_id: UUID, seq: int) -> HttpResponseBase:
    """One unit: its output, where and when it ran, what it cost, the end of its log."""
    unit = queries.find_output(task_id, seq)
    return render_record(request, task_id, {"unit": unit, "what": f"Unit {seq}"}, [])


def render_record(
    request: PageRequest, task_id: UUID, context: dict[str, Any], rows: list[dict[str, Any]]
) -> HttpResponseBase:
    """The page; `before` continues a list that fills it."""
    task = queries.show_task(task_id)
    more = {
        "task": task | {"name": task["title"] or task["workflow"]},
        "section": "tasks",
        "before": rows[-1]["seq"] if len(rows) == PAGE else None,
    }
    return render_page(request, "dashboard/record.html", context | more)
