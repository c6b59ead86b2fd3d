"""The task list at the root: an attention line, tabs by status, a filter, rows that stay put."""

from __future__ import annotations

import hashlib
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.http import HttpResponseBase
from django.views.decorators.http import require_safe

from dashboard.access import PageRequest, allow
from dashboard.htmx import find_unchanged, render_page
from dashboard.shown import show_row
from dashboard.templatetags.longwatch import read_server_time
from ledger import queries, states
from ledger.access import READ
from ledger.errors import InvalidInput

VIEWS: dict[str, tuple[str, frozenset[str]]] = {
    "": ("All", frozenset(states.STATUSES)),
    "unfinished": ("Unfinished", states.UNFINISHED),
    states.RUNNING: ("Running", frozenset({states.RUNNING})),
    states.QUEUED: ("Queued", frozenset({states.QUEUED})),
    states.WAITING: ("Waiting", frozenset({states.WAITING})),
    states.SCHEDULED: ("Scheduled", frozenset({states.SCHEDULED})),
    states.PAUSED: ("Paused", frozenset({states.PAUSED})),
    states.DEAD: ("Gave up", frozenset({states.DEAD})),
    states.FAILED: ("Failed", frozenset({states.FAILED})),
    states.COMPLETED: ("Completed", frozenset({states.COMPLETED})),
    states.CANCELLED: ("Cancelled", frozenset({states.CANCELLED})),
}
FIELDS = ("status", "q", "workflow", "lane", "tag", "cursor")
COLUMNS = ("Status", "Task", "Step", "Progress", "Age", "Money", "Tries", "Worker")


@require_safe
@allow(READ)
def show_tasks(request: PageRequest) -> HttpResponseBase:
    """The list, or for a poll its body alone. A bad filter is answered on the page."""
    given = {name: request.GET[name] for name in FIELDS if request.GET.get(name)}
    problem = ""
    try:
        context = load_list(given, request.GET.get("first", ""))
    except InvalidInput as error:
        problem, given = str(error), {}
        context = load_list(given, "")
    tag = make_tag(context)
    context |= {"section": "tasks", "given": given, "problem": problem, "tag": tag}
    return find_unchanged(request, tag) or render_page(
        request,
        "dashboard/tasks.html",
        context,
        part="task-list",
        tag=tag,
        status=422 if problem else 200,
    )


def load_list(given: dict[str, str], first: str) -> dict[str, Any]:
    """The rows that match, from the row `first` on down when the page already stands at it.

    New tasks are counted, not shown, so that no row moves under the pointer. Raises InvalidInput.
    """
    view = given.get("status", "")
    if view not in VIEWS:
        raise InvalidInput("status", f"is {view!r:.60}; choose one of the tabs.")
    wanted = queries.TaskFilter(
        status=sorted(VIEWS[view][1]) if view else (),
        workflow=given.get("workflow", ""),
        lane=given.get("lane", ""),
        tag=given.get("tag", ""),
        q=given.get("q", "")[:200],
    )
    now = read_server_time()
    top = read_id(first)
    if top and not given.get("cursor"):
        page, fresh = queries.list_from(wanted, top)
    else:
        page, fresh = queries.list_tasks(wanted, cursor=given.get("cursor", "")), 0
    counts = queries.count_by_status()
    kept = {name: value for name, value in given.items() if name != "cursor"}
    return {
        "columns": COLUMNS,
        "rows": [show_row(task, now) for task in page.items],
        "tabs": [_show_tab(name, view, counts, kept) for name in VIEWS],
        "fresh": fresh,
        "dead": counts[states.DEAD],
        "here": urlencode(kept),
        "older": urlencode(kept | {"cursor": page.next_cursor}) if page.next_cursor else "",
        "poll": urlencode(given | ({"first": page.items[0]["id"]} if page.items else {})),
    }


def make_tag(context: dict[str, Any]) -> str:
    """Names what the list shows; times are left out, as the page counts them on itself."""
    seen = [
        [
            (row["id"], row["revision"], row["look"], row["progress_report"])
            for row in context["rows"]
        ],
        [tab["count"] for tab in context["tabs"]],
        context["fresh"],
        context["older"],
    ]
    return hashlib.sha256(repr(seen).encode()).hexdigest()[:16]


def read_id(text: str) -> UUID | None:
    """The id in `text`, or None: a page polls with what it once was given."""
    try:
        return UUID(text)
    except ValueError:
        return None


def _show_tab(name: str, view: str, counts: dict[str, int], kept: dict[str, str]) -> dict[str, Any]:
    label, statuses = VIEWS[name]
    query = {key: value for key, value in kept.items() if key != "status"}
    return {
        "label": label,
        "current": name == view,
        "count": min(sum(counts[status] for status in statuses), queries.COUNT_CAP),
        "query": urlencode(query | ({"status": name} if name else {})),
    }
