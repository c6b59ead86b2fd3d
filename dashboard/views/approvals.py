"""Questions to people: the queue, one question with what it would change, the answer, the undo."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.db import DatabaseError, InterfaceError
from django.http import Http404, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from dashboard import changes, shown, words
from dashboard.access import PageRequest, allow
from dashboard.answers import AnswerForm
from dashboard.asked import count_missing, list_actors, load_context, load_state, make_state_tag
from dashboard.htmx import find_unchanged, make_redirect, render_page, wants_part
from dashboard.outcomes import say_outcomes
from dashboard.polling import skip_unwritten
from dashboard.queue import find_next, load_queue, name_query
from dashboard.rich_text import reveal_controls
from ledger import conf, queries
from ledger.access import APPROVE, READ
from ledger.errors import ApprovalClosed, InvalidInput, LedgerError
from ledger.ids import read_id
from ledger.models import Approval
from ledger.models.approvals import OPEN
from ledger.sql import is_outage
from ledger.transitions import approvals
from ledger.transitions.visits import note_look

TEMPLATE = "dashboard/approval.html"
UNREADABLE = (
    "A part of the change can't be opened, so it can't be approved; send it back or reject it."
)


@require_safe
@allow(READ)
@skip_unwritten()
def show_approvals(request: PageRequest) -> HttpResponseBase:
    """What waits for an answer, first what expires first, and what was decided last."""
    opened = read_id(request.GET.get("open", ""))
    context = load_queue(request, str(opened or ""))
    return find_unchanged(request, context["queue_tag"]) or render_queue(request, context)


def render_queue(request: PageRequest, context: dict[str, Any]) -> HttpResponse:
    """The page, or the queue alone."""
    shown.name_deciders(context["decided"])
    return render_page(
        request,
        "dashboard/approvals.html",
        context,
        part="approval-queue",
        tag=context["queue_tag"],
        status=422 if context["problems"] else 200,
    )


@require_safe
@allow(READ)
def show_approval(request: PageRequest, approval_id: UUID) -> HttpResponseBase:
    """One question in full; for a poll its state alone, so that no typed text is lost."""
    row = queries.find_approval(approval_id)
    tag = make_state_tag(row)
    if unchanged := find_unchanged(request, tag):
        return unchanged
    if wants_part(request):
        # Who has an open question on the page may be typing: their decision form stays.
        typing = request.headers.get("HX-PTag", "").startswith(f"{OPEN}.")
        part = "state" if typing else "state-and-decision"
        return render_page(request, TEMPLATE, load_state(request, row), part=part, tag=tag)
    response = render_question(request, row)
    note_shown(request, row)
    return response


def note_shown(request: PageRequest, row: Approval) -> None:
    """Remember that the person was shown it. Where nothing can be written now the page stands."""
    try:
        note_look(row.pk, request.actor)
    except (DatabaseError, InterfaceError) as error:
        if not is_outage(error):
            raise


@require_safe
@allow(READ)
def show_file(request: PageRequest, approval_id: UUID, index: int) -> HttpResponseBase:
    """The diff of one file that is too long to be shown at once; `?whole` is all of it as text."""
    row = queries.find_approval(approval_id)
    found = changes.read_changes(row.payload, row.attached, only=index)
    if index >= len(found.files):
        raise Http404
    file = found.files[index]
    if "whole" in request.GET:
        return HttpResponse(
            file.diff.encode("utf-8", "backslashreplace"),
            content_type="application/octet-stream",
            headers={
                "Content-Disposition": f'attachment; filename="{approval_id}-{index}.txt"',
                "X-Content-Type-Options": "nosniff",
            },
        )
    context = {"section": "approvals", "approval": row, "file": file, "changes": found}
    return render_page(request, "dashboard/file.html", context, part="file-diff")


@require_POST
@allow(APPROVE)
def answer_approval(request: PageRequest, approval_id: UUID) -> HttpResponseBase:
    """Store an answer. What can't be undone is asked twice; the loser of a race learns who won."""
    row = queries.find_approval(approval_id)
    form = AnswerForm(request.POST, asked=row)
    if not form.is_valid():
        return render_question(request, row, form=form, status=422)
    given = form.cleaned_data
    if given["decision"] == "approve":
        if changes.read_changes(row.payload, row.attached).hidden:
            return render_question(request, row, form=form, notice=UNREADABLE, status=422)
        if approvals.is_irrevocable(row) and not given["confirmed"]:
            return ask_again(request, row, form)
    try:
        approvals.decide_approval(
            row.pk,
            decision=given["decision"],
            actor=request.actor,
            digest=given["digest"],
            values=given.get("values"),
            comment=given["comment"],
            undo_seconds=conf.load().undo_seconds,
        )
    except LedgerError as error:
        return refuse_answer(request, approval_id, form, error)
    return go_on(request, approval_id)


