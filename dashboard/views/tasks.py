"""The task list: saved views, filters as chips in the address, rows that stay where they are."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import datetime as dt
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from django.http import HttpResponseBase, JsonResponse
from django.views.decorators.http import require_safe

from dashboard.access import PageRequest, allow
from dashboard.actions import ACTIONS
from dashboard.htmx import find_unchanged, make_redirect, render_page, wants_part
from dashboard.listing import (
    COLUMNS,
    HELP,
    KEYS,
    NUMBERS,
    SHOWN,
    SORTS,
    USUAL,
    VIEWS,
    Entry,
    Wanted,
    check_filters,
    list_chips,
    read_entry,
    read_wanted,
)
from dashboard.polling import skip_unwritten
from dashboard.rests import estimate_rests
from dashboard.saved import list_tabs
from dashboard.shown import show_row
from dashboard.templatetags.longwatch import capped as say_capped
from dashboard.templatetags.longwatch import read_server_time
from ledger import queries, registry, states
from ledger.access import OPERATE, READ, SUBMIT
from ledger.errors import InvalidInput, UnknownStep, UnknownWorkflow
from ledger.queries import lists
from ledger.queries.lists import Standing
from ledger.transitions.deleting import has_demo

__all__ = ["KEYS", "check_filters", "list_chips", "list_words", "read_entry", "show_tasks"]

DEEDS = (
    ("pause", "Pause", "pause"), ("resume", "Resume", "right"), ("retry", "Retry now…", "retry"),
    ("restart", "Restart from step…", "undo"), ("tag", "Tag…", "flag"),
    ("priority", "Priority…", "up"), ("cancel", "Cancel…", "x"),
)  # fmt: skip
"""What is done to many at once: name, label, glyph of its button."""

EDGES = {name: ACTIONS[name if name in ACTIONS else "change"].run.__name__ for name, _, _ in DEEDS}
"""Each as the state diagram knows it; a tag or a priority is a change."""


@require_safe
@allow(READ)
@skip_unwritten()
def show_tasks(request: PageRequest) -> HttpResponseBase:
    """The list, or for a poll its body alone. A bad filter is left out, and the page says so."""
    wanted, entry, problems = read_wanted(request.GET)
    if entry.typed:
        pairs = [*(pair for pair in wanted.pairs if pair[0] != "q"), *entry.typed]
        rest = [("q", entry.rest)] if entry.rest else []
        query = dataclasses.replace(wanted, pairs=pairs).write(*rest)
        return make_redirect(request, f"{request.path}?{query}")
    now, cursor = read_server_time(), request.GET.get("cursor", "")
    try:
        seen = look_at(wanted, now, cursor, request.GET)
    except InvalidInput as error:
        problems, cursor = [*problems, str(error)], ""
        seen = look_at(wanted, now)
    if unchanged := find_unchanged(request, seen.tag):
        return unchanged
    context = load_list(wanted, seen, cursor, now) | {
        "section": "tasks",
        "problems": problems,
        "tag": seen.tag,
        "may_bulk": OPERATE in request.scopes,
        "may_start": SUBMIT in request.scopes,
        "has_demo": not (wanted.pairs or cursor) and OPERATE in request.scopes and has_demo(),
    }
    if not wants_part(request):
        context |= load_frame(request, wanted, entry, empty=not context["rows"])
    return render_page(
        request,
        "dashboard/tasks.html",
        context,
        part="task-list",
        tag=seen.tag,
        status=422 if problems else 200,
    )


@require_safe
@allow(READ)
def list_words(request: PageRequest) -> HttpResponseBase:
    """What the filter's field suggests: each filter with the values that the caller knows."""
    words = lists.list_words()
    fixed = {"status": [name for name in VIEWS if name], "stalled": ["yes"], "attention": ["yes"]}
    times = ["today", "<1h", "<24h", ">7d"]
    fixed |= dict.fromkeys(("created", "started", "finished"), times) | {"owner": ["me"]}
    return JsonResponse({name: fixed.get(name, words.get(name, [])) for name in SHOWN})


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """A list at a glance: what was looked for, its rows, how many are new, the counts by status,
    and the polling tag. `kept` when the rows are those of a page that stands, `more` when that has
    a page behind it."""

    asked: queries.TaskFilter
    rows: Standing
    first: UUID | None
    fresh: int
    counts: dict[str, int]
    tag: str
    kept: bool
    more: bool


