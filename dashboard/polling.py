"""Pages that ask every few seconds whether anything changed: mostly nothing did."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import Concatenate

from django.http import HttpRequest, HttpResponseBase, HttpResponseNotModified

from dashboard.access import PageRequest
from dashboard.htmx import wants_part
from ledger.queries.marks import mark_ledger


def skip_unwritten[**P](
    *, beats: bool = False
) -> Callable[
    [Callable[Concatenate[PageRequest, P], HttpResponseBase]],
    Callable[Concatenate[PageRequest, P], HttpResponseBase],
]:
    """Answer a poll 304 without the view while nothing was written since the last answer to it.

    A polling tag is then `TAG~MARK`: the view's, which names what is shown, and the mark of the
    ledger before it was read. A mark that differs decides nothing: then the view compares its tag.
    """

    def decorate(
        view: Callable[Concatenate[PageRequest, P], HttpResponseBase],
    ) -> Callable[Concatenate[PageRequest, P], HttpResponseBase]:
        @functools.wraps(view)
        def run_view(
            request: PageRequest, /, *args: P.args, **kwargs: P.kwargs
        ) -> HttpResponseBase:
            sent = request.headers.get("HX-PTag", "")
            if not sent or not wants_part(request):
                return view(request, *args, **kwargs)
            seen = repr((request.get_full_path(), sorted(request.scopes), mark_ledger(beats=beats)))
            mark = hashlib.sha256(seen.encode()).hexdigest()[:16]
            if sent.partition("~")[2] == mark:
                return HttpResponseNotModified(headers={"HX-PTag": sent})
            response = view(request, *args, **kwargs)
            if tag := response.get("HX-PTag"):
                response["HX-PTag"] = f"{tag}~{mark}"
            return response

        return run_view

    return decorate


KEPT = frozenset({"hx-ptag", "x-request-id"})


def trim_unchanged(
    get_response: Callable[[HttpRequest], HttpResponseBase],
) -> Callable[[HttpRequest], HttpResponseBase]:
    """Middleware, the outermost one: what says that nothing changed says little else.

    A page asks every two seconds, and policies about a document are about none there: with them
    each such answer has 650 bytes, without them 200. Cookies stay.
    """

    def answer(request: HttpRequest) -> HttpResponseBase:
        response = get_response(request)
        if response.status_code == 304 and "HX-PTag" in response:
            for name in [name for name in response.headers if name.lower() not in KEPT]:
                del response.headers[name]
            response["Cache-Control"] = "no-store"
        return response

    return answer