@require_POST
@allow(APPROVE)
def undo_answer(request: PageRequest, approval_id: UUID) -> HttpResponseBase:
    """Take an answer back while its effect is still to come.

    The queue has this button too, and says by `open` which question is beside it, if any.
    """
    beside = request.POST.get("open", str(approval_id))
    in_queue = wants_part(request) and beside != str(approval_id)
    try:
        approvals.undo_decision(approval_id, actor=request.actor)
    except LedgerError as error:
        if in_queue:
            return render_queue(request, load_queue(request, beside))
        row = queries.find_approval(approval_id)
        notice = explain_refusal(error)
        return render_question(request, row, notice=notice, status=error.status)
    if in_queue:
        return render_queue(request, load_queue(request, beside))
    return render_after(request, approval_id, "Undone. The question is open again.")


def render_question(
    request: PageRequest,
    row: Approval,
    *,
    form: AnswerForm | None = None,
    notice: str = "",
    status: int = 200,
) -> HttpResponse:
    """The page, or for htmx the decision and the settings with whatever was typed."""
    context = load_context(request, row) | load_queue(request, str(row.pk))
    called = shown.name_deciders([*context["asked"], *context["decided"]], list_actors(row))
    context |= load_state(request, row, called)
    context |= {"form": form or context["form"], "notice": notice}
    return render_page(
        request, TEMPLATE, context, part="refused", status=status, retarget="#decision"
    )


def go_on(request: PageRequest, approval_id: UUID) -> HttpResponseBase:
    """After an answer: the next question of this person, if there is one."""
    row = queries.find_approval(approval_id)
    said = words.ANSWERS[row.status] if row.status != OPEN else "Your vote is stored"
    following = find_next(request, row.expires_at, row.pk)
    if following is None:
        return render_after(request, approval_id, f"{said}: {row.subject}")
    undo = (
        "" if row.applied_at or row.status == OPEN else " \N{EN DASH} it can be undone in the list"
    )
    messages.success(request, f"{said}: {reveal_controls(row.subject)}{undo}")
    path = reverse("dashboard:approval", args=[following])
    return make_redirect(request, f"{path}{name_query(request)}")


def render_after(request: PageRequest, approval_id: UUID, sentence: str) -> HttpResponseBase:
    """After an answer or an undo: every changed part for htmx, else the page anew."""
    if not wants_part(request):
        messages.success(request, sentence)
        path = reverse("dashboard:approval", args=[approval_id])
        return HttpResponseRedirect(f"{path}{name_query(request)}")
    row = queries.find_approval(approval_id)
    context = load_queue(request, str(approval_id))
    context |= load_state(request, row, shown.name_deciders(context["decided"], list_actors(row)))
    return render_page(
        request, TEMPLATE, context, part="decided", retarget="#decision", events=("done",)
    )


def ask_again(request: PageRequest, row: Approval, form: AnswerForm) -> HttpResponse:
    """The second question before what can't be undone: a dialog, without a script a page."""
    found = changes.read_changes(row.payload, row.attached)
    context = {
        "section": "approvals",
        "approval": queries.show_approval(row),
        "row": row,
        "outcomes": say_outcomes(row),
        "missing": count_missing(row),
        "query": name_query(request),
        "given": form.cleaned_data,
        "carried": form.list_carried(),
        "edited": sum(one["edited"] for one in form.list_settings()),
        "files": len(found.files),
        "unseen": len(found.files) - len(form.seen),
    }
    response = render_page(request, "dashboard/confirm.html", context, part="confirm-form")
    if wants_part(request):
        response["HX-Retarget"], response["HX-Reswap"] = "#dialog", "innerHTML"
    return response


def refuse_answer(
    request: PageRequest, approval_id: UUID, form: AnswerForm, error: LedgerError
) -> HttpResponse:
    """Say what is true now, beside what was typed. A new digest is never put in its place."""
    row = queries.find_approval(approval_id)
    return render_question(
        request, row, form=form, notice=explain_refusal(error), status=error.status
    )


def explain_refusal(error: LedgerError) -> str:
    """Why an answer was refused; who decided what stands beside it, by name."""
    if isinstance(error, ApprovalClosed):
        return f"This request is already {words.ANSWERS.get(error.current, error.current).lower()}."
    return error.reason if isinstance(error, InvalidInput) else str(error)
