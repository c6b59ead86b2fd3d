"""Saved views as tabs of the task list, each with the count of what it opens."""

from __future__ import annotations

import hashlib
from typing import Any

from dashboard.access import PageRequest
from dashboard.listing import COLUMNS, SORTS, Wanted, check_filters, list_chips
from ledger import queries
from ledger.events import Actor
from ledger.models import SavedView
from ledger.queries.lists import NEWEST
from ledger.queries.views import count_lists, list_views
from ledger.transitions.views import ViewDraft

DEFAULTS: dict[str, Wanted] = {
    "All": Wanted(),
    "Needs attention": Wanted([("attention", "yes")]),
    "Running": Wanted([("status", "running")]),
    "Failed today": Wanted([("status", "failed"), ("status", "dead"), ("finished", "today")]),
    "Mine": Wanted([("owner", "me")]),
}
"""Views that everybody has."""


def read_view(view: SavedView) -> Wanted:
    """The list that a view opens; what a later version no longer knows is left out."""
    pairs, _ = check_filters([(str(key), str(value)) for key, value in view.filters])
    columns = tuple(name for name in view.columns if name in COLUMNS)
    wanted = Wanted(pairs, columns, view=str(view.pk))
    return Wanted(pairs, columns, view.sort, str(view.pk)) if view.sort in SORTS else wanted


def make_draft(wanted: Wanted) -> ViewDraft:
    """What is kept of a list."""
    sort = "" if wanted.sort == NEWEST else wanted.sort
    return ViewDraft(list(wanted.pairs), wanted.columns, sort)


def is_same(one: Wanted, other: Wanted) -> bool:
    """Whether both show the same."""
    return (sorted(one.pairs), one.columns, one.sort) == (
        sorted(other.pairs), other.columns, other.sort,
    )  # fmt: skip


def list_homes(actor: Actor) -> list[tuple[str, str]]:
    """(key, name) of every view that Tasks may open with: those of everybody, and the saved ones
    that the person sees. A name of theirs can be no key, as it may be one of the others."""
    saved = [(str(row.pk), row.name) for row in list_views(actor)]
    return [*((name, name) for name in DEFAULTS if name != "All"), *saved]


def find_home(actor: Actor, key: str) -> Wanted:
    """The list of that view; all tasks for none, and for one that there is no more."""
    if key in DEFAULTS or not key:
        return DEFAULTS[key or "All"]
    row = next((row for row in list_views(actor) if str(row.pk) == key), None)
    return Wanted() if row is None else read_view(row)


def list_tabs(request: PageRequest, wanted: Wanted, *, nearest: bool = False) -> dict[str, Any]:
    """The default views and those that the person pinned; and of the saved view that the list
    began as: its row, whether it is theirs, and whether the list was changed since. `nearest` for
    a list that is empty: what there is without each of its filters.
    """
    views = list_views(request.actor)
    mine = str(request.actor)
    begun = next((view for view in views if str(view.pk) == wanted.view), None)
    shown = [view for view in views if mine in view.pinned_by or view is begun]
    opened = [*DEFAULTS.items(), *((view.name, read_view(view)) for view in shown)]
    chips = list_chips(wanted)[:5] if nearest else []
    without = [[other for other in wanted.pairs if other != pair] for pair in wanted.pairs[:5]]
    asked = [one.pairs for _, one in opened] + (without if nearest else [])
    counts = count_lists([queries.TaskFilter(pairs) for pairs in asked])
    tabs = [
        {
            "label": name,
            "query": one.write(),
            "count": count,
            "current": one.view == str(begun.pk) if begun else is_same(one, wanted),
        }
        for (name, one), count in zip(opened, counts, strict=False)
    ]
    near = zip(chips, counts[len(opened) :], strict=True)
    return {
        "tabs": tabs,
        "nearest": [chip | {"count": count} for chip, count in near if count],
        "view_count": len(views),
        "begun": begun,
        "owned": begun is not None and begun.owner == mine,
        "changed": begun is not None and not is_same(read_view(begun), wanted),
        "tabs_tag": hashlib.sha256(repr(tabs).encode()).hexdigest()[:16],
        "state": wanted.write(),
    }


def show_view(view: SavedView, actor: str, names: dict[str, str]) -> dict[str, Any]:
    """A view in the list of views."""
    wanted = read_view(view)
    return {
        "row": view,
        "query": wanted.write(),
        "chips": list_chips(wanted),
        "columns": [COLUMNS[name] for name in wanted.columns],
        "sort": SORTS[wanted.sort],
        "owned": view.owner == actor,
        "owner": names.get(view.owner, view.owner),
        "pinned": actor in view.pinned_by,
    }
