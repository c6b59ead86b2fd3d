"""The chosen tasks as a file: streamed, times in the person's zone and in UTC."""

from __future__ import annotations

import csv
import datetime as dt
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from django.http import Http404, HttpResponseBase, StreamingHttpResponse
from django.views.decorators.http import require_safe

from dashboard.access import PageRequest, allow
from dashboard.bulk import read_chosen
from dashboard.preferences import read_current
from dashboard.views.audit import Line, write_cell
from ledger.access import READ
from ledger.auditing import write_entry
from ledger.bulk.selecting import list_keys
from ledger.calls import answer_call, read_call
from ledger.canonical import dump_json
from ledger.queries import show_tasks

CHUNK = 200
TIMES = ("created_at", "started_at", "updated_at", "finished_at")
PLAIN = (
    "id", "title", "workflow", "workflow_version", "lane", "priority", "tags", "submitted_by",
    "status", "status_reason", "attempts", "reclaims", "round", "parent",
)  # fmt: skip


@require_safe
@allow(READ)
def export_tasks(request: PageRequest, kind: str) -> HttpResponseBase:
    """All that are chosen as `csv` or `json`; on record."""
    if kind not in {"csv", "json"}:
        raise Http404(kind)
    selection = read_chosen(request.GET).select()
    keys = list_keys(selection)
    after = {**selection.describe(), "tasks": len(keys)}
    write_entry(request.actor, "export_tasks", f"tasks.{kind}", after=after)
    rows = read_rows(keys, read_current().tzinfo)
    lines, media = (write_csv(rows), "text/csv") if kind == "csv" else (
        write_json(rows), "application/json"
    )  # fmt: skip
    response = StreamingHttpResponse(lines, content_type=f"{media}; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="tasks.{kind}"'
    return response


def read_rows(keys: list[UUID], zone: dt.tzinfo) -> Iterator[dict[str, Any]]:
    """Read while they are sent, seen as by who asked: by then the request is answered."""
    call = read_call()

    def read() -> Iterator[dict[str, Any]]:
        for start in range(0, len(keys), CHUNK):
            with answer_call(call):
                found = show_tasks(keys[start : start + CHUNK])
            yield from (flatten_task(task, zone) for task in found)

    return read()


def flatten_task(task: dict[str, Any], zone: dt.tzinfo) -> dict[str, Any]:
    """A brief Task JSON as one row."""
    row = {name: task[name] for name in PLAIN}
    row |= {"step": task["step"]["name"], "turn": task["step"]["turn"]}
    error = task["error"] or {}
    row |= {"error_type": error.get("type"), "error_message": error.get("message")}
    row |= {f"used_{name}": value for name, value in task["used"].items()}
    row |= {f"limit_{name}": value for name, value in task["limits"].items()}
    for name in TIMES:
        row[f"{name}_utc"] = write_time(task[name], dt.UTC)
        row[f"{name}_local"] = write_time(task[name], zone)
    return row


def write_time(moment: dt.datetime | None, zone: dt.tzinfo) -> str | None:
    """ISO 8601 with the offset, to the second."""
    return moment.astimezone(zone).isoformat(timespec="seconds") if moment else None


def write_json(rows: Iterator[dict[str, Any]]) -> Iterator[str]:
    """One array, a task a line."""
    yield "["
    for number, row in enumerate(rows):
        yield ("\n" if number == 0 else ",\n") + dump_json(row, "task")
    yield "\n]\n"


def write_csv(rows: Iterator[dict[str, Any]]) -> Iterator[str]:
    """A line a task; the names of the columns first, also over no task."""
    writer = csv.writer(Line())
    for number, row in enumerate(rows):
        if number == 0:
            yield writer.writerow(row)
        yield writer.writerow(write_cell(value) for value in row.values())