def look_at(
    wanted: Wanted, now: dt.datetime, cursor: str = "", given: Mapping[str, str] | None = None
) -> Seen:
    """What a poll needs to know before anything is read in full. Raises InvalidInput.

    The tag is taken before the rows are read, so what it names is never newer than what is shown.
    Times are left out of it, as the page counts them on itself. `given`: the rows that stand.
    """
    given = given or {}
    ids, first = read_ids(given.get("rows", "")), read_ids(given.get("first", ""))
    asked = queries.TaskFilter(wanted.pairs).bound_search()
    beats = "lease" in wanted.list_columns()
    if ids:
        rows = lists.keep_page(asked, ids, now, beats=beats)
    else:
        rows = lists.open_page(asked, wanted.sort, now, cursor=cursor, beats=beats)
    # A page that opens can do without: its first poll asks.
    fresh = lists.count_fresh(asked, wanted.sort, first[0]) if first and ids else 0
    if not first and not cursor:
        first = [row.pk for row in rows.tasks[:1]]
    counts = queries.count_by_status(asked)
    tag = hashlib.sha256(repr([rows.marks, fresh, counts]).encode()).hexdigest()[:16]
    more = given.get("more") == "1"
    return Seen(asked, rows, first[0] if first else None, fresh, counts, tag, bool(ids), more)


def load_list(wanted: Wanted, seen: Seen, cursor: str, now: dt.datetime) -> dict[str, Any]:
    """The part that is polled. Once shown, its rows stay and stand where they are: new ones are
    counted, and one that no longer matches is told apart until the list is loaded anew."""
    rows, older = seen.rows, seen.rows.next_cursor
    if seen.kept:
        rows = lists.read_page(rows)
        older = str(rows.tasks[-1].pk) if seen.more and rows.tasks else None
    rests = estimate_rests(rows.tasks, now) if "progress" in wanted.list_columns() else {}
    matching = sum(seen.counts[status] for status in seen.asked.list_statuses())
    top = [("first", write_ids([seen.first]))] if seen.first else []
    stand = [("rows", write_ids([row.pk for row in rows.tasks]))] if rows.tasks else []
    stand += [("more", "1")] if older else []
    placed = [("cursor", cursor)] if cursor else []
    here = wanted.write(*placed)
    return {
        "columns": [
            {"name": name, "label": COLUMNS[name], "css": "n" if name in NUMBERS else ""}
            for name in wanted.list_columns()
        ],
        "shown": wanted.list_columns(),
        "rows": [
            show_row(task, now)
            | {"tries": say_tries(task), "left": row.pk in rows.left, "can": list_possible(row)}
            | {"rest": rests.get(row.pk, "")}
            for task, row in zip(rows.show(), rows.tasks, strict=True)
        ],
        "facets": list_facets(wanted, seen.counts),
        "matching": min(matching, queries.COUNT_CAP),
        "standing": len(rows.tasks) - len(rows.left),
        "left": len(rows.left),
        "bounded": seen.asked.searched,
        "fresh": seen.fresh,
        "here": wanted.write(),
        "from_here": here,
        "cursor": cursor,
        "older": wanted.write(("cursor", older), *top) if older else "",
        "poll": wanted.write(*placed, *top, *stand),
        "chips": list_chips(wanted),
        "can_all": count_possible(seen.asked, seen.counts),
    }


