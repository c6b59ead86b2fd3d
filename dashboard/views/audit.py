"""The audit log: who did what and who was refused, narrowed as asked, on a page or as a file."""

from __future__ import annotations

import csv
import datetime as dt
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.http import Http404, HttpResponseBase, StreamingHttpResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

from dashboard import shown
from dashboard.access import PageRequest, allow
from dashboard.htmx import render_page
from dashboard.preferences import Preferences
from dashboard.templatetags.longwatch import short_id
from dashboard.times import read_typed, tell_stored
from ledger.access import AUDIT
from ledger.auditing import write_entry
from ledger.canonical import dump_json
from ledger.errors import InvalidInput
from ledger.queries.audit import COLUMNS, AuditFilter, list_audit, stream_audit

FILTERS = ("actor", "action", "task", "allowed", "since", "until")
ALLOWED = {"": None, "yes": True, "no": False}
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet would take a cell for, whoever wrote it."""
EXPORTED = {"at": ("at", "at_local", "zone")}
"""Columns of a log that are more than one in an export."""


@require_safe
@allow(AUDIT)
def show_audit(request: PageRequest) -> HttpResponseBase:
    """The page. A bad filter is answered on it."""
    given = {name: request.GET[name].strip() for name in FILTERS if request.GET.get(name)}
    problem = ""
    try:
        page = list_audit(read_filter(given), cursor=request.GET.get("cursor", ""))
    except InvalidInput as error:
        problem = str(error)
        page = list_audit(AuditFilter())
    called = shown.name_actors({row["actor"] for row in page.items})
    rows = [
        row
        | {
            "by": called[row["actor"]],
            "changes": list_changes(row),
            "about": find_place(row["target"]),
            "cause": find_place(row["request_id"] or ""),
        }
        for row in page.items
    ]
    context: dict[str, Any] = {
        "section": "audit",
        "rows": rows,
        "given": given,
        "problem": problem,
        "here": urlencode(given),
        "older": urlencode(given | {"cursor": page.next_cursor}) if page.next_cursor else "",
        "later": bool(request.GET.get("cursor")),
    }
    status = 422 if problem else 200
    return render_page(request, "dashboard/audit.html", context, status=status)


@require_safe
@allow(AUDIT)
def export_audit(request: PageRequest, kind: str) -> HttpResponseBase:
    """All that matches as `csv` or `json`, streamed; on record itself."""
    if kind not in {"csv", "json"}:
        raise Http404(kind)
    given = {name: request.GET[name].strip() for name in FILTERS if request.GET.get(name)}
    rows = add_local_times(stream_audit(read_filter(given)), request.preferences)
    write_entry(request.actor, "export_audit", f"audit.{kind}", after=given)
    lines, media = (write_csv(rows), "text/csv") if kind == "csv" else (
        write_json(rows), "application/json"
    )  # fmt: skip
    response = StreamingHttpResponse(lines, content_type=f"{media}; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="audit.{kind}"'
    return response


def add_local_times(
    rows: Iterator[dict[str, Any]], preferences: Preferences
) -> Iterator[dict[str, Any]]:
    """The rows with their time as the person reads it beside the one in UTC."""
    zone, name = preferences.tzinfo, preferences.zone_name
    for row in rows:
        local = row["at"].astimezone(zone).isoformat()
        yield {"at": row["at"].astimezone(dt.UTC), "at_local": local, "zone": name} | {
            key: value for key, value in row.items() if key != "at"
        }


def read_filter(given: dict[str, str]) -> AuditFilter:
    """What was asked for. Raises InvalidInput naming the field."""
    if given.get("allowed", "") not in ALLOWED:
        raise InvalidInput("allowed", "takes yes or no.")
    task = given.get("task", "")
    try:
        task_id = UUID(task) if task else None
    except ValueError:
        raise InvalidInput("task", f"is {task!r:.60}; it takes a task's id.") from None
    return AuditFilter(
        given.get("actor", "").replace("\0", ""), given.get("action", "").replace("\0", ""),
        task_id, ALLOWED[given.get("allowed", "")],
        read_moment("since", given.get("since", "")), read_moment("until", given.get("until", "")),
    )  # fmt: skip


def read_moment(name: str, text: str) -> dt.datetime | None:
    """A time as a browser's field gives it (in the person's zone, as the pages show it), or with an
    offset."""
    if not text:
        return None
    try:
        return read_typed(text)
    except ValueError:
        raise InvalidInput(name, f"is {text!r:.60}; write 2026-01-31T12:00.") from None


def find_place(named: str) -> tuple[str, str]:
    """(what it is called, the page of a bulk operation) of a target or a request's id."""
    kind, _, rest = named.partition(":")
    try:
        identity = UUID(rest)
    except ValueError:
        return named, ""
    page = reverse("dashboard:bulk", args=[identity]) if kind == "bulk" else ""
    return f"{kind} {short_id(identity)}", page


def list_changes(row: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(name, before, after) of what an entry holds, as text."""
    before, after = (
        value if isinstance(value, dict) else {"": value} if value is not None else {}
        for value in (row["before"], row["after"])
    )
    names = list(dict.fromkeys([*before, *after]))
    return [(name, say_value(before.get(name)), say_value(after.get(name))) for name in names]


def say_value(value: Any) -> str:
    """A stored value in one line, cut."""
    if value is None:
        return ""
    text = tell_stored(value)
    text = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:300]}…"


def write_json(rows: Iterator[dict[str, Any]]) -> Iterator[str]:
    """One array, an entry a line."""
    yield "["
    for number, row in enumerate(rows):
        shown_row = row | {"at": row["at"].isoformat()}
        yield ("\n" if number == 0 else ",\n") + dump_json(shown_row, "entry")
    yield "\n]\n"


class Line:
    """A file for csv.writer that hands back what is written."""

    def write(self, text: str) -> str:
        """The line."""
        return text


def write_csv(rows: Iterator[dict[str, Any]]) -> Iterator[str]:
    """A line an entry; values of before and after as JSON."""
    writer = csv.writer(Line())
    columns = [one for name in COLUMNS for one in EXPORTED.get(name, (name,))]
    yield writer.writerow(columns)
    for row in rows:
        yield writer.writerow(write_cell(row[name]) for name in columns)


def write_cell(value: Any) -> str:
    """A cell that no spreadsheet takes for a formula."""
    if value is None:
        return ""
    if isinstance(value, dt.datetime):
        return value.isoformat()
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"'{text}" if text.startswith(FORMULA) else text
