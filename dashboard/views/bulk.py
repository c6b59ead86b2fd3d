"""Many tasks at once: what an action would be done to, and what came of it."""

from __future__ import annotations

import hashlib
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import messages
from django.http import HttpResponseBase
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboard import bulk, shown
from dashboard.access import PageRequest, allow, refuse_page
from dashboard.bulk import DEEDS, EXPORT, OPERATIONS, OUTCOMES, Chosen, read_chosen
from dashboard.bulk_forms import FORMS, BulkForm
from dashboard.htmx import find_unchanged, render_page
from dashboard.listing import list_chips
from dashboard.templatetags.longwatch import read_server_time
from dashboard.views.workflows import SeeOther
from dashboard.words import LOOKS
from ledger import queries
from ledger.access import APPROVE, OPERATE, READ
from ledger.api.edge import audit_error
from ledger.bulk.actions import BULK_ACTIONS, BulkAction
from ledger.bulk.answers import ANSWERS
from ledger.bulk.making import make_operation, stop_operation
from ledger.bulk.selecting import (
    Preview,
    Seen,
    Selection,
    list_chosen,
    list_versions,
    preview,
    sum_used,
)
from ledger.errors import InvalidInput, LedgerError
from ledger.models import Task
from ledger.queries import Fleet
from ledger.queries.bulk import find_operation, list_items, list_operations, show_operation

MAX_QUERY = 4_000
"""Characters of an address that browsers and proxies pass on."""


@require_http_methods(["GET", "HEAD", "POST"])
@allow(OPERATE)
def make_bulk(request: PageRequest) -> HttpResponseBase:
    """What the action would be done to, with its form; the form sent (`go`) begins it.

    A list posts what is chosen on it; that becomes an address, so that back and reload work.
    """
    posted = request.method == "POST"
    given = request.POST if posted else request.GET
    try:
        chosen = read_chosen(given)
        selection = chosen.select()
    except InvalidInput as error:
        return refuse_choice(request, error)
    if posted and "go" not in given:
        query = chosen.write(chosen.action)
        if len(query) <= MAX_QUERY:
            return SeeOther(f"{request.path}?{query}")
    if chosen.action == EXPORT:
        context = {
            "section": "tasks", "chosen": chosen, "query": urlencode(chosen.list_fields()),
            "chips": list_chips(list(chosen.pairs or ())),
        }  # fmt: skip
        return render_page(request, "dashboard/bulk_export.html", context)
    action = BULK_ACTIONS.get(chosen.action)
    if action is None or chosen.action not in DEEDS:
        return refuse_choice(request, InvalidInput("action", "none is chosen"))
    try:
        found = preview(action, selection)
        fleet = queries.load_fleet()
        form = make_form(action, selection, found, fleet, given if "go" in given else None)
        if posted and "go" in given and form.is_valid():
            return begin(request, chosen, selection, form, fleet)
        status = 422 if form.is_bound else 200
        return ask_first(request, chosen, selection, found, form, fleet, status)
    except InvalidInput as error:
        return refuse_choice(request, error, chosen)


def refuse_choice(
    request: PageRequest, error: InvalidInput, chosen: Chosen | None = None, *, back: str = ""
) -> HttpResponseBase:
    """What is wrong with what is asked for; nothing can be begun from here. `back` is another list
    than that of the tasks."""
    reason = error.reason[:1].upper() + error.reason[1:].rstrip(".") + "."
    context = {
        "section": "approvals" if back else "tasks",
        "problem": reason,
        "back": back or (chosen.find_list() if chosen else reverse("dashboard:tasks")),
    }
    return render_page(request, "dashboard/bulk_refused.html", context, status=422)


def make_form(
    action: BulkAction, selection: Selection, found: Preview, fleet: Fleet, given: Any = None
) -> BulkForm:
    """The form of the action. What was shown are the tasks that it carries, not those of now.
    Raises InvalidInput where it carries none."""
    seen, steps = found.seen, []
    if given is not None:
        seen = Seen.unpack(given.get("do-seen", ""))
    if action.name == "restart":
        steps = list_steps(action, selection, fleet)
    return FORMS.get(action.name, BulkForm)(given, seen=seen, steps=steps)


