"""Worker processes: which beat, what they hold, what they know."""

from __future__ import annotations

import hashlib
from typing import Any

from django.http import HttpResponseBase
from django.views.decorators.http import require_safe

from dashboard import words
from dashboard.access import PageRequest, allow
from dashboard.htmx import find_unchanged, render_page
from ledger import queries
from ledger.access import READ

SHOWN = 200
LIVE = words.Look("Live", "run", "is-run")
IDLE = words.Look("Live, idle", "idle", "is-ok")
DRAINING = words.Look("Draining", "pause", "is-idle", "ends what it holds, takes nothing new")
STOPPED = words.Look("Stopped", "cancel", "is-idle", "signed off")
GONE = words.Look("Gone", "lost", "is-stall", "no heartbeat; what it held is queued again")


@require_safe
@allow(READ)
def show_workers(request: PageRequest) -> HttpResponseBase:
    """The page, or for a poll the tables alone."""
    crew = [row | {"look": choose_look(row)} for row in queries.list_crew(SHOWN)]
    versions = [pair for row in crew if row["live"] for pair in row["knows"]]
    live = sum(row["live"] for row in crew)
    context: dict[str, Any] = {
        "section": "workers",
        "live": [row for row in crew if row["live"]],
        "gone": [row for row in crew if not row["live"]],
        "busy": sum(bool(row["tasks"]) for row in crew if row["live"]),
        "skewed": sorted({pair for pair in versions if versions.count(pair) < live}),
        "cut": len(crew) == SHOWN,
    }
    tag = make_tag(crew)
    return find_unchanged(request, tag) or render_page(
        request, "dashboard/workers.html", context | {"tag": tag}, part="workers", tag=tag
    )


def choose_look(row: dict[str, Any]) -> words.Look:
    """Live (busy or idle), draining, stopped in order, or gone without a word."""
    if not row["live"]:
        return STOPPED if row["stopped_at"] else GONE
    if row["draining"]:
        return DRAINING
    return LIVE if row["tasks"] else IDLE


def make_tag(crew: list[dict[str, Any]]) -> str:
    """Names what the page shows; `seen_at` counts, so that an age never grows on a live worker."""
    seen = [
        (row["owner"], row["look"], row["units"], row["seen_at"], row["knows"],
         [(task.pk, task.step_name, task.turn, task.stalled) for task in row["tasks"]])
        for row in crew
    ]  # fmt: skip
    return hashlib.sha256(repr(seen).encode()).hexdigest()[:16]
