"""Saved views of the task list: all of them, a new one, and what is done to one."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import Http404, HttpResponseBase, HttpResponseRedirect, QueryDict
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboard.access import PageRequest, allow
from dashboard.htmx import find_unchanged, render_page, wants_part
from dashboard.listing import Wanted, list_chips, read_wanted
from dashboard.polling import skip_unwritten
from dashboard.saved import find_home, list_tabs, make_draft, show_view
from dashboard.shown import name_actors
from dashboard.views.workflows import SeeOther
from ledger.access import READ
from ledger.errors import InvalidInput
from ledger.queries.views import list_views
from ledger.transitions import views


@require_safe
@allow(READ)
@skip_unwritten()
def show_views(request: PageRequest) -> HttpResponseBase:
    """The views that a person sees; for a poll the tabs of the list that stands behind it."""
    if wants_part(request):
        wanted, _, _ = read_wanted(request.GET)
        context = list_tabs(request, wanted)
        tag = context["tabs_tag"]
        return find_unchanged(request, tag) or render_page(
            request, "dashboard/_task_views.html", context, part="task-views", tag=tag
        )
    return render_views(request)


def render_views(request: PageRequest, problem: str = "") -> HttpResponseBase:
    """The page of all views, with what was refused, if anything was."""
    rows = list_views(request.actor)
    names = name_actors(row.owner for row in rows)
    context = {
        "section": "tasks",
        "views": [show_view(row, str(request.actor), names) for row in rows],
        "problem": problem,
    }
    status = 422 if problem else 200
    return render_page(request, "dashboard/saved_views.html", context, status=status)


@require_safe
@allow(READ)
def open_home(request: PageRequest) -> HttpResponseBase:
    """The list that the person has chosen for Tasks to open with, at its own address."""
    query = find_home(request.actor, request.preferences.view).write()
    path = reverse("dashboard:tasks")
    return HttpResponseRedirect(f"{path}?{query}" if query else path)


@require_http_methods(["GET", "HEAD", "POST"])
@allow(READ)
def make_view(request: PageRequest) -> HttpResponseBase:
    """Keep the list that stands in `state` under a name."""
    if request.method != "POST":
        wanted, _, _ = read_wanted(request.GET)
        return render_form(request, wanted, {"pinned": True})
    wanted = read_state(request)
    typed = {name: request.POST.get(name) == "1" for name in ("shared", "pinned")}
    try:
        view = views.save_view(
            request.POST.get("name", ""), make_draft(wanted), request.actor, **typed
        )
    except InvalidInput as error:
        wrong = f"{error.reason[:1].upper()}{error.reason[1:]}."
        given: dict[str, Any] = {"name": request.POST.get("name", "")[:200], "wrong": wrong}
        return render_form(request, wanted, given | typed, 422)
    return SeeOther(f"{reverse('dashboard:tasks')}?{wanted.write(view=str(view.pk))}")


def render_form(
    request: PageRequest, wanted: Wanted, given: dict[str, Any], status: int = 200
) -> HttpResponseBase:
    """The form of a new view."""
    context = {"section": "tasks", "state": wanted.write(), "chips": list_chips(wanted)}
    return render_page(request, "dashboard/view_new.html", context | given, status=status)


@require_POST
@allow(READ)
def act_on_view(request: PageRequest, view_id: UUID, name: str) -> HttpResponseBase:
    """`update` it to the list in `state`; rename, share, unshare, pin, unpin, delete."""
    actor, place = request.actor, reverse("dashboard:saved-views")
    try:
        if name in {"pin", "unpin"}:
            views.pin_view(view_id, actor, name == "pin")
        elif name in {"share", "unshare"}:
            views.change_view(view_id, actor, shared=name == "share")
        elif name == "rename":
            views.change_view(view_id, actor, name=request.POST.get("name", ""))
        elif name == "update":
            wanted = read_state(request)
            views.change_view(view_id, actor, draft=make_draft(wanted))
            place = f"{reverse('dashboard:tasks')}?{wanted.write(view=str(view_id))}"
        elif name == "delete":
            views.delete_view(view_id, actor)
        else:
            raise Http404("no such action")
    except InvalidInput as error:
        return render_views(request, f"{error.field}: {error.reason}.")
    return SeeOther(place)


def read_state(request: PageRequest) -> Wanted:
    """The list that a form stands for."""
    wanted, _, _ = read_wanted(QueryDict(request.POST.get("state", "")[:8_000]))
    return wanted