def list_steps(action: BulkAction, selection: Selection, fleet: Fleet) -> list[str]:
    """The steps of all their workflows, each name once."""
    names: dict[str, None] = {}
    for workflow, version in list_versions(action, selection):
        row = Task(workflow=workflow, workflow_version=version)
        names |= dict.fromkeys(shown.list_step_names(row, fleet))
    return list(names)


def begin(
    request: PageRequest, chosen: Chosen, selection: Selection, form: BulkForm, fleet: Fleet
) -> HttpResponseBase:
    """The operation is made, and its page shows how far it is."""
    try:
        row, _ = make_operation(
            chosen.action, selection, actor=request.actor, arguments=form.read_arguments(),
            reason=form.read_reason(), key=form.cleaned_data["token"],
            seen=Seen.unpack(form.cleaned_data["seen"]),
        )  # fmt: skip
    except LedgerError as error:
        audit_error(request, error)
        return refuse_form(request, chosen, selection, form, fleet, error)
    path = reverse("dashboard:bulk", args=[row.pk])
    return SeeOther(f"{path}?{urlencode({'back': chosen.back})}" if chosen.back else path)


def refuse_form(
    request: PageRequest, chosen: Chosen, selection: Selection, form: BulkForm, fleet: Fleet,
    error: LedgerError,
) -> HttpResponseBase:  # fmt: skip
    """The form as typed, with what is true now: the next try is for as many as are shown then."""
    action = BULK_ACTIONS[chosen.action]
    found = preview(action, selection)
    now = {"do-seen": found.seen.pack(), "do-typed": ""}
    fresh = make_form(action, selection, found, fleet, {**form.data.dict(), **now})  # type: ignore[attr-defined]
    fresh.errors.clear()
    field = error.field.split(".")[-1]
    known = field if field in fresh.fields else None
    fresh.add_error(known, getattr(error, "reason", str(error)))
    return ask_first(request, chosen, selection, found, fresh, fleet, error.status)


def ask_first(
    request: PageRequest, chosen: Chosen, selection: Selection, found: Preview, form: BulkForm,
    fleet: Fleet, status: int,
) -> HttpResponseBase:  # fmt: skip
    """The page with the form and what it would be done to."""
    action, deed = BULK_ACTIONS[chosen.action], DEEDS[chosen.action]
    page = list_chosen(action, selection, fleet, cursor=request.GET.get("cursor", ""))
    now = read_server_time()
    context: dict[str, Any] = {
        "section": "tasks",
        "chosen": chosen,
        "fields": [("action", chosen.action), *chosen.list_fields()],
        "deed": deed,
        "title": deed.name(found.applies),
        "found": found,
        "counts": [(LOOKS[name], number) for name, number in found.count_statuses().items()],
        "left_out": list(found.count_reasons().items()),
        "form": form,
        "effects": bulk.list_effects(chosen.action, found, sum_used(action, selection)),
        "rows": [shown.show_row(task, now) for task in page.items],
        "later": bool(request.GET.get("cursor")),
        "here": chosen.write(chosen.action),
        "older": chosen.write(chosen.action, cursor=page.next_cursor) if page.next_cursor else "",
        "tabs": [(name, one, chosen.write(name)) for name, one in DEEDS.items()],
        "chips": list_chips(list(chosen.pairs or ())),
        "back": chosen.find_list(),
        "no_worker": not fleet.live,
    }
    return render_page(request, "dashboard/bulk_new.html", context, status=status)


