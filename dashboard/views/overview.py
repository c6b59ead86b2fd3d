"""The first page: what needs a person, then how the fleet does."""

from __future__ import annotations

import hashlib
from typing import Any

from django.http import HttpResponseBase
from django.views.decorators.http import require_safe

from dashboard import charts
from dashboard.access import PageRequest, allow
from dashboard.htmx import find_unchanged, render_page
from dashboard.overview import RANGES, load_overview
from dashboard.polling import skip_unwritten
from dashboard.templatetags.longwatch import read_server_time
from ledger.access import READ


@require_safe
@allow(READ)
@skip_unwritten()
def show_overview(request: PageRequest) -> HttpResponseBase:
    """The page, or for a poll its figures alone."""
    span = charts.make_span(request.GET.get("range", ""), read_server_time())
    context = load_overview(span)
    tag = make_tag(context)
    request.waiting_count = context["waiting"]
    context |= {"section": "overview", "span": span, "ranges": RANGES, "tag": tag}
    return find_unchanged(request, tag) or render_page(
        request, "dashboard/overview.html", context, part="overview", tag=tag
    )


def make_tag(context: dict[str, Any]) -> str:
    """Names what the figures show. The failed tasks' rows stand for themselves by their ids."""
    groups = [(group.heading, [row.pk for row in group.rows]) for group in context["groups"]]
    seen = [value for name, value in context.items() if name != "groups"]
    return hashlib.sha256(repr([groups, seen]).encode()).hexdigest()[:16]
