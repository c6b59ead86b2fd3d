"""Signing in: by name and password, or once by the link that `manage.py up` prints. And out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from django.contrib import auth
from django.contrib.auth.forms import AuthenticationForm
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.cache import add_never_cache_headers, patch_vary_headers
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from dashboard.login import spend_link
from dashboard.preferences import prefer
from ledger.api.edge import NOBODY, answer_request, read_address, tell_request_id
from ledger.auditing import record_refusal, write_entry
from ledger.events import Actor
from ledger.transitions import sign_ins

BACKEND = "django.contrib.auth.backends.ModelBackend"


def note_request(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """What the view puts on record has the request's address and id; no cache keeps its answer."""

    @functools.wraps(view)
    def run_view(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        with answer_request(request) as call, prefer(request):
            response = view(request, *args, **kwargs)
        tell_request_id(response, call)
        patch_vary_headers(response, ["HX-Request", "Cookie"])
        add_never_cache_headers(response)
        return response

    return run_view


@require_http_methods(["GET", "HEAD", "POST"])
@note_request
def sign_in(request: HttpRequest) -> HttpResponse:
    """The form; a wrong name and a wrong password read the same, and tries are counted."""
    goal = choose_goal(request)
    if request.user.is_authenticated and request.method != "POST":
        return HttpResponseRedirect(goal)
    context: dict[str, Any] = {
        "goal": goal,
        "ended": has_ended(request),
        "back": name_goal(goal),
        "name": None,
    }
    if request.method != "POST":
        return render_form(request, context, 200)
    context["name"] = name = request.POST.get("username", "")
    address = read_address(request)
    try:
        left = sign_ins.begin_try(name, address)
    except sign_ins.TooManyTries as error:
        response = render_form(request, context | {"refused": str(error)}, error.status)
        response["Retry-After"] = str(error.wait)
        return response
    form = AuthenticationForm(request, data=request.POST)
    if not form.is_valid():
        return render_form(request, context | {"left": left}, 422)
    user = form.get_user()
    sign_ins.end_tries(name, address, Actor("user", str(user.pk)))
    auth.login(request, user)
    if not request.POST.get("stay"):
        request.session.set_expiry(0)  # the browser's end is the session's
    return HttpResponseRedirect(goal)


def render_form(request: HttpRequest, context: dict[str, Any], status: int) -> HttpResponse:
    """The form."""
    return render(request, "dashboard/login.html", context, status=status)


def has_ended(request: HttpRequest) -> bool:
    """True when a page sent somebody here whose session was no more."""
    return bool(request.POST.get("ended") or request.GET.get("ended"))


def name_goal(goal: str) -> str:
    """Where signing in leads, in short: a task's or a request's id, else the path."""
    parts = [part for part in goal.partition("?")[0].split("/") if part]
    return parts[1] if len(parts) > 1 and len(parts[1]) == 36 else "/".join(parts)


@require_GET
@note_request
def follow_link(request: HttpRequest, key: str, token: str) -> HttpResponse:
    """Sign in by the one-time link and go on; a link that was followed before says so."""
    user = spend_link(key, token)
    if user is None:
        record_refusal(name_user(request) or NOBODY, "sign_in_link", "")
    else:
        write_entry(Actor("user", str(user.pk)), "sign_in_link", f"user:{user.pk}")
        auth.login(request, user, backend=BACKEND)  # type: ignore[arg-type]
    if request.user.is_authenticated:  # also on a second click in the browser that spent the link
        response: HttpResponse = HttpResponseRedirect(choose_goal(request))
    else:
        response = render(request, "dashboard/login_link.html", status=410)
    return response


def name_user(request: HttpRequest) -> str:
    """`user:3` of who is signed in; else empty."""
    return f"user:{request.user.pk}" if request.user.is_authenticated else ""


@require_POST
@note_request
def sign_out(request: HttpRequest) -> HttpResponse:
    """End the session."""
    if who := name_user(request):
        write_entry(who, "sign_out", who)
    auth.logout(request)
    return HttpResponseRedirect(reverse("dashboard:login"))


def choose_goal(request: HttpRequest) -> str:
    """Where to go after signing in: `next` when it is a path of this host, else the overview."""
    goal = request.POST.get("next") or request.GET.get("next") or ""
    safe = goal.startswith("/") and url_has_allowed_host_and_scheme(
        goal, allowed_hosts=None, require_https=request.is_secure()
    )
    return goal if safe else reverse("dashboard:overview")