@require_safe
@allow(READ)
def show_bulk(request: PageRequest, bulk_id: UUID) -> HttpResponseBase:
    """One operation; for a poll the part that changes."""
    operation = show_operation(bulk_id)
    outcome = request.GET.get("outcome", "")
    outcome = outcome if outcome in OUTCOMES else ""
    cursor = request.GET.get("cursor", "")
    alive = operation["finished_at"] is not None or queries.list_live_workers().exists()
    tag = make_tag(operation["status"], operation["counts"], alive)
    if unchanged := find_unchanged(request, tag):
        return unchanged
    page = list_items(bulk_id, outcome=outcome, cursor=cursor)
    back = read_chosen(request.GET).back
    kept = {"back": back} if back else {}
    pairs = operation["selection"].get("filter")
    said = [row["why"] for row in page.items]
    called = shown.name_actors(
        {operation["actor"], operation["stopped_by"] or "system", *bulk.find_people(said)}
    )
    context: dict[str, Any] = {
        "section": "bulk",
        "operation": show_one(operation, called),
        "alive": alive,
        "chips": list_chips([tuple(pair) for pair in pairs or ()]),
        "by_filter": pairs is not None,
        "rows": [row | {"look": OUTCOMES[row["outcome"]], "seen": LOOKS.get(row["status_seen"]),
                        "why": bulk.write_names(row["why"], called)} for row in page.items],
        "tabs": list_tabs(operation, outcome, kept),
        "here": urlencode({"outcome": outcome, **kept} if outcome else kept),
        "poll": urlencode({"outcome": outcome, "cursor": cursor, **kept}),
        "older": urlencode({"outcome": outcome, "cursor": page.next_cursor, **kept})
        if page.next_cursor else "",
        "later": bool(cursor),
        "back": back or find_list(operation),
        "may_stop": name_scope(operation["action"]) in request.scopes,
        "tag": tag,
    }  # fmt: skip
    return render_page(request, "dashboard/bulk.html", context, part="bulk", tag=tag)


def find_list(operation: dict[str, Any]) -> str:
    """Where what an operation is for was chosen."""
    if "approvals" in operation["selection"]:
        return reverse("dashboard:approvals")
    return bulk.link_list(operation["selection"].get("filter") or ())


def name_scope(action: str) -> str:
    """Who may begin and stop it."""
    return APPROVE if action in ANSWERS else OPERATE


def make_tag(*seen: Any) -> str:
    """Names what a page shows."""
    return hashlib.sha256(repr(seen).encode()).hexdigest()[:16]


def show_one(operation: dict[str, Any], called: dict[str, str]) -> dict[str, Any]:
    """An operation with its look, its name, who began and stopped it, and how far it is."""
    counts, total = operation["counts"], operation["total"]
    over = total - counts["pending"]
    begun = total - counts["skipped"]
    return operation | {
        "look": OPERATIONS[operation["status"]],
        "name": bulk.name_deed(operation["action"], begun),
        "by": called[operation["actor"]],
        "stopper": called.get(operation["stopped_by"] or "", ""),
        "given": bulk.list_arguments(operation["action"], operation["arguments"]),
        "percent": 100 * over / total if total else 100.0,
        "over": over,
        "open": operation["finished_at"] is None,
    }


def list_tabs(operation: dict[str, Any], chosen: str, kept: dict[str, str]) -> list[dict[str, Any]]:
    """All, and one for each outcome that there is; that which failed always."""
    tabs = [{"label": "All", "count": operation["total"], "name": ""}]
    tabs += [
        {"label": look.label, "count": operation["counts"][name], "name": name}
        for name, look in OUTCOMES.items()
        if operation["counts"][name] or name in {"refused", chosen}
    ]
    return [
        tab | {"current": tab["name"] == chosen,
               "query": urlencode({"outcome": tab["name"], **kept})}
        for tab in tabs
    ]  # fmt: skip


@require_POST
@allow(APPROVE)
def stop_bulk(request: PageRequest, bulk_id: UUID) -> HttpResponseBase:
    """What is done stays; the rest is not begun."""
    needed = name_scope(find_operation(bulk_id).action)
    if needed not in request.scopes:
        return refuse_page(request, needed)
    row = stop_operation(bulk_id, actor=request.actor)
    if row.status == "done":
        messages.success(request, "It was done before it could be stopped.")
    query = request.GET.urlencode()
    path = reverse("dashboard:bulk", args=[bulk_id])
    return SeeOther(f"{path}?{query}" if query else path)


@require_safe
@allow(READ)
def list_bulk(request: PageRequest) -> HttpResponseBase:
    """The operations, newest first."""
    cursor = request.GET.get("cursor", "")
    try:
        page = list_operations(cursor=cursor)
    except InvalidInput:
        page, cursor = list_operations(), ""
    tag = make_tag([(one["id"], one["status"], one["counts"]) for one in page.items])
    if unchanged := find_unchanged(request, tag):
        return unchanged
    called = shown.name_actors({one["actor"] for one in page.items})
    context: dict[str, Any] = {
        "section": "bulk",
        "rows": [show_one(one, called) for one in page.items],
        "cursor": cursor,
        "older": page.next_cursor,
        "tag": tag,
    }
    return render_page(request, "dashboard/bulks.html", context, part="bulks", tag=tag)
