"""Questions to people: ask, answer, undo, apply, expire. Waiting holds no lease and no worker."""

from __future__ import annotations

import datetime as dt
from typing import Any
from uuid import UUID

from django.db.models import Q

from ledger import canonical, conf, states
from ledger.access import is_assigned
from ledger.errors import (
    ApprovalClosed,
    DigestMismatch,
    InvalidInput,
    NotAllowed,
    NotFound,
    UnparsableInput,
    Unserialisable,
    WrongStatus,
)
from ledger.events import SYSTEM, Actor, record_event
from ledger.models import Approval, ApprovalVote, Task
from ledger.models import approvals as kinds
from ledger.sql import Claimed, Unit
from ledger.transitions.holder import leave_running, store_unit, supersede_outputs
from ledger.transitions.moves import (
    NO_REPORT,
    complete_task,
    lock_held,
    lock_if_free,
    lock_task,
    make_error,
    move_task,
    requeue_task,
    update_row,
)
from ledger.transitions.values import list_misfits
from ledger.workflows import AskApproval, Workflow

DECISIONS = {"approve": kinds.APPROVED, "reject": kinds.REJECTED, "send_back": kinds.SENT_BACK}
RISKY = ("high",)


def ask_approval(
    held: Claimed, unit: Unit, ask: AskApproval, workflow: Workflow
) -> Approval | None:
    """running -> waiting (approval): the output, the question and the release are one commit.

    Closes an open question of the task. The task stays at the step that asks until the decision
    is applied. Returns None when the task was asked to cancel meanwhile.
    """
    with lock_held(held.lease, "approval request") as (task, now):
        fields = store_unit(task, held, unit, now)
        here = {"step_index": task.step_index, "step_name": task.step_name, "turn": task.turn}
        fields |= here
        void_open_approval(task, Actor("worker", held.owner), now, "asked again")
        if task.cancel_requested:
            leave_running(task, held, now, "ask_approval", states.CANCELLED,
                   states.CANCELLED_BY_OPERATOR, 0, fields)  # fmt: skip
            return None
        names = [step.name for step in workflow.steps]
        seconds = ask.expires if ask.expires is not None else conf.load().approval_seconds
        request = Approval.objects.create(
            task=task, step=task.step_name, step_index=task.step_index, turn=task.turn,
            round=task.round, subject=canonical.clean_text(ask.subject, 500), body=ask.body,
            payload=ask.payload, risk=ask.risk, outside_effect=ask.outside_effect,
            money=ask.money, form=ask.form, proposal=ask.proposal,
            digest=digest_request(ask), self_approval=workflow.self_approval, then=ask.then,
            votes_needed=ask.votes, assignees=list(ask.assignees) or None,
            next_step=next(iter(names[names.index(task.step_name) + 1 :]), ""),
            steps=names,
            send_back_to=str(ask.send_back_to or ""), on_reject=str(ask.on_reject),
            on_expiry=str(ask.on_expiry), requested_at=now,
            expires_at=now + dt.timedelta(seconds=seconds),
        )  # fmt: skip
        record_event(task, "approval_requested", Actor("worker", held.owner), now,
                     approval=str(request.id), subject=request.subject, risk=request.risk,
                     expires_at=request.expires_at.isoformat())  # fmt: skip
        move_task(task, now, "ask_approval", states.WAITING, reason=states.APPROVAL,
                  by_holder=True, **fields)  # fmt: skip
        return request


def digest_request(ask: AskApproval) -> str:
    """SHA-256 of what people are shown; an answer carries it, so nobody approves unseen text."""
    return canonical.digest_json(
        [ask.subject, ask.body, ask.payload, ask.form, ask.proposal, ask.risk]
    )


