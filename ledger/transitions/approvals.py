"""Answers of people: decide, undo, apply, void."""

from __future__ import annotations

import datetime as dt
from typing import Any
from uuid import UUID

from django.db.models import Q

from ledger import canonical, states, uploads
from ledger.access import is_assigned
from ledger.auditing import audit_refusal
from ledger.errors import (
    ApprovalClosed,
    DigestMismatch,
    InvalidInput,
    NotAllowed,
    UnparsableInput,
    Unserialisable,
    WrongStatus,
)
from ledger.events import SYSTEM, Actor, record_event
from ledger.models import Approval, ApprovalVote, Task
from ledger.models import approvals as kinds
from ledger.queries import require_payload
from ledger.tokens import find_principal
from ledger.transitions.moves import lock_if_free, lock_task, move_task, update_row
from ledger.transitions.overdue import escalate_question, find_request
from ledger.transitions.standing import find_submitters, find_voted
from ledger.transitions.values import list_misfits
from ledger.transitions.verdicts import act_on

DECISIONS = {"approve": kinds.APPROVED, "reject": kinds.REJECTED, "send_back": kinds.SENT_BACK}
RISKY = ("high",)


def void_open_approval(task: Task, actor: Actor, now: dt.datetime, why: str) -> None:
    """Close the open question of a locked task, and one that is decided but not yet applied."""
    pending = Approval.objects.filter(task=task).filter(
        Q(status=kinds.OPEN) | Q(applied_at__isnull=True, status__in=list(DECISIONS.values()))
    )
    for request in pending.select_for_update():
        Approval.objects.filter(pk=request.pk).update(
            status=kinds.VOID, decided_at=now, decided_by=str(actor), comment=why
        )
        votes = ApprovalVote.objects.filter(approval=request, voided_at__isnull=True)
        votes.update(voided_at=now)
        record_event(task, "approval_voided", actor, now, approval=str(request.id), why=why)


@audit_refusal("approval_voted", "approval")
def decide_approval(
    approval_id: UUID | str,
    *,
    decision: str,
    actor: Actor,
    digest: str,
    values: Any = None,
    comment: str = "",
    undo_seconds: float = 0.0,
) -> Approval:
    """waiting -> waiting (decided): a person's vote; the last one needed decides.

    With `undo_seconds` the task acts on it only then (never for high risk, money or an outside
    effect: there it acts at once). Raises ApprovalClosed telling who decided what, DigestMismatch,
    NotAllowed, InvalidInput, NotFound. The deadline is read after the row lock, so it holds with
    every sweeper stopped: those whose time is over are refused, those who are asked next may
    answer at once.
    """
    request = find_request(approval_id)
    uploads.keep_named(values)
    with lock_task(request.task_id) as (task, now):
        request = Approval.objects.select_for_update().get(pk=request.pk)
        if request.status != kinds.OPEN:
            raise ApprovalClosed(request.status, request.decided_by)
        if request.expires_at <= now and not escalate_question(request, task, now):
            raise ApprovalClosed(kinds.EXPIRED)
        _check_answer(request, task, decision, actor, digest, values, comment)
        ApprovalVote.objects.create(
            approval=request, by=str(actor), decision=decision, values=values,
            comment=comment, at=now,
        )  # fmt: skip
        record_event(task, "approval_voted", actor, now, approval=str(request.id),
                     decision=decision, comment=comment)  # fmt: skip
        votes = ApprovalVote.objects.filter(
            approval=request, decision="approve", voided_at__isnull=True
        ).count()
        if decision == "approve" and votes < request.votes_needed:
            update_row(task, {"updated_at": now})
            return request
        undo = 0.0 if is_irrevocable(request) else undo_seconds
        if decision == "approve" and request.form and values is None:
            values = request.proposal
        _decide(request, task, now, decision, actor, values, comment, undo)
        return request


def is_irrevocable(request: Approval) -> bool:
    """True when there is no undo window: high risk, money, or an effect outside."""
    return request.risk in RISKY or request.money or request.outside_effect


