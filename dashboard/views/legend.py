"""What every shape, reason and key of the pages means."""

from __future__ import annotations

from django.http import HttpResponseBase
from django.urls import Resolver404, resolve
from django.views.decorators.http import require_safe

from dashboard import words
from dashboard.access import PageRequest, allow
from dashboard.htmx import render_page
from ledger import states
from ledger.access import READ

MEANINGS = {
    states.QUEUED: "Ready; the next free worker that knows its workflow takes it.",
    states.SCHEDULED: "Not before a time: a timer, or a pause after a failure.",
    states.RUNNING: "A worker holds it for one unit of work, by a lease that it renews.",
    states.WAITING: "For a person, a signal or its children. It holds no worker.",
    states.PAUSED: "By an operator, or because its step is not in this version.",
    states.COMPLETED: "Every step is done.",
    states.FAILED: "The workflow itself ended it, or a person rejected its request.",
    states.DEAD: "A bound is used up. A person must look: retry, restart, extend the limit.",
    states.CANCELLED: "Ended by an operator or by its parent. It can't be taken up again.",
}
OTHERS = (
    (words.STALLED, "Running, the lease is alive, but no unit ended and nothing was reported."),
    (words.LOST, "Its lease ran out: the worker is gone. It is queued again by itself."),
    (
        words.OVER_TIME,
        "Running and reporting, for over three times as long as 95 of 100 runs took.",
    ),
    (
        words.NO_WORKER,
        "Queued, but no live worker knows this version of its workflow, or "
        "all that do were told to drain.",
    ),
    (words.EVENTS["repaired"], "The work was wrong, so it is done again from an earlier step."),
)
LISTS, TASK = ("tasks", "approvals", "trouble"), ("task",)
KEYS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("Ctrl+K", "Go to a page, task, workflow or worker", ()),
    ("g o", "Overview", ()),
    ("g t", "Tasks", ()),
    ("g a", "Approvals", ()),
    ("g s", "Stalled, gave up", ()),
    ("g w", "Workers", ()),
    ("g f", "Workflows", ()),
    ("g n", "Alerts", ()),
    ("g l", "Audit log", ()),
    ("j k", "Next, previous row of a list; Enter opens it", LISTS),
    ("x ⇧X", "Select the row; select from the last one to it", ("tasks",)),
    ("/", "To the filter of a list; Esc leaves it", LISTS),
    ("[ ]", "Previous, next task of the list that you came from", TASK),
    ("↑ ↓ ← →", "In a task's timeline: between its rows, and the attempts of one", TASK),
    ("+ - 0", "In a task's timeline: zoom in, zoom out, all of it", TASK),
    ("⇧R c", "On a task: restart from a step, cancel; each opens its dialog", TASK),
    ("a r s", "On an approval: approve, reject, send back", ("approval",)),
    ("z", "Take that answer back while it has not acted", ("approval", "approvals")),
    ("l", "Pause live updates, or go on", ()),
    ("t", "Change the theme: as the system, light, dark", ()),
    ("?", "The keys of the page", ()),
)
"""(keys, what they do, routes of the pages where; none: everywhere)."""


@require_safe
@allow(READ)
def show_legend(request: PageRequest) -> HttpResponseBase:
    """The page; nothing on it changes. In a dialog, the keys of the page `at`."""
    context = {
        "section": "legend",
        "statuses": [(words.LOOKS[status], text) for status, text in MEANINGS.items()],
        "others": OTHERS,
        "reasons": words.REASONS.items(),
        "events": words.EVENTS.values(),
        "keys": list_keys(request.GET.get("at", "")),
    }
    return render_page(request, "dashboard/legend.html", context, part="keys")


def list_keys(path: str) -> list[tuple[list[str], str]]:
    """The keys of the page with that path; all of them for none."""
    try:
        route = resolve(path).url_name if path else None
    except Resolver404:
        route = ""
    return [
        (keys.split(), text)
        for keys, text, routes in KEYS
        if not path or not routes or route in routes
    ]
