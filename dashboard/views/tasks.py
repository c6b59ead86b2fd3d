"""The task list: tabs by status, filters as chips in the URL, rows that stay where they are."""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import re
from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import urlencode
from uuid import UUID

from django.http import HttpResponseBase
from django.views.decorators.http import require_safe

from dashboard.access import PageRequest, allow
from dashboard.htmx import find_unchanged, make_redirect, render_page
from dashboard.polling import skip_unwritten
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
SHOWN = tuple(name for name in queries.FILTERS if name != "q")
KEYS = tuple(pre + name for name in SHOWN for pre in ("", queries.NOT))
MAX_FILTERS = 30
MAX_TEXT = 200
COLUMNS = ("Status", "Task", "Step", "Progress", "Age", "Money", "Attempt", "Worker")

_WORD = re.compile(r'-?[A-Za-z_]+:"[^"]*"|"[^"]*"|\S+')
_TYPED = re.compile(r"(-?)([A-Za-z_]+):(.*)", re.DOTALL)

type Pair = tuple[str, str]
"""A filter: its key, with `not_` before it when it excludes, and its value."""


class Entry(NamedTuple):
    """What stands in the search field."""

    typed: list[Pair]
    """Filters: they go into the address, one by one."""
    rest: str
    """What stays in the field."""
    words: str
    """The text that is searched for."""
    problems: list[str]


@require_safe
@allow(READ)
@skip_unwritten()
def show_tasks(request: PageRequest) -> HttpResponseBase:
    """The list, or for a poll its body alone. A bad filter is left out, and the page says so."""
    entry = read_entry(request.GET.get("q", ""))
    given = [
        (key, text) for key in KEYS for text in dict.fromkeys(request.GET.getlist(key)) if text
    ]
    if entry.typed:
        query = [*given, *entry.typed, *([("q", entry.rest)] if entry.rest else [])]
        return make_redirect(request, f"{request.path}?{urlencode(query)}")
    pairs, wrong = check_filters(given)
    if entry.words:
        pairs.append(("q", entry.words))
    problems, cursor = entry.problems + wrong, request.GET.get("cursor", "")
    now = read_server_time()
    try:
        seen = look_at(pairs, cursor, request.GET.get("first", ""), now)
    except InvalidInput as error:
        problems, cursor = [*problems, str(error)], ""
        seen = look_at(pairs, "", "", now)
    if unchanged := find_unchanged(request, seen.tag):
        return unchanged
    context = load_list(pairs, cursor, seen, now) | {
        "section": "tasks",
        "kept": [pair for pair in pairs if pair[0] != "q"],
        "entry": entry.rest,
        "cursor": cursor,
        "problems": problems,
        "names": SHOWN,
        "tag": seen.tag,
        "chips": list_chips(pairs),
        "may_start": SUBMIT in request.scopes,
        "has_demo": OPERATE in request.scopes and has_demo(),
    }
    return render_page(
        request,
        "dashboard/tasks.html",
        context,
        part="task-list",
        tag=seen.tag,
        status=422 if problems else 200,
    )


def read_entry(text: str) -> Entry:
    """Filters (`lane:night`, `-tag:"two words"`) and text; quotes make text of anything."""
    entry, rest, words = Entry([], "", "", []), [], []
    for word in _WORD.findall(text.replace("\0", "")[:MAX_TEXT]):
        sign, name, value = found.groups() if (found := _TYPED.fullmatch(word)) else ("", "", "")
        value = value.strip('"')
        if name in SHOWN and value:
            entry.typed.append(((queries.NOT if sign else "") + name, value))
            continue
        rest.append(word)
        if name in SHOWN:
            entry.problems.append(f"{word} has no value; write it behind the colon.")
        elif value:
            known = ", ".join(SHOWN)
            entry.problems.append(
                f"{word:.60} is no filter; put it in quotes to search for it, or use {known}."
            )
        else:
            words.append(word.replace('"', ""))
    return entry._replace(rest=" ".join(rest), words=" ".join(filter(None, words)))