def _decide(
    request: Approval, task: Task, now: dt.datetime, decision: str, actor: Actor,
    values: Any, comment: str, undo: float,
) -> None:  # fmt: skip
    request.status, request.decision, request.decided_at = DECISIONS[decision], decision, now
    request.values, request.comment, request.decided_by = values, comment, str(actor)
    Approval.objects.filter(pk=request.pk, status=kinds.OPEN).update(
        status=request.status, decision=decision, values=values, comment=comment,
        decided_by=str(actor), decided_at=now,
    )  # fmt: skip
    acts_at = now + dt.timedelta(seconds=undo)
    record_event(task, "approval_decided", actor, now, approval=str(request.id), decision=decision,
                 comment=comment, values=values,
                 until=acts_at.isoformat() if undo > 0 else None)  # fmt: skip
    if undo > 0:
        return move_task(task, now, "decide_approval", states.WAITING, reason=states.DECIDED,
                         available_at=acts_at)  # fmt: skip
    act_on(request, task, now, "apply_decision")


@audit_refusal("approval_undone", "approval")
def undo_decision(approval_id: UUID | str, *, actor: Actor) -> None:
    """waiting (decided) -> waiting (approval): only before the decision takes effect.

    By anybody who may answer. Raises ApprovalClosed, NotAllowed, NotFound.
    """
    request = find_request(approval_id)
    with lock_task(request.task_id) as (task, now):
        request = Approval.objects.select_for_update().get(pk=request.pk)
        _check_person(request, task, actor)
        late = request.applied_at is not None or task.available_at <= now
        if task.status_reason != states.DECIDED or late or request.status == kinds.VOID:
            raise ApprovalClosed(request.status, request.decided_by)
        Approval.objects.filter(pk=request.pk).update(
            status=kinds.OPEN, decision="", values=None, comment="", decided_by="",
            decided_at=None,
        )  # fmt: skip
        ApprovalVote.objects.filter(approval=request, voided_at__isnull=True).update(voided_at=now)
        record_event(task, "approval_undone", actor, now, approval=str(request.id))
        move_task(task, now, "undo_decision", states.WAITING, reason=states.APPROVAL)


def apply_decision(task_id: UUID) -> bool:
    """waiting (decided) -> what the decision leads to, once its undo window is over."""
    with lock_if_free(task_id) as found:
        if found is None:
            return False
        task, now = found
        if task.status != states.WAITING or task.status_reason != states.DECIDED:
            return False
        if task.available_at > now:
            return False
        request = (
            Approval.objects.select_for_update()
            .filter(task=task, applied_at__isnull=True, status__in=list(DECISIONS.values()))
            .latest("decided_at")
        )
        record_event(task, "promoted", SYSTEM, now, reason=states.DECIDED, approval=str(request.id))
        act_on(request, task, now, "apply_decision")
        return True


def _check_answer(
    request: Approval, task: Task, decision: str, actor: Actor, digest: str, values: Any,
    comment: str,
) -> None:  # fmt: skip
    require_payload()  # an answer is about what was shown
    if task.status != states.WAITING or task.status_reason != states.APPROVAL:
        raise WrongStatus("answer for", task.status)
    if decision not in DECISIONS:
        raise InvalidInput("decision", f"takes one of {', '.join(DECISIONS)}")
    if decision == "send_back" and not request.send_back_to:
        raise InvalidInput("decision", "this request can't be sent back; approve or reject it")
    if digest != request.digest:
        raise DigestMismatch
    _check_person(request, task, actor)
    if find_voted(str(actor), [request.pk]):
        raise ApprovalClosed("voted on", str(actor))
    for field, value in (("values", values), ("comment", comment)):
        try:
            canonical.check_json(value, field)
        except Unserialisable as error:
            raise UnparsableInput(error.path, error.why) from None
    if len(comment) > canonical.MAX_TEXT:
        raise InvalidInput("comment", f"is longer than {canonical.MAX_TEXT} characters")
    if decision == "approve" and request.form:
        # Without values the proposal stands, so it has to fit as well.
        for path, why in list_misfits(request.form, request.proposal if values is None else values):
            raise InvalidInput(".".join(["values", *(str(part) for part in path)]), why)


def _check_person(request: Approval, task: Task, actor: Actor) -> None:
    """Raise NotAllowed for somebody whom the question is not for."""
    if not is_assigned(str(actor), request.assignees):
        names = ", ".join(request.assignees or ())
        raise NotAllowed(f"This question is for {names}; ask one of them.")
    if request.self_approval:
        return
    submitters = find_submitters([(task.pk, task.parent_id, task.submitted_by)])
    if find_principal(str(actor)) == submitters[task.pk]:
        raise NotAllowed(
            "Nobody answers for what they submitted, themselves or by a token of theirs; another "
            "person or token may, or the workflow says self_approval=True."
        )