def void_open_approval(task: Task, actor: Actor, now: dt.datetime, why: str) -> None:
    """Close the open question of a locked task, and one that is decided but not yet applied."""
    pending = Approval.objects.filter(task=task).filter(
        Q(status=kinds.OPEN) | Q(applied_at__isnull=True, status__in=list(DECISIONS.values()))
    )
    for request in pending.select_for_update():
        Approval.objects.filter(pk=request.pk).update(
            status=kinds.VOID, decided_at=now, decided_by=str(actor), comment=why
        )
        record_event(task, "approval_voided", actor, now, approval=str(request.id), why=why)


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
    every sweeper stopped.
    """
    request = _find_request(approval_id)
    with lock_task(request.task_id) as (task, now):
        request = Approval.objects.select_for_update().get(pk=request.pk)
        _check_open(request, now)
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
    _apply(request, task, now, "apply_decision")


def undo_decision(approval_id: UUID | str, *, actor: Actor) -> None:
    """waiting (decided) -> waiting (approval): only before the decision takes effect."""
    request = _find_request(approval_id)
    with lock_task(request.task_id) as (task, now):
        request = Approval.objects.select_for_update().get(pk=request.pk)
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
        _apply(request, task, now, "apply_decision")
        return True


def expire_approval(approval_id: UUID) -> bool:
    """waiting -> dead (approval_expired), or what the workflow says; silence is never a yes."""
    request = _find_request(approval_id)
    with lock_if_free(request.task_id) as found:
        if found is None:
            return False
        task, now = found
        request = Approval.objects.select_for_update().get(pk=request.pk)
        if request.status != kinds.OPEN or request.expires_at > now:
            return False
        Approval.objects.filter(pk=request.pk).update(
            status=kinds.EXPIRED, decided_at=now, decided_by=str(SYSTEM), applied_at=now
        )
        request.status = kinds.EXPIRED
        record_event(task, "approval_expired", SYSTEM, now, approval=str(request.id),
                     consequence=request.on_expiry)  # fmt: skip
        if task.status == states.WAITING:
            _apply(request, task, now, "expire_approval")
        else:
            update_row(task, {"updated_at": now})
        return True


def _apply(request: Approval, task: Task, now: dt.datetime, edge: str) -> None:
    """Move a waiting task where the closed `request` leads."""
    Approval.objects.filter(pk=request.pk).update(applied_at=now)
    fields: dict[str, Any] = {"answer": describe_answer(request)}
    if request.status == kinds.APPROVED:
        return _go_on(request, task, now, edge, fields)
    if request.status == kinds.SENT_BACK:
        return _go_back(request, task, now, edge, fields, request.send_back_to)
    rule = request.on_expiry if request.status == kinds.EXPIRED else request.on_reject
    if request.status == kinds.EXPIRED and rule == "reject":
        rule = request.on_reject
    if rule == "dead":
        return _end(task, now, edge, states.DEAD, states.APPROVAL_EXPIRED, request, fields)
    if rule == "fail":
        return _end(task, now, edge, states.FAILED, states.APPROVAL_REJECTED, request, fields)
    _go_back(request, task, now, edge, fields, rule)


def describe_answer(request: Approval) -> dict[str, Any]:
    """What the units that a closed request led to see of it."""
    return {
        "decision": request.decision or request.status, "values": request.values,
        "comment": request.comment, "by": request.decided_by, "approval": str(request.id),
        "step": request.step, "step_index": request.step_index,
    }  # fmt: skip


def _end(
    task: Task, now: dt.datetime, edge: str, target: str, reason: str, request: Approval,
    fields: dict[str, Any],
) -> None:  # fmt: skip
    kind = "ApprovalExpired" if target == states.DEAD else "ApprovalRejected"
    error = make_error(task, kind, request.comment or f"{request.subject}: {request.status}")
    record_event(task, target, SYSTEM, now, reason=reason, error=error)
    move_task(task, now, edge, target, reason=reason, error=error, **fields)


def _go_on(
    request: Approval, task: Task, now: dt.datetime, edge: str, fields: dict[str, Any]
) -> None:
    """An approval: the next step, this one again, or (on a last step) the end."""
    name = request.next_step
    if request.then == "again":
        _lead_to(fields, task.step_name, task.turn + 1)
        fields |= {"turn": task.turn + 1}
    elif name:
        _lead_to(fields, name)
        fields |= {"step_index": task.step_index + 1, "step_name": name, "turn": 0}
    else:
        return complete_task(task, now, edge, **fields)
    requeue_task(task, now, edge, **fields)


def _go_back(
    request: Approval, task: Task, now: dt.datetime, edge: str, fields: dict[str, Any], to: str
) -> None:
    """Send back, or a rejection that leads to a step: a person's restart, with the comment."""
    index = request.steps.index(to)
    supersede_outputs(task, index, task.round + 1, request.steps[index:])
    feedback = {"comment": request.comment, "values": request.values, "by": request.decided_by}
    record_event(task, "repaired", SYSTEM, now, to=to, round=task.round + 1,
                 feedback=feedback, by_workflow=False)  # fmt: skip
    _lead_to(fields, to)
    fields |= {"round": task.round + 1, "step_index": index, "step_name": to, "turn": 0,
               "feedback": feedback, **NO_REPORT}  # fmt: skip
    requeue_task(task, now, edge, **fields)


def _lead_to(fields: dict[str, Any], step: str, turn: int | None = None) -> None:
    """Say which units see the answer: those of `step`, or its one `turn`.

    No others: a later question would be answered by this one's yes.
    """
    fields["answer"] |= {"for_step": step, "for_turn": turn}


def _find_request(approval_id: UUID | str) -> Approval:
    request = Approval.objects.filter(pk=approval_id).first()
    if request is None:
        raise NotFound("approval", approval_id)
    return request


def _check_open(request: Approval, now: dt.datetime) -> None:
    if request.status != kinds.OPEN:
        raise ApprovalClosed(request.status, request.decided_by)
    if request.expires_at <= now:
        raise ApprovalClosed(kinds.EXPIRED)


def find_submitter(task: Task) -> str:
    """Who submitted the task; of a spawned one, who submitted the first of its line."""
    while task.parent is not None:
        task = task.parent
    return task.submitted_by


def _check_answer(
    request: Approval, task: Task, decision: str, actor: Actor, digest: str, values: Any,
    comment: str,
) -> None:  # fmt: skip
    if task.status != states.WAITING or task.status_reason != states.APPROVAL:
        raise WrongStatus("answer for", task.status)
    if decision not in DECISIONS:
        raise InvalidInput("decision", f"takes one of {', '.join(DECISIONS)}")
    if decision == "send_back" and not request.send_back_to:
        raise InvalidInput("decision", "this request can't be sent back; approve or reject it")
    if digest != request.digest:
        raise DigestMismatch
    if not is_assigned(str(actor), request.assignees):
        names = ", ".join(request.assignees or ())
        raise NotAllowed(f"This question is for {names}; ask one of them.")
    if not request.self_approval and str(actor) == find_submitter(task):
        raise NotAllowed(
            "Nobody answers for what they submitted themselves; another person or token may, "
            "or the workflow says self_approval=True."
        )
    if ApprovalVote.objects.filter(
        approval=request, by=str(actor), voided_at__isnull=True
    ).exists():
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
