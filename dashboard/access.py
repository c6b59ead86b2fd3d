"""Who may see and do what: the ledger's scopes, checked in every view."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate

from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.db import DatabaseError, InterfaceError, transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render, resolve_url
from django.urls import reverse
from django.utils.cache import add_never_cache_headers, patch_vary_headers

from dashboard.htmx import HtmxDetails, wants_part
from dashboard.outages import show_outage
from dashboard.preferences import Preferences, prefer
from dashboard.rich_text import reveal_page
from ledger.access import ADMIN, APPROVE, AUDIT, OPERATE, PAYLOAD, READ, SUBMIT, find_sight
from ledger.api.edge import (
    answer_request,
    audit_error,
    name_stranger,
    refuse_request,
    tell_request_id,
)
from ledger.calls import narrow_call
from ledger.errors import LedgerError, TaskRemoved
from ledger.events import Actor
from ledger.sql import is_outage

ROLE_NAMES = {
    ADMIN: "admin", AUDIT: "admin", OPERATE: "operator", SUBMIT: "operator",
    APPROVE: "approver", READ: "viewer",
}  # fmt: skip
"""The least role that holds a scope, the highest first."""


PAGE_USER = "X-Page-User"
"""The header in which the script of a page says for whom the page was made."""


class PageRequest(HttpRequest):
    """A request that `allow` let through."""

    htmx: HtmxDetails
    scopes: frozenset[str]
    role_name: str
    actor: Actor
    waiting_count: int
    preferences: Preferences
    likes: dict[str, Any] | None


type View[**P] = Callable[Concatenate[PageRequest, P], HttpResponseBase]


def allow[**P](scope: str) -> Callable[[View[P]], Callable[..., HttpResponseBase]]:
    """Let a view run for people with `scope`; its answer is not cached and varies by HX-Request.

    Outside of a transaction, also where the project wraps requests in one: the ledger's own are
    short, and what one refuses must not undo another.

    Anybody else is asked to sign in (a part of a page gets a bare 401, so that a poll can't swap
    the sign-in form into the page) or told which role is missing.
    """

    def decorate(view: View[P]) -> Callable[..., HttpResponseBase]:
        @functools.wraps(view)
        def run_view(request: Any, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
            with answer_request(request) as call, prefer(request):
                try:
                    response = _check_scope(request, scope) or view(request, *args, **kwargs)
                except LedgerError as error:
                    response = _explain_error(request, error)
                except Http404:
                    # Here, so that it is kept by no cache either: the page names who asked.
                    response = render(request, "dashboard/missing.html", status=404)
                except (DatabaseError, InterfaceError) as error:
                    if not is_outage(error):
                        raise
                    response = show_outage(request, error)
            if isinstance(response, HttpResponse) and is_page(response):
                response.content = reveal_page(response.content)
            tell_request_id(response, call)
            patch_vary_headers(response, ["HX-Request"])
            add_never_cache_headers(response)
            return response

        return transaction.non_atomic_requests(run_view)

    return decorate


def show_missing(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """No page has this address: said beside the navigation to whoever is signed in."""
    if request.user.is_authenticated:
        return _find_nothing(request)
    return render(request, "dashboard/missing.html", status=404)


def is_page(response: HttpResponseBase) -> bool:
    """A page or a part of one, not a file."""
    return response.get("Content-Type", "").startswith("text/html")


def _explain_error(request: Any, error: LedgerError) -> HttpResponse:
    """What a view does not answer itself: a page in words; into a part nothing is swapped."""
    audit_error(request, error)
    if isinstance(error, TaskRemoved):
        return render(request, "dashboard/missing.html", {"error": error}, status=error.status)
    if error.status == 404:
        return render(request, "dashboard/missing.html", status=404)
    if wants_part(request):
        return HttpResponse(str(error), status=error.status, headers={"HX-Reswap": "none"})
    return render(request, "dashboard/refused.html", {"error": error}, status=error.status)


def _check_scope(request: Any, needed: str) -> HttpResponse | None:
    """The refusal, or None after noting on the request who asks and what they may do."""
    if not request.user.is_authenticated:
        refuse_request(request, name_stranger(request), "not signed in")
        if wants_part(request):
            return HttpResponse(status=401)
        back = request.get_full_path() if request.method == "GET" else reverse("dashboard:overview")
        # The cookie of a session that ended goes with this answer, so the form is told by its URL.
        ended = "?ended=1" if settings.SESSION_COOKIE_NAME in request.COOKIES else ""
        return redirect_to_login(back, f"{resolve_url(settings.LOGIN_URL)}{ended}")
    if request.headers.get(PAGE_USER, str(request.user.pk)) != str(request.user.pk):
        # Somebody else has signed in since the page was made, in another tab of the same browser.
        refuse_request(request, Actor("user", str(request.user.pk)), "the page of somebody else")
        return HttpResponse(status=412)
    sight = find_sight(request.user)
    request.scopes, request.likes = sight.scopes, sight.likes
    request.actor = Actor("user", str(request.user.pk))
    narrow_call(str(request.actor), sight.lanes, PAYLOAD in sight.scopes)
    request.role_name = next(
        (name for scope, name in ROLE_NAMES.items() if scope in request.scopes), "no role"
    )
    return None if needed in request.scopes else refuse_page(request, needed)


def refuse_page(request: Any, needed: str) -> HttpResponse:
    """Which role is missing."""
    refuse_request(request, request.actor, f"It takes the role {ROLE_NAMES[needed]}.")
    if wants_part(request):
        return HttpResponse(status=403)
    return render(request, "dashboard/forbidden.html", {"needed": ROLE_NAMES[needed]}, status=403)


@allow(READ)
def _find_nothing(request: PageRequest) -> HttpResponseBase:
    raise Http404