def check_filters(given: list[Pair]) -> tuple[list[Pair], list[str]]:
    """(those that can be used, what is wrong with the others)."""
    good, problems = [], []
    for key, value in given[:MAX_FILTERS]:
        try:
            if "\0" in value or len(value) > MAX_TEXT:
                raise InvalidInput(key, f"takes up to {MAX_TEXT} characters of text.")
            queries.match_filter(key, [value])
            good.append((key, value))
        except InvalidInput as error:
            problems.append(f"{say_key(key)}: {error.reason}")
    if len(given) > MAX_FILTERS:
        problems.append(f"{len(given)} filters are given; {MAX_FILTERS} are the most.")
    return good, problems


def say_key(key: str) -> str:
    """A key as it is typed: `lane`, `-lane`."""
    return key.replace(queries.NOT, "-", 1) if key.startswith(queries.NOT) else key


def list_chips(pairs: list[Pair]) -> list[dict[str, str]]:
    """Each filter that is on, with the query of the list without it."""
    return [
        {
            "name": "text" if key == "q" else key.replace("_", " "),
            "value": say_value(key, value),
            "without": write_query(other for other in pairs if other != (key, value)),
        }
        for key, value in pairs
    ]


def say_value(key: str, value: str) -> str:
    """The value of a filter as a person reads it."""
    if key.endswith("stalled"):
        return ""
    return VIEWS[value][0].lower() if key.endswith("status") else value


def write_query(pairs: Iterable[Pair], *more: Pair) -> str:
    """The query of the list so narrowed; text that looks like a filter is quoted again."""
    quoted = [(key, f'"{text}"' if key == "q" and ":" in text else text) for key, text in pairs]
    return urlencode([*quoted, *more])


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """A list at a glance: what was asked for, the counts of its tabs, and its polling tag."""

    wanted: queries.TaskFilter
    first: UUID | None
    counts: dict[str, int]
    tag: str


def look_at(pairs: list[Pair], cursor: str, first: str, now: dt.datetime) -> Seen:
    """What a poll needs to know before anything is read in full. Raises InvalidInput.

    The tag is taken before the rows are read, so what it names is never newer than what is shown.
    Times are left out of it, as the page counts them on itself.
    """
    wanted = queries.TaskFilter(pairs).bound_search()
    top = None if cursor else read_id(first)
    marks = queries.mark_list(wanted, now, first=top, cursor=cursor)
    counts = queries.count_by_status(wanted)
    tag = hashlib.sha256(repr([marks, counts]).encode()).hexdigest()[:16]
    return Seen(wanted, top, counts, tag)


def load_list(pairs: list[Pair], cursor: str, seen: Seen, now: dt.datetime) -> dict[str, Any]:
    """The rows that match, from the row `first` on down when the page already stands at it.

    New tasks are counted, not shown, so that no row moves under the pointer.
    """
    if seen.first:
        page, fresh = queries.list_from(seen.wanted, seen.first)
    else:
        page, fresh = queries.list_tasks(seen.wanted, cursor=cursor), 0
    matching = sum(seen.counts[status] for status in seen.wanted.list_statuses())
    standing = [("cursor", cursor)] if cursor else []
    if page.items:
        standing.append(("first", page.items[0]["id"]))
    return {
        "columns": COLUMNS,
        "rows": [show_row(task, now) | {"tries": say_tries(task)} for task in page.items],
        "tabs": list_tabs(pairs, seen.counts),
        "matching": min(matching, queries.COUNT_CAP),
        "bounded": seen.wanted.searched,
        "fresh": fresh,
        "here": write_query(pairs),
        "older": write_query(pairs, ("cursor", page.next_cursor)) if page.next_cursor else "",
        "poll": write_query(pairs, *standing),
    }


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


def list_tabs(pairs: list[Pair], counts: dict[str, int]) -> list[dict[str, Any]]:
    """A tab for each of VIEWS: its count is of what it opens, the other filters kept."""
    chosen = [pair for pair in pairs if pair[0] in {"status", queries.NOT + "status"}]
    others = [pair for pair in pairs if pair not in chosen]
    return [
        {
            "label": label,
            "current": chosen == ([("status", name)] if name else []),
            "count": min(sum(counts[status] for status in statuses), queries.COUNT_CAP),
            "query": write_query(others, *([("status", name)] if name else [])),
        }
        for name, (label, statuses) in VIEWS.items()
    ]
