"""The task list: tabs by status, filters as chips in the URL, rows that stay where they are."""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import re
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.http import HttpResponseBase
from django.views.decorators.http import require_safe

from dashboard.access import PageRequest, allow
from dashboard.htmx import find_unchanged, make_redirect, render_page
from dashboard.shown import show_row
from dashboard.templatetags.longwatch import read_server_time
from ledger import queries, registry, states
from ledger.access import OPERATE, READ, SUBMIT
from ledger.errors import InvalidInput, UnknownStep, UnknownWorkflow
from ledger.transitions.deleting import has_demo

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
FILTERS = ("status", "workflow", "lane", "tag", "stalled", "parent", "q")
FIELDS = (*FILTERS, "cursor")
COLUMNS = ("Status", "Task", "Step", "Progress", "Age", "Money", "Attempt", "Worker")

_TYPED = re.compile(r'(?<!\S)(status|workflow|lane|tag|stalled|parent):("[^"]*"|\S*)')


@require_safe
@allow(READ)
def show_tasks(request: PageRequest) -> HttpResponseBase:
    """The list, or for a poll its body alone. A bad filter is answered on the page."""
    given = {name: request.GET[name] for name in FIELDS if request.GET.get(name)}
    typed = read_typed(given.get("q", ""))
    if typed != {"q": given.get("q", "")}:
        kept = {name: text for name, text in given.items() if name not in {"q", "cursor"}}
        return make_redirect(request, f"{request.path}?{urlencode(kept | typed)}")
    problem, now = "", read_server_time()
    try:
        seen = look_at(given, request.GET.get("first", ""), now)
    except InvalidInput as error:
        problem, given = str(error), {}
        seen = look_at(given, "", now)
    if unchanged := find_unchanged(request, seen.tag):
        return unchanged
    context = load_list(given, seen, now) | {
        "section": "tasks",
        "given": given,
        "problem": problem,
        "tag": seen.tag,
        "chips": list_chips(given),
        "may_start": SUBMIT in request.scopes,
        "has_demo": OPERATE in request.scopes and has_demo(),
    }
    return render_page(
        request,
        "dashboard/tasks.html",
        context,
        part="task-list",
        tag=seen.tag,
        status=422 if problem else 200,
    )


def read_typed(text: str) -> dict[str, str]:
    """The filters that were typed into the search field (`lane:night`), and the rest as `q`."""
    found = {name: value.strip('"') for name, value in _TYPED.findall(text)}
    if not any(found.values()):
        return {"q": text}
    rest = " ".join(_TYPED.sub(" ", text).split())
    return {name: value for name, value in found.items() if value} | ({"q": rest} if rest else {})


def list_chips(given: dict[str, str]) -> list[dict[str, str]]:
    """Each filter that is on, with the query of the list without it."""
    names = [name for name in FILTERS if name in given]
    kept = {name: given[name] for name in names}
    return [
        {
            "name": "text" if name == "q" else name,
            "value": "" if name == "stalled" else say_filter(name, given[name]),
            "without": urlencode({key: text for key, text in kept.items() if key != name}),
        }
        for name in names
    ]


def say_filter(name: str, value: str) -> str:
    """The value of a filter as a person reads it."""
    return VIEWS[value][0].lower() if name == "status" else value


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """A list at a glance: what was asked for, the counts of its tabs, and its polling tag."""

    wanted: queries.TaskFilter
    first: UUID | None
    counts: dict[str, int]
    tag: str


def look_at(given: dict[str, str], first: str, now: dt.datetime) -> Seen:
    """What a poll needs to know before anything is read in full. Raises InvalidInput.

    The tag is taken before the rows are read, so what it names is never newer than what is shown.
    Times are left out of it, as the page counts them on itself.
    """
    wanted, cursor = read_filter(given), given.get("cursor", "")
    top = None if cursor else read_id(first)
    marks = queries.mark_list(wanted, now, first=top, cursor=cursor)
    counts = queries.count_by_status(wanted)
    tag = hashlib.sha256(repr([marks, counts]).encode()).hexdigest()[:16]
    return Seen(wanted, top, counts, tag)


def read_filter(given: dict[str, str]) -> queries.TaskFilter:
    """What the list is narrowed to. Raises InvalidInput."""
    view = given.get("status", "")
    if view not in VIEWS:
        raise InvalidInput("status", f"is {view!r:.60}; choose one of the tabs.")
    return queries.TaskFilter(
        status=sorted(VIEWS[view][1]) if view else (),
        workflow=given.get("workflow", ""),
        lane=given.get("lane", ""),
        tag=given.get("tag", ""),
        q=given.get("q", "")[:200],
        stalled="stalled" in given,
        parent=_read_parent(given.get("parent", "")),
    )


def load_list(given: dict[str, str], seen: Seen, now: dt.datetime) -> dict[str, Any]:
    """The rows that match, from the row `first` on down when the page already stands at it.

    New tasks are counted, not shown, so that no row moves under the pointer.
    """
    if seen.first:
        page, fresh = queries.list_from(seen.wanted, seen.first)
    else:
        page, fresh = queries.list_tasks(seen.wanted, cursor=given.get("cursor", "")), 0
    kept = {name: value for name, value in given.items() if name != "cursor"}
    tabs = list_tabs(given.get("status", ""), seen.counts, kept)
    return {
        "columns": COLUMNS,
        "rows": [show_row(task, now) | {"tries": say_tries(task)} for task in page.items],
        "tabs": tabs,
        "matching": next(tab["count"] for tab in tabs if tab["current"]),
        "fresh": fresh,
        "here": urlencode(kept),
        "older": urlencode(kept | {"cursor": page.next_cursor}) if page.next_cursor else "",
        "poll": urlencode(given | ({"first": page.items[0]["id"]} if page.items else {})),
    }


def _read_parent(text: str) -> UUID | None:
    if text and read_id(text) is None:
        raise InvalidInput("parent", f"is {text!r:.60}; it takes a task's id.")
    return read_id(text)


def say_tries(task: dict[str, Any]) -> str:
    """'2 of 4': which try of the unit runs or is next, where its workflow is known here."""
    if task["status"] in states.FINISHED or not task["started_at"]:
        return ""
    number = str(task["attempts"] + 1)
    try:
        workflow = registry.get(task["workflow"], task["workflow_version"])
        step = workflow.steps[workflow.index_of(task["step"]["name"])]
    except (UnknownWorkflow, UnknownStep):
        return number
    return f"{number} of {step.retries + 1}"


def read_id(text: str) -> UUID | None:
    """The id in `text`, or None: a page polls with what it once was given."""
    try:
        return UUID(text)
    except ValueError:
        return None


def list_tabs(view: str, counts: dict[str, int], kept: dict[str, str]) -> list[dict[str, Any]]:
    """A tab for each of VIEWS: its count is of what it opens, the other filters kept."""
    others = {key: value for key, value in kept.items() if key != "status"}
    return [
        {
            "label": label,
            "current": name == view,
            "count": min(sum(counts[status] for status in statuses), queries.COUNT_CAP),
            "query": urlencode(others | ({"status": name} if name else {})),
        }
        for name, (label, statuses) in VIEWS.items()
    ]
