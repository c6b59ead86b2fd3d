"""The workflows that this process or a live worker knows, and the form that starts one."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.http import Http404, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from dashboard import flows
from dashboard.access import ROLE_NAMES, PageRequest, allow
from dashboard.htmx import render_page
from dashboard.start import PREFIX, StartForm, make_token
from ledger import queries, sql
from ledger.access import READ, SUBMIT
from ledger.api.edge import audit_error
from ledger.errors import IdempotencyConflict, InvalidInput, LedgerError, UnknownWorkflow
from ledger.models import Task
from ledger.queries.estimates import RUNS_READ
from ledger.queries.runs import sample_runs
from ledger.transitions.submit import submit_task
from ledger.workflows import Workflow


class SeeOther(HttpResponseRedirect):
    """303: what was posted is done; look there."""

    status_code = 303


@require_safe
@allow(READ)
def show_workflows(request: PageRequest) -> HttpResponseBase:
    """Every version that is known, with what its tasks did in the last days."""
    fleet = queries.load_fleet()
    known, unfinished = queries.list_workflows(fleet), queries.list_unfinished()
    ended = queries.list_ended(flows.DAYS * 86_400.0)
    context = {
        "section": "workflows",
        "known": flows.list_versions(known, ended, unfinished, fleet),
        "orphans": flows.list_orphans(known, unfinished),
        "sampled": len(ended) if len(ended) >= queries.COUNT_CAP else 0,
        "days": flows.DAYS,
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
    checks = request.POST.get("do") == "check"
    return check_start(request, workflow) if checks else start_task(request, workflow)


def check_start(request: PageRequest, workflow: Workflow) -> HttpResponseBase:
    """The dry run: everything that starting it would look at, and then nothing of it is kept.

    A chosen file is not stored, so only its name and that it is there are looked at.
    """
    form = StartForm(request.POST.dict(), request.FILES, workflow=workflow)
    if not form.is_valid():
        return render_workflow(request, workflow, form, 422)
    try:
        with sql.atomic():
            task, made = submit_form(request, workflow, form, {})
            transaction.set_rollback(True)
    except LedgerError as error:
        note_refusal(form, error)
        return render_workflow(request, workflow, form, error.status)
    return render_workflow(request, workflow, form, checked={"task": task, "made": made})


def submit_form(
    request: PageRequest, workflow: Workflow, form: StartForm, stored: dict[str, str]
) -> tuple[Task, bool]:
    """The task of a form that is valid, and whether it is new. Raises what the ledger refuses."""
    given = form.cleaned_data
    return submit_task(
        workflow=workflow,
        input=form.collect_input(stored),
        actor=request.actor,
        version=workflow.version,
        key=given["key"] or f"form:{given['token']}",
        title=given["title"],
        lane=given["lane"],
        priority=given["priority"],
        tags=form.list_tags(),
    )


def start_task(request: PageRequest, workflow: Workflow) -> HttpResponseBase:
    """Submit what was typed, or say at each field what is wrong with it."""
    form = StartForm(request.POST.dict(), request.FILES, workflow=workflow)
    if not form.is_valid():
        return render_workflow(request, workflow, form, 422)
    try:
        stored = form.store_uploads(str(request.actor))
        task, _ = submit_form(request, workflow, form, stored)
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
    request: PageRequest,
    workflow: Workflow,
    form: StartForm,
    status: int = 200,
    checked: dict[str, Any] | None = None,
) -> HttpResponse:
    """The page of one version; `checked` is what a dry run found."""
    fleet, unfinished = queries.load_fleet(), queries.list_unfinished()
    known = [row for row in queries.list_workflows(fleet) if row["name"] == workflow.name]
    under_way = flows.count_on_versions(unfinished, workflow.name)
    runs = sample_runs(workflow.name, workflow.version)
    context: dict[str, Any] = {
        "section": "workflows",
        "workflow": workflow,
        "known": [row | {"under_way": under_way.get(row["version"], 0)} for row in known],
        "active": flows.find_active(workflow.name, fleet),
        "workers": sum(row["workers"] for row in known if row["version"] == workflow.version),
        "bounds": flows.describe_bounds(workflow),
        "policies": flows.list_policies(workflow),
        "runs": runs,
        "steps": flows.show_steps(workflow, runs),
        "questions": flows.show_questions(runs),
        "looked": RUNS_READ,
        "form": form,
        "checked": checked,
        "may_start": SUBMIT in request.scopes,
        "role": ROLE_NAMES[SUBMIT],
    }
    return render_page(request, "dashboard/workflow.html", context, status=status)
