"""Signing in: by name and password, or once by the link that `manage.py up` prints. And out."""

from __future__ import annotations

from django.contrib import auth
from django.contrib.auth.forms import AuthenticationForm
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.cache import add_never_cache_headers
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from dashboard.login import spend_link

BACKEND = "django.contrib.auth.backends.ModelBackend"


@require_http_methods(["GET", "HEAD", "POST"])
def sign_in(request: HttpRequest) -> HttpResponse:
    """The form; a wrong name and a wrong password read the same."""
    goal = choose_goal(request)
    if request.user.is_authenticated and request.method != "POST":
        return HttpResponseRedirect(goal)
    form = AuthenticationForm(request, data=request.POST or None)
    if request.method == "POST" and form.is_valid():
        auth.login(request, form.get_user())
        return HttpResponseRedirect(goal)
    status = 422 if request.method == "POST" else 200
    response = render(request, "dashboard/login.html", {"form": form, "goal": goal}, status=status)
    add_never_cache_headers(response)
    return response


@require_GET
def follow_link(request: HttpRequest, key: str, token: str) -> HttpResponse:
    """Sign in by the one-time link and go on; a link that was followed before says so."""
    user = spend_link(key, token)
    if user is not None:
        auth.login(request, user, backend=BACKEND)  # type: ignore[arg-type]
    if request.user.is_authenticated:  # also on a second click in the browser that spent the link
        response: HttpResponse = HttpResponseRedirect(choose_goal(request))
    else:
        response = render(request, "dashboard/login_link.html", status=410)
    add_never_cache_headers(response)
    return response


@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    """End the session."""
    auth.logout(request)
    return HttpResponseRedirect(reverse("dashboard:login"))


def choose_goal(request: HttpRequest) -> str:
    """Where to go after signing in: `next` when it is a path of this host, else the overview."""
    goal = request.POST.get("next") or request.GET.get("next") or ""
    safe = goal.startswith("/") and url_has_allowed_host_and_scheme(
        goal, allowed_hosts=None, require_https=request.is_secure()
    )
    return goal if safe else reverse("dashboard:overview")
