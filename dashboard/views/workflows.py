"""The workflows that this process or a live worker knows, and the form that starts one."""

from __future__ import annotations

from typing import Any

from django.http import Http404, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from dashboard import charts, words
from dashboard.access import ROLE_NAMES, PageRequest, allow
from dashboard.htmx import render_page
from dashboard.overview import list_workflow_rows
from dashboard.start import PREFIX, StartForm, make_token
from dashboard.templatetags.longwatch import read_server_time
from ledger import conf, queries
from ledger.access import READ, SUBMIT
from ledger.api.edge import audit_error
from ledger.errors import IdempotencyConflict, InvalidInput, LedgerError, UnknownWorkflow
from ledger.transitions.submit import submit_task
from ledger.workflows import Workflow


class SeeOther(HttpResponseRedirect):
    """303: what was posted is done; look there."""

    status_code = 303


@require_safe
@allow(READ)
def show_workflows(request: PageRequest) -> HttpResponseBase:
    """Every version that is known, with what its tasks did in the last 24 hours."""
    span = charts.make_span("24h", read_server_time())
    rows = list_workflow_rows(
        queries.list_ended(span.seconds), queries.list_unfinished(), span, limit=1_000
    )
    did = {(row["name"], row["version"]): row for row in rows}
    known = [
        row | {"did": did.pop((row["name"], row["version"]), None)}
        for row in queries.list_workflows()
    ]
    context = {
        "section": "workflows",
        "known": known,
        "orphans": [row for row in did.values() if row["unfinished"]],
        "may_start": SUBMIT in request.scopes,
    }
    return render_page(request, "dashboard/workflows.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@allow(READ)
def show_workflow(request: PageRequest, name: str) -> HttpResponseBase:
    """One version: steps, bounds, the start form. A POST starts a task."""
    version = request.POST.get("version") or request.GET.get("version") or None
    try:
        workflow = queries.find_workflow(name, version)
    except UnknownWorkflow as error:
        raise Http404(str(error)) from None
    if request.method != "POST":
        return render_workflow(request, workflow, StartForm(workflow=workflow))
    if SUBMIT not in request.scopes:
        context = {"needed": ROLE_NAMES[SUBMIT]}
        return render(request, "dashboard/forbidden.html", context, status=403)
    return start_task(request, workflow)


def start_task(request: PageRequest, workflow: Workflow) -> HttpResponseBase:
    """Submit what was typed, or say at each field what is wrong with it."""
    form = StartForm(request.POST.dict(), request.FILES, workflow=workflow)
    if not form.is_valid():
        return render_workflow(request, workflow, form, 422)
    given = form.cleaned_data
    try:
        task, _ = submit_task(
            workflow=workflow,
            input=form.collect_input(form.store_uploads(str(request.actor))),
            actor=request.actor,
            version=workflow.version,
            key=given["key"] or f"form:{given['token']}",
            title=given["title"],
            lane=given["lane"],
            priority=given["priority"],
            tags=form.list_tags(),
        )
    except LedgerError as error:
        audit_error(request, error)
        note_refusal(form, error)
        return render_workflow(request, workflow, form, error.status)
    return SeeOther(reverse("dashboard:task", args=[task.pk]))


def note_refusal(form: StartForm, error: LedgerError) -> None:
    """What the ledger refused, at the field that it names."""
    if isinstance(error, IdempotencyConflict) and not form.cleaned_data["key"]:
        # The page was gone back to: what is typed now is another task, so it gets its own token.
        form.data = dict(form.data) | {"token": make_token()}
        form.add_error(
            None, "A task was started from this form with other values. Start again for a second."
        )
        return
    if not isinstance(error, InvalidInput):
        form.add_error("key" if isinstance(error, IdempotencyConflict) else None, str(error))
        return
    parts = error.field.split(".")
    field = PREFIX + parts[1] if parts[0] == "input" and len(parts) > 1 else parts[0].split("[")[0]
    form.add_error(field if field in form.fields else None, error.reason)


def render_workflow(
    request: PageRequest, workflow: Workflow, form: StartForm, status: int = 200
) -> HttpResponse:
    """The page of one version."""
    known = [row for row in queries.list_workflows() if row["name"] == workflow.name]
    context: dict[str, Any] = {
        "section": "workflows",
        "workflow": workflow,
        "known": known,
        "workers": sum(row["workers"] for row in known if row["version"] == workflow.version),
        "bounds": describe_bounds(workflow),
        "form": form,
        "may_start": SUBMIT in request.scopes,
        "role": ROLE_NAMES[SUBMIT],
    }
    return render_page(request, "dashboard/workflow.html", context, status=status)


def describe_bounds(workflow: Workflow) -> dict[str, Any]:
    """The limits of a task of this workflow: its own, else the site's."""
    site, own = conf.load(), workflow.limits
    cost = conf.parse_money(site.limit_cost) if own.cost_nano is None else own.cost_nano
    return {
        "units": own.units or site.limit_units,
        "tokens": own.tokens or site.limit_tokens,
        "cost": words.say_money(cost),
        "wall": own.wall or site.wall_seconds,
        "repairs": site.max_repairs if workflow.max_repairs is None else workflow.max_repairs,
        "reclaims": site.max_reclaims,
    }
