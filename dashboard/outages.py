"""What a page says while the database is away: plain words, the cause, nothing that asks it."""

from __future__ import annotations

import logging
import sys
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.utils.cache import add_never_cache_headers
from django.views.defaults import server_error

from dashboard.htmx import wants_part
from ledger.canonical import clean_text
from ledger.outages import draw_retry_after, name_trouble
from ledger.sql import is_outage

log = logging.getLogger(__name__)


def show_outage(request: HttpRequest, error: BaseException) -> HttpResponse:
    """503 with the cause. A part of a page is not replaced: what was read last stays."""
    log.warning("%s %s: no database: %s", request.method, request.path, clean_text(error, 500))
    text = "" if wants_part(request) else _write_page(request, error)
    response = HttpResponse(text, status=503, headers={"Retry-After": draw_retry_after()})
    if wants_part(request):
        response["HX-Reswap"] = "none"
    add_never_cache_headers(response)
    return response


def show_fault(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
    """The site's handler of what no view has answered: sign-in, admin, sessions."""
    error = sys.exception()
    if error is not None and is_outage(error):
        return show_outage(request, error)
    return server_error(request)


def _write_page(request: HttpRequest, error: BaseException) -> str:
    # Without the request: who is signed in is in the database.
    context = {"trouble": name_trouble(error), "again": request.method == "GET"}
    return render_to_string("dashboard/outage.html", context)
