"""Lanes: what each has in hand, what is set for it, its pause."""

from __future__ import annotations

import hashlib
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpResponse, HttpResponseBase
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboard.access import PageRequest, allow
from dashboard.htmx import find_unchanged, render_page
from dashboard.lanes import LaneForm, show_lane
from dashboard.views.workflows import SeeOther
from ledger.access import OPERATE, READ
from ledger.api.edge import audit_error
from ledger.calls import read_call
from ledger.errors import InvalidInput, LedgerError, StaleRevision, WrongStatus
from ledger.queries import lanes as read
from ledger.transitions.lanes import check_name, run_one, set_lane

SHOWN = 100


@require_safe
@allow(READ)
def show_lanes(request: PageRequest) -> HttpResponseBase:
    """The page, or for a poll the table alone."""
    return render_lanes(request)


def render_lanes(request: PageRequest, problem: str = "", status: int = 200) -> HttpResponseBase:
    """The lanes as they are now, and what was refused."""
    cursor = request.GET.get("cursor", "")
    page = read.list_lanes(SHOWN, cursor)
    keys = read.list_keys(SHOWN)
    context: dict[str, Any] = {
        "section": "lanes",
        "lanes": [show_lane(lane) for lane in page.items],
        "keys": keys,
        "next": page.next_cursor,
        "poll": urlencode({"cursor": cursor}) if cursor else "",
        "may_act": OPERATE in request.scopes,
        "may_set": may_set(request),
        "problem": problem,
    }
    tag = hashlib.sha256(repr((page, keys)).encode()).hexdigest()[:16]
    return (not problem and find_unchanged(request, tag)) or render_page(
        request, "dashboard/lanes.html", context | {"tag": tag}, part="lanes", tag=tag,
        status=status,
    )  # fmt: skip


def may_set(request: PageRequest) -> bool:
    """Bounds and budgets are for who sees every lane."""
    return OPERATE in request.scopes and read_call().lanes is None


@require_http_methods(["GET", "HEAD", "POST"])
@allow(OPERATE)
def edit_lane(request: PageRequest) -> HttpResponseBase:
    """The form of the lane that `lane` names, which may have no task yet; a POST saves it."""
    name = request.POST.get("lane") or request.GET.get("lane") or ""
    if not name:
        return render_form(request, None, None)
    lane = read.find_lane(name)
    if request.method != "POST":
        return render_form(request, lane, LaneForm(lane=lane))
    form = LaneForm(request.POST, lane=lane)
    revision = request.POST.get("revision", "")
    if not form.is_valid() or not revision.isdecimal():
        return render_form(request, lane, form, 422)
    try:
        check_name(name)
        set_lane(
            name, form.read_settings(), actor=request.actor, revision=int(revision[:18]),
            reason=form.cleaned_data["reason"],
        )  # fmt: skip
    except InvalidInput as error:
        form.add_error(error.field if error.field in form.fields else None, str(error))
        return render_form(request, lane, form, 422)
    except StaleRevision as error:
        audit_error(request, error)
        form.add_error(None, "Somebody else changed the lane meanwhile; this is how it is now.")
        return render_form(request, lane, form, 409)
    messages.success(request, f"Lane {name} saved.")
    return SeeOther(reverse("dashboard:lanes"))


def render_form(
    request: PageRequest, lane: dict[str, Any] | None, form: LaneForm | None, status: int = 200
) -> HttpResponse:
    """The form; without a lane, the field for its name."""
    context = {
        "section": "lanes",
        "lane": None if lane is None else show_lane(lane),
        "form": form,
        "may_set": may_set(request),
    }
    return render_page(request, "dashboard/lane.html", context, status=status)


@require_POST
@allow(OPERATE)
def act_on_lane(request: PageRequest) -> HttpResponseBase:
    """`do` to `lane`: pause, resume, run-one. What can't be is said above the lanes as they are."""
    name, wanted = request.POST.get("lane", ""), request.POST.get("do", "")
    revision = request.POST.get("revision", "")
    told: dict[str, Any] = {
        "actor": request.actor, "revision": int(revision[:18]) if revision.isdecimal() else None,
    }  # fmt: skip
    try:
        if wanted not in {"pause", "resume", "run-one"}:
            raise InvalidInput("do", "takes pause, resume or run-one")
        if wanted == "run-one":
            return SeeOther(reverse("dashboard:task", args=[run_one(name, **told)]))
        set_lane(name, {}, paused=wanted == "pause", **told)
        messages.success(request, f"Lane {name} {'paused' if wanted == 'pause' else 'resumed'}.")
    except (InvalidInput, StaleRevision, WrongStatus) as error:
        return refuse_action(request, error)
    return SeeOther(reverse("dashboard:lanes"))


def refuse_action(request: PageRequest, error: LedgerError) -> HttpResponseBase:
    """Nothing was done; why, and what is now."""
    audit_error(request, error)
    return render_lanes(request, str(error), error.status)
