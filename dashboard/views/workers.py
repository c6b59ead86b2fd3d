"""Worker processes: which beat, what they hold, what they know; and what people tell them."""

from __future__ import annotations

import hashlib
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.http import Http404, HttpResponse, HttpResponseBase
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from dashboard import crew
from dashboard.access import PageRequest, allow
from dashboard.forms import MAX_REASON
from dashboard.htmx import find_unchanged, make_redirect, render_page
from dashboard.polling import skip_unwritten
from dashboard.views.actions import read_back
from ledger.access import OPERATE, READ
from ledger.api.edge import audit_error
from ledger.calls import read_call
from ledger.errors import InvalidInput, LedgerError
from ledger.queries import crew as queries

SHOWN = 200


@require_safe
@allow(READ)
@skip_unwritten(beats=True)
def show_workers(request: PageRequest) -> HttpResponseBase:
    """The page, or for a poll the tables alone."""
    given = {name: request.GET[name][:200] for name in ("q", "state", "workflow", "old")
             if request.GET.get(name)}  # fmt: skip
    wanted = queries.CrewFilter(
        given.get("state", ""), given.get("workflow", ""),
        given.get("q", "").replace("\0", ""), bool(given.get("old")),
    )  # fmt: skip
    found = queries.load_crew(wanted, SHOWN)
    tag = make_tag(found, request)
    if unchanged := find_unchanged(request, tag):
        return unchanged
    context: dict[str, Any] = {
        "section": "workers",
        "found": found,
        "given": given,
        "here": urlencode(given),
        "back_here": f"{request.path}?{urlencode(given)}" if given else request.path,
        "narrows": wanted.narrows,
        "may_tell": OPERATE in request.scopes,
        "states": [(state, look.label) for state, look in crew.LOOKS.items()],
        "tag": tag,
        **crew.show_crew(found.rows, queries.count_lost() if found.rows else {}),
    }
    return render_page(request, "dashboard/workers.html", context, part="workers", tag=tag)


def make_tag(found: queries.Crew, request: PageRequest) -> str:
    """Names what the page shows; `seen_at` counts, so that an age never grows on a live worker."""
    seen = [
        (row["owner"], row["state"], row["missed"], row["told"], row["units"], row["seen_at"],
         row["draining"], row["knows"],
         [(task.pk, task.step_name, task.turn, task.stalled) for task in row["tasks"]])
        for row in found.rows
    ]  # fmt: skip
    text = repr((seen, found.folded, found.cut, sorted(request.scopes)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class TellForm(forms.Form):
    """Whom it is for, and why."""

    scope = forms.ChoiceField(choices=[("one", "one"), ("all", "all")], initial="one")
    reason = forms.CharField(
        label="Reason", required=False, max_length=MAX_REASON, widget=forms.Textarea
    )


class DeadForm(forms.Form):
    """The name, typed, and why."""

    typed = forms.CharField(label="Type its name", max_length=200)
    reason = forms.CharField(
        label="Reason", required=False, max_length=MAX_REASON, widget=forms.Textarea
    )


@require_http_methods(["GET", "HEAD", "POST"])
@allow(OPERATE)
def tell_worker(request: PageRequest, owner: str, name: str) -> HttpResponseBase:
    """The dialog of `drain`, `undrain` or `declare-dead`, and the deed."""
    action = crew.ACTIONS.get(name)
    row = queries.find_one(owner)
    if action is None or row is None:
        raise Http404(owner)
    kind = DeadForm if name == crew.DECLARE else TellForm
    form = kind(request.POST if request.method == "POST" else None)
    if "typed" in form.fields:
        form.fields["typed"].label = f"Type {row['name']} to go on"
    if not form.is_valid():
        return ask_first(request, action, row, form, 422 if form.is_bound else 200)
    given = form.cleaned_data
    try:
        done = action.take(owner, request.actor, given)
    except LedgerError as error:
        audit_error(request, error)
        if isinstance(error, InvalidInput) and error.field == "name":
            form.add_error("typed", error.reason)
        else:
            form.add_error(None, str(error))
        return ask_first(request, action, queries.find_one(owner) or row, form, error.status)
    messages.success(request, done)
    return make_redirect(request, read_back(request) or reverse("dashboard:workers"))


def ask_first(
    request: PageRequest, action: crew.Tell, row: dict[str, Any], form: forms.Form, status: int
) -> HttpResponse:
    """The dialog, as part of the page or as a page of its own."""
    others = [one for one in queries.list_cluster(row["cluster"]) if row["cluster"]]
    context = {
        "section": "workers",
        "worker": crew.show_worker(row, {}),
        "action": action,
        "form": form,
        "back": read_back(request),
        "others": others,
        "holding": [one for one in others if one["tasks"]],
        "scope": form["scope"].value() if "scope" in form.fields else "",
        "obstacle": "" if read_call().lanes is None else crew.NARROW,
    }
    return render_page(
        request, "dashboard/worker_action.html", context, part="worker-form", status=status
    )
