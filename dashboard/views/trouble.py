"""What stands still: stalled, lost, without a worker, given up. Each with what can be done now."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.http import HttpResponseBase
from django.urls import reverse
from django.views.decorators.http import require_safe

from dashboard import stuck, words
from dashboard.access import PageRequest, allow
from dashboard.htmx import find_unchanged, render_page
from dashboard.polling import skip_unwritten
from ledger import queries, states
from ledger.access import OPERATE, READ
from ledger.errors import InvalidInput
from ledger.queries import trouble
from ledger.queries.trouble import Narrowed

FILTERS = ("q", "reason", "workflow", "step", "error")
"""Filters of the task list that this page has fields for."""

AGES = {"1h": ("an hour", 3_600.0), "1d": ("a day", 86_400.0), "7d": ("a week", 604_800.0),
        "30d": ("30 days", 2_592_000.0)}  # fmt: skip
"""Of `older`: what it is called, and seconds."""

REASONS = (
    states.RETRIES_EXHAUSTED, states.RECLAIMS_EXHAUSTED, states.REPAIRS_EXHAUSTED,
    *sorted(states.LIMIT_REASONS), states.APPROVAL_EXPIRED, states.SIGNAL_EXPIRED,
    states.UNSERIALISABLE_OUTPUT, states.COMPENSATION_FAILED,
)  # fmt: skip
MAX_TEXT = 200


@require_safe
@allow(READ)
@skip_unwritten()
def show_trouble(request: PageRequest) -> HttpResponseBase:
    """All kinds, or the one of `?kind=`, narrowed as asked; for a poll the sections alone."""
    chosen = request.GET.get("kind", "")
    chosen = chosen if chosen in {kind.name for kind in stuck.KINDS} else ""
    given, problems = read_given(request), []
    try:
        sight = stuck.look_at(chosen, narrow(given))
    except InvalidInput as error:
        given, problems = {}, [str(error)]
        sight = stuck.look_at(chosen, narrow(given))
    request.waiting_count = sight.counts[trouble.APPROVALS].count
    if unchanged := find_unchanged(request, sight.tag):
        return unchanged
    context = load_page(request, sight, given) | {"problems": problems}
    return render_page(
        request,
        "dashboard/trouble.html",
        context,
        part="trouble",
        tag=sight.tag,
        status=422 if problems else 200,
    )


def read_given(request: PageRequest) -> dict[str, str]:
    """The filter of the address, by its names."""
    found = {
        name: request.GET.get(name, "").replace("\0", "").strip()[:MAX_TEXT]
        for name in (*FILTERS, "older")
    }
    return {name: value for name, value in found.items() if value}


def narrow(given: dict[str, str]) -> Narrowed:
    """The same as a filter of rows. Raises InvalidInput."""
    older = given.get("older", "")
    if older and older not in AGES:
        raise InvalidInput("older", f"is {older!r:.60}; it takes one of {', '.join(AGES)}.")
    pairs = [(name, given[name]) for name in FILTERS if name in given]
    wanted = queries.TaskFilter(pairs).bound_search() if pairs else None
    return Narrowed(wanted, AGES[older][1] if older else 0.0)


def load_page(request: PageRequest, sight: stuck.Sight, given: dict[str, str]) -> dict[str, Any]:
    """Tabs, sections and the fields of the filter."""
    counts = {kind.name: sight.counts[kind.name].count for kind in stuck.KINDS}
    tabs = [("", "All", min(queries.COUNT_CAP, sum(counts.values())))]
    tabs += [(kind.name, kind.look.label, counts[kind.name]) for kind in stuck.KINDS]
    kept = ({"kind": sight.chosen} if sight.chosen else {}) | given
    path = reverse("dashboard:trouble")
    return {
        "section": "trouble",
        "chosen": sight.chosen,
        "tag": sight.tag,
        "tabs": [
            (name, label, count, urlencode(({"kind": name} if name else {}) | given))
            for name, label, count in tabs
        ],
        "sections": stuck.load_sections(sight, OPERATE in request.scopes),
        "given": given,
        "bounds": sight.narrowed.bounds,
        "reasons": [(code, words.REASONS[code]) for code in REASONS],
        "ages": [(name, said) for name, (said, _) in AGES.items()],
        "kept": urlencode(given),
        "here": f"{path}?{urlencode(kept)}" if kept else path,
    }
