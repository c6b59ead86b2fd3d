"""The actions of an operator: a form (GET) where something is asked first, and the deed (POST)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpResponseBase, HttpResponseRedirect
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_http_methods

from dashboard import shown
from dashboard.access import PageRequest, allow
from dashboard.actions import ACTIONS, EDIT, FORK, Action, name_position, take_action
from dashboard.effects import list_choices, list_effects
from dashboard.forms import ActionForm
from dashboard.htmx import make_redirect, render_page, wants_part
from dashboard.views.task import render_task
from dashboard.wish import read_wish
from ledger import queries
from ledger.access import OPERATE
from ledger.api.edge import audit_error
from ledger.errors import InvalidInput, LedgerError
from ledger.models import Task


@require_http_methods(["GET", "HEAD", "POST"])
@allow(OPERATE)
def act_on_task(request: PageRequest, task_id: UUID, name: str) -> HttpResponseBase:
    """Take the action `name`, or ask what it needs to know."""
    action, row = ACTIONS.get(name), queries.find_task(task_id)
    if action is None:
        raise Http404(name)
    posted = request.method == "POST"
    form = make_form(
        action, row, request.POST.dict() if posted else None, request.GET.get("unit", "")
    )
    if not posted:
        return ask_first(request, action, row, form, 200)
    if not form.is_valid():
        return ask_first(request, action, row, form, 422)
    values = form.read_values()
    try:
        result = take_action(action, row, request.actor, values, **read_shown(form))
    except LedgerError as error:
        audit_error(request, error)
        return refuse(request, action, task_id, form, error)
    back = read_back(request)
    if action is FORK:
        back = reverse("dashboard:task", args=[result[0].pk])
    if back:
        messages.success(request, action.done)
        return make_redirect(request, back)
    if wants_part(request):
        return render_task(request, task_id, notice=("is-ok", action.done), after_action=True)
    messages.success(request, action.done)
    # The output that was edited is superseded; what stands in its place is shown by itself.
    gone = {"unit": 0} if action is EDIT else {}
    query = read_wish(request).write(**gone)
    return HttpResponseRedirect(reverse("dashboard:task", args=[task_id]) + query)


def read_back(request: PageRequest) -> str:
    """The list that the action was taken from: a path of this site, else empty."""
    back = request.POST.get("back") or request.GET.get("back") or ""
    safe = back.startswith("/") and url_has_allowed_host_and_scheme(back, allowed_hosts=None)
    return back if safe else ""


def make_form(
    action: Action, row: Task, data: dict[str, Any] | None = None, unit: str = ""
) -> ActionForm:
    """The action's form; an action that asks nothing has one of hidden fields.

    `unit` is the number of the output that the page is about.
    """
    shown_now = {"revision": row.revision, "seen": name_position(row), "unit": unit}
    names = shown.list_step_names(row, queries.load_fleet())
    kind = action.form or ActionForm
    return kind(data, task=row, steps=names, initial=shown_now)


def read_shown(form: ActionForm) -> dict[str, Any]:
    """What the operator was shown: the revision and the position it stood for."""
    return {name: form.cleaned_data[name] for name in ("revision", "seen")}


def refuse(
    request: PageRequest, action: Action, task_id: UUID, form: ActionForm, error: LedgerError
) -> HttpResponseBase:
    """Say what is true now: the form as typed with fresh figures, or the task's fresh page."""
    if action.form is None:
        notice = ("is-fail", str(error))
        return render_task(request, task_id, status=error.status, notice=notice, after_action=True)
    row = queries.find_task(task_id)
    field = error.field.split(".")[-1] if isinstance(error, InvalidInput) else None
    form.add_error(
        field if field in form.fields else None,
        error.reason if isinstance(error, InvalidInput) else str(error),
    )
    # The typed text stays; the next try is about the task as it is shown now.
    form.data = dict(form.data) | {"revision": str(row.revision), "seen": name_position(row)}
    return ask_first(request, action, row, form, error.status)


def ask_first(
    request: PageRequest, action: Action, row: Task, form: ActionForm, status: int
) -> HttpResponseBase:
    """The form in a dialog, or as a page of its own."""
    now: Any = getattr(row, "read_at")  # noqa: B009  an annotation of find_task
    task = shown.show_row(queries.task_json(row, queries.load_fleet()), now)
    choices = list_choices(row, form.steps) if form.step_field else []
    context = {
        "section": "tasks",
        "task": task,
        "action": action,
        "form": form,
        "back": read_back(request),
        "query": read_wish(request).write(),
        "obstacle": action.find_obstacle(row) or getattr(form, "obstacle", ""),
        "choices": choices,
        "chooses": form[form.step_field] if form.step_field else None,
        "ended": not task["unfinished"],
        "unit": getattr(form, "unit", None),
        "effects": list_effects(action.name, row, shown.measure_wall(row, now)),
    }
    return render_page(request, "dashboard/action.html", context, part="action-form", status=status)
