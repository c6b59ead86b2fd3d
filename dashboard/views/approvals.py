"""Questions to people: the queue, one question with what it would change, the answer, the undo."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from dashboard import changes, shown, words
from dashboard.access import PageRequest, allow
from dashboard.forms import AnswerForm
from dashboard.htmx import find_unchanged, render_page, wants_part
from dashboard.templatetags.longwatch import read_server_time
from ledger import conf, queries
from ledger.access import APPROVE, READ
from ledger.errors import ApprovalClosed, InvalidInput, LedgerError
from ledger.models import Approval
from ledger.models.approvals import OPEN
from ledger.transitions import approvals

TEMPLATE = "dashboard/approval.html"


@require_safe
@allow(READ)
def show_approvals(request: PageRequest) -> HttpResponseBase:
    """What waits for an answer, first what expires first, and what was decided last."""
    context = load_queue(request)
    return find_unchanged(request, context["queue_tag"]) or render_page(
        request,
        "dashboard/approvals.html",
        context,
        part="approval-queue",
        tag=context["queue_tag"],
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
    return render_question(request, row)


@require_safe
@allow(READ)
def show_file(request: PageRequest, approval_id: UUID, index: int) -> HttpResponseBase:
    """The diff of one file of a question that is too long to be shown at once."""
    row = queries.find_approval(approval_id)
    files = changes.list_files(row.payload, everything=True)
    if index >= len(files):
        raise Http404
    context = {"section": "approvals", "approval": row, "file": files[index]}
    return render_page(request, "dashboard/file.html", context, part="file-diff")


@require_POST
@allow(APPROVE)
def answer_approval(request: PageRequest, approval_id: UUID) -> HttpResponseBase:
    """Store an answer. What can't be undone is asked twice; the loser of a race learns who won."""
    row = queries.find_approval(approval_id)
    form = AnswerForm(request.POST)
    if not form.is_valid():
        return render_question(request, row, form=form, status=422)
    given = form.cleaned_data
    final = approvals.is_irrevocable(row)
    if given["decision"] == "approve" and final and not given["confirmed"]:
        return ask_again(request, row, given)
    try:
        approvals.decide_approval(
            row.pk,
            decision=given["decision"],
            actor=request.actor,
            digest=given["digest"],
            values=given["values"],
            comment=given["comment"],
            undo_seconds=conf.load().undo_seconds,
        )
    except LedgerError as error:
        return refuse_answer(request, approval_id, form, error)
    return render_after(request, approval_id, "Your answer is stored.")


@require_POST
@allow(APPROVE)
def undo_answer(request: PageRequest, approval_id: UUID) -> HttpResponseBase:
    """Take an answer back while its effect is still to come."""
    try:
        approvals.undo_decision(approval_id, actor=request.actor)
    except LedgerError as error:
        row = queries.find_approval(approval_id)
        notice = explain_refusal(error)
        return render_question(request, row, notice=notice, status=error.status)
    return render_after(request, approval_id, "Undone. The question is open again.")


def render_question(
    request: PageRequest,
    row: Approval,
    *,
    form: AnswerForm | None = None,
    notice: str = "",
    status: int = 200,
) -> HttpResponse:
    """The page, or for htmx the decision alone with whatever was typed."""
    context = load_state(request, row) | load_queue(request)
    context |= {
        "form": form or context["form"],
        "notice": notice,
        "files": changes.list_files(row.payload),
        "rest": changes.list_rest(row.payload),
    }
    return render_page(
        request, TEMPLATE, context, part="decision", status=status, retarget="#decision"
    )


def render_after(request: PageRequest, approval_id: UUID, sentence: str) -> HttpResponseBase:
    """After an answer or an undo: every changed part for htmx, else the page anew."""
    if not wants_part(request):
        messages.success(request, sentence)
        return HttpResponseRedirect(reverse("dashboard:approval", args=[approval_id]))
    row = queries.find_approval(approval_id)
    context = load_state(request, row) | load_queue(request)
    return render_page(
        request, TEMPLATE, context, part="decided", retarget="#decision", events=("done",)
    )


def ask_again(request: PageRequest, row: Approval, given: dict[str, Any]) -> HttpResponse:
    """The second question before what can't be undone: a dialog, without a script a page."""
    context: dict[str, Any] = {"section": "approvals", "approval": queries.show_approval(row)}
    context |= {"given": given, "values_text": request.POST.get("values", "")}
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


def load_queue(request: PageRequest) -> dict[str, Any]:
    """The open questions, those that this person may not answer apart, and the last answers."""
    waiting, decided = queries.list_waiting(), queries.list_decided(10)
    me = str(request.actor)
    own = [one for one in waiting if one["task__submitted_by"] == me and not one["self_approval"]]
    name_deciders(decided)
    seen = [(one["id"], one.get("status"), one.get("applied_at")) for one in waiting + decided]
    return {
        "section": "approvals",
        "yours": [one for one in waiting if one not in own],
        "own": own,
        "decided": decided,
        "queue_tag": hashlib.sha256(repr(seen).encode()).hexdigest()[:16],
    }


def name_deciders(rows: Iterable[dict[str, Any]]) -> None:
    """Put the name of who decided into each row, as `by`."""
    found = [row for row in rows if row["decided_by"]]
    called = shown.name_actors(row["decided_by"] for row in found)
    for row in found:
        row["by"] = called[row["decided_by"]]


def load_state(request: PageRequest, row: Approval) -> dict[str, Any]:
    """The question, who voted and decided, and what this person can do about it."""
    shown_row = queries.show_approval(row)
    actors = {row.task.submitted_by, *(vote["by"] for vote in shown_row["votes"])}
    actors |= {row.decided_by} if row.decided_by else set()
    called = shown.name_actors(actors)
    me, answered = str(request.actor), row.status in approvals.DECISIONS.values()
    obstacle = ""
    if APPROVE not in request.scopes:
        obstacle = "It takes the role approver to answer."
    elif row.task.submitted_by == me and not row.self_approval:
        obstacle = "You submitted this task; somebody else answers."
    elif any(vote["by"] == me for vote in shown_row["votes"]) and row.status == OPEN:
        obstacle = "You have voted; it needs more votes."
    return {
        "approval": shown_row,
        "row": row,
        "open": row.status == OPEN,
        "undoable": answered and row.applied_at is None,
        "settled": row.status != OPEN and not (answered and row.applied_at is None),
        "final": approvals.is_irrevocable(row),
        "form": AnswerForm(initial={"digest": row.digest}),
        "notice": "",
        "tag": make_state_tag(row),
        "submitter": called[row.task.submitted_by],
        "decider": called.get(row.decided_by, ""),
        "votes": [vote | {"name": called[vote["by"]]} for vote in shown_row["votes"]],
        "obstacle": obstacle,
        "expired": row.status == OPEN and row.expires_at < read_server_time(),
    }


def make_state_tag(row: Approval) -> str:
    """The polling tag of a question: its status, votes and whether its answer took effect."""
    votes = len(row.votes.all())
    return f"{row.status}.{votes}.{int(row.applied_at is not None)}.{row.task.revision}"
