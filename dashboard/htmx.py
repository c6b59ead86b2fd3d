"""Full page or part of one: decided here and nowhere else.

A view renders `page.html`; for htmx the same view renders `page.html#part`, whose partial is named
as its element's id and its swap target.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseNotModified, HttpResponseRedirect
from django.shortcuts import render
from django_htmx.http import HttpResponseClientRedirect
from django_htmx.middleware import HtmxDetails

__all__ = ["HtmxDetails", "find_unchanged", "make_redirect", "render_page", "wants_part"]


def wants_part(request: HttpRequest) -> bool:
    """True when the answer goes into a page that stands; boosted links want a whole one."""
    details: HtmxDetails | None = getattr(request, "htmx", None)
    return bool(details and not details.boosted and not details.history_restore_request)


def find_unchanged(request: HttpRequest, tag: str) -> HttpResponse | None:
    """A 304 without a body when the page that polls already shows what `tag` names.

    What the page sends may have a mark behind it; see `dashboard.polling`.
    """
    if wants_part(request) and request.headers.get("HX-PTag", "").partition("~")[0] == tag:
        response = HttpResponseNotModified()
        response["HX-PTag"] = tag
        return response
    return None


def make_redirect(request: HttpRequest, path: str) -> HttpResponse:
    """Go to another page: for htmx the whole page goes there, not the part that asked."""
    if wants_part(request):
        return HttpResponseClientRedirect(path)
    return HttpResponseRedirect(path)


def render_page(
    request: HttpRequest,
    template: str,
    context: Mapping[str, Any],
    *,
    part: str = "",
    status: int = 200,
    tag: str = "",
    retarget: str = "",
    events: tuple[str, ...] = (),
) -> HttpResponse:
    """The page, or its `part` for htmx.

    `tag` is the polling tag of what is shown. `retarget` is the selector of the element that the
    part replaces, when that is not the one that asked; `events` are triggered in the page.
    """
    if not part or not wants_part(request):
        return render(request, template, dict(context), status=status)
    response = render(request, f"{template}#{part}", dict(context), status=status)
    if tag:
        response["HX-PTag"] = tag
    if retarget:
        response["HX-Retarget"] = retarget
        response["HX-Reswap"] = "outerMorph"
    if events:
        response["HX-Trigger"] = json.dumps(dict.fromkeys(events, True))
    return response