def load_frame(
    request: PageRequest, wanted: Wanted, entry: Entry, *, empty: bool
) -> dict[str, Any]:
    """What stands around it and is never polled with it."""
    kept = [pair for pair in wanted.pairs if pair[0] != "q"]
    return {
        "kept": kept,
        "entry": entry.rest,
        "help": HELP,
        "names": SHOWN,
        "menu_open": request.GET.get("menu") == "columns",
        "wanted": wanted,
        "deeds": DEEDS,
        "bulk_fields": wanted.list_fields(request.get_full_path()),
        "clear": wanted.write(pairs=[], view=""),
        "sorts": [
            {"label": SORTS[name], "query": wanted.write(sort=name), "current": name == wanted.sort}
            for name in wanted.list_sorts()
        ],
        "sort_label": SORTS[wanted.sort],
        "picks": list_picks(wanted),
        "usual": write_columns(wanted, USUAL),
    } | list_tabs(request, wanted, nearest=empty)


def list_picks(wanted: Wanted) -> list[dict[str, Any]]:
    """Every column, those that are shown first and in their order; with the order that its two
    buttons lead to."""
    shown = list(wanted.list_columns())
    picks = []
    for name in (*shown, *(name for name in COLUMNS if name not in shown)):
        place = shown.index(name) if name in shown else -1
        moved = {}
        for step, to in (("up", place - 1), ("down", place + 1)):
            if place >= 0 and 0 <= to < len(shown):
                order = [one for one in shown if one != name]
                order.insert(to, name)
                moved[step] = write_columns(wanted, order)
        other = [one for one in shown if one != name] if place >= 0 else [*shown, name]
        picks.append(
            {"name": name, "label": COLUMNS[name], "on": place >= 0, "fixed": name == "task",
             "toggle": write_columns(wanted, other), **moved}
        )  # fmt: skip
    return picks


def write_columns(wanted: Wanted, order: Sequence[str]) -> str:
    """The query of the list with these columns, the menu open."""
    columns = () if tuple(order) == USUAL else tuple(order)
    return wanted.write(("menu", "columns"), columns=columns)


def list_possible(row: Any) -> str:
    """What of DEEDS can be done to a row now."""
    return " ".join(
        name
        for name, _, _ in DEEDS
        if not ACTIONS[name if name in ACTIONS else "change"].find_obstacle(row)
    )


def count_possible(asked: queries.TaskFilter, counts: dict[str, int]) -> str:
    """Of all that match: how many are in a status in which it can be done, `name=count` for each
    of DEEDS."""
    found = []
    for name, edge in EDGES.items():
        some = sum(
            counts[status]
            for status in asked.list_statuses()
            if any(states.allow_edge(edge, status, target) for target in states.STATUSES)
        )
        found.append(f"{name}={say_capped(min(some, queries.COUNT_CAP))}")
    return " ".join(found)


def read_ids(text: str) -> list[UUID]:
    """The ids in `text` as of `write_ids`, none of anything else: a page polls with what it was
    given."""
    try:
        packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        return []
    if len(packed) % 16 or len(packed) > 16 * lists.MAX_STANDING:
        return []
    return [UUID(bytes=packed[at : at + 16]) for at in range(0, len(packed), 16)]


def write_ids(ids: Sequence[UUID]) -> str:
    """Many ids in little room."""
    return base64.urlsafe_b64encode(b"".join(one.bytes for one in ids)).decode().rstrip("=")


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


def list_facets(wanted: Wanted, counts: dict[str, int]) -> list[dict[str, Any]]:
    """One for each of VIEWS: its count is of what it opens, the other filters kept."""
    chosen = [pair for pair in wanted.pairs if pair[0] in {"status", queries.NOT + "status"}]
    others = [pair for pair in wanted.pairs if pair not in chosen]
    facets = []
    for name, (label, statuses) in VIEWS.items():
        pairs = [*others, ("status", name)] if name else others
        sort = wanted.sort if wanted.sort != lists.ENDED else lists.NEWEST
        facets.append(
            {
                "label": label,
                "current": chosen == ([("status", name)] if name else []),
                "count": min(sum(counts[status] for status in statuses), queries.COUNT_CAP),
                "query": wanted.write(pairs=pairs, sort=sort),
            }
        )
    return facets
