"""Pages that ask every few seconds whether anything changed: mostly nothing did."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import Concatenate

from django.http import HttpResponseBase, HttpResponseNotModified

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
