"""Where to? Pages, views, tasks, workflows, workers, what can be begun: by a few letters."""

from __future__ import annotations

from typing import NamedTuple

from django.http import HttpResponseBase
from django.urls import NoReverseMatch, reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_safe

from dashboard import words
from dashboard.access import PageRequest, allow
from dashboard.htmx import render_page
from dashboard.saved import DEFAULTS, read_view
from dashboard.templatetags.longwatch import short_id
from dashboard.views.legend import KEYS
from ledger import queries
from ledger.access import ADMIN, AUDIT, OPERATE, READ, SUBMIT
from ledger.events import Actor
from ledger.queries.jumps import find_tasks, find_workers
from ledger.queries.views import list_views

GOES = {name: tuple(keys.split()) for keys, name, _ in KEYS if keys.startswith("g ")}
MAX_TEXT = 100
MAX_WORKFLOWS = 5
MAX_VIEWS = 8
PAGES = (
    ("Overview", "overview", READ), ("Tasks", "tasks", READ), ("Approvals", "approvals", READ),
    ("Stalled, gave up", "trouble", READ), ("Workers", "workers", READ), ("Lanes", "lanes", READ),
    ("Workflows", "workflows", READ), ("Bulk actions", "bulks", READ),
    ("Alerts", "alerts", OPERATE), ("Settings", "settings", READ),
    ("Legend: shapes, reasons, keys", "legend", READ), ("Audit log", "audit", AUDIT),
    ("API tokens", "tokens", ADMIN), ("Saved views", "saved-views", READ),
)  # fmt: skip
"""In the order of the navigation."""
DEEDS = (
    ("New alert rule", "alert-new", ADMIN), ("New API token", "token-new", ADMIN),
    ("Set a lane", "lane", OPERATE), ("Change the time zone", "settings", READ),
)  # fmt: skip


class Place(NamedTuple):
    """Somewhere to go: what it is called, its address, a word beside it, the keys that go there."""

    name: str
    href: str
    note: str = ""
    keys: tuple[str, ...] = ()


@require_safe
@allow(READ)
def find_places(request: PageRequest) -> HttpResponseBase:
    """What fits `q`, in groups, each short; without a script a page with the same."""
    text = request.GET.get("q", "").replace("\0", "").strip()[:MAX_TEXT]
    groups = [
        (name, places)
        for name, places in list_groups(text, request.scopes, request.actor)
        if places
    ]
    context = {"section": "palette", "text": text, "groups": groups}
    return render_page(request, "dashboard/palette.html", context, part="found")


def list_groups(text: str, scopes: frozenset[str], actor: Actor) -> list[tuple[str, list[Place]]]:
    """(name, places); what is most often meant comes first."""
    groups = [
        ("Pages", list_named(PAGES, text, scopes)),
        ("Views", list_saved(text, actor)),
        ("Tasks", list_tasks(text)),
    ]
    if text:
        groups += [("Workflows", list_workflows(text, scopes)), ("Workers", list_workers(text))]
    groups.append(("Actions", list_named(DEEDS, text, scopes)))
    if not text:
        return groups
    more = f"{reverse('dashboard:tasks')}?{urlencode({'q': text})}"
    return [*groups, ("Everywhere", [Place(f"Tasks with “{text}”", more, "search")])]


def list_named(
    named: tuple[tuple[str, str, str], ...], text: str, scopes: frozenset[str]
) -> list[Place]:
    """Those of `named` (name, route, scope) that fit and that the person may open."""
    return [
        Place(name, reverse(f"dashboard:{route}"), keys=GOES.get(name, ()))
        for name, route, scope in named
        if scope in scopes and text.casefold() in name.casefold()
    ]


def list_saved(text: str, actor: Actor) -> list[Place]:
    """Saved views by a part of the name, and then those that everybody has; without a text those
    that the person pinned."""
    me, page = str(actor), reverse("dashboard:tasks")
    rows = [row for row in list_views(actor) if text or me in row.pinned_by]
    named = [
        (row.name, read_view(row), "saved view" if row.owner == me else "shared view")
        for row in rows
    ]
    if text:
        named += [(name, wanted, "view") for name, wanted in DEFAULTS.items()]
    found = [one for one in named if text.casefold() in one[0].casefold()]
    return [
        Place(name, f"{page}?{wanted.write()}", note) for name, wanted, note in found[:MAX_VIEWS]
    ]


def list_tasks(text: str) -> list[Place]:
    """By the beginning of an id or a part of a title; without a text the newest."""
    return [
        Place(
            row["title"] or row["workflow"],
            reverse("dashboard:task", args=[row["id"]]),
            f"{words.LOOKS[row['status']].label} · {short_id(row['id'])}",
        )
        for row in find_tasks(text)
    ]


def list_workflows(text: str, scopes: frozenset[str]) -> list[Place]:
    """By a part of the name, and for who may, to begin one."""
    names = sorted({one["name"] for one in queries.list_workflows()})
    found: list[Place] = []
    for name in names:
        if text.casefold() not in name.casefold():
            continue
        try:
            href = reverse("dashboard:workflow", args=[name])
        except NoReverseMatch:  # a slash in a name has no page
            continue
        found.append(Place(name, href, "start" if SUBMIT in scopes else ""))
    return found[:MAX_WORKFLOWS]


def list_workers(text: str) -> list[Place]:
    """Live ones, by a part of host and process."""
    page = reverse("dashboard:workers")
    return [
        Place(":".join(owner.split(":")[:2]), f"{page}#worker-{owner}")
        for owner in find_workers(text)
    ]
