"""Where a closed question leads its task."""

from __future__ import annotations

import datetime as dt
from typing import Any

from ledger import states
from ledger.events import SYSTEM, record_event
from ledger.models import Approval, Task
from ledger.models import approvals as kinds
from ledger.transitions.endings import end_task
from ledger.transitions.holder import supersede_outputs
from ledger.transitions.limit_answers import act_on_limit
from ledger.transitions.moves import (
    NO_REPORT,
    complete_task,
    make_error,
    requeue_task,
)


def act_on(request: Approval, task: Task, now: dt.datetime, edge: str) -> None:
    """Move a waiting task where the closed `request` leads."""
    Approval.objects.filter(pk=request.pk).update(applied_at=now)
    if request.kind == kinds.LIMIT:
        return act_on_limit(request, task, now)
    fields: dict[str, Any] = {"answer": describe_answer(request)}
    if request.status == kinds.APPROVED:
        return _go_on(request, task, now, edge, fields)
    if request.status == kinds.SENT_BACK:
        return _go_back(request, task, now, edge, fields, request.send_back_to)
    rule = request.on_expiry if request.status == kinds.EXPIRED else request.on_reject
    if request.status == kinds.EXPIRED and rule == "reject":
        rule = request.on_reject
    if rule == "again":
        return _go_on(request, task, now, edge, fields, again=True)
    if rule == "dead":
        return _end(task, now, edge, states.DEAD, states.APPROVAL_EXPIRED, request, fields)
    if rule == "fail":
        late = request.status == kinds.EXPIRED and request.on_expiry == "fail"
        reason = states.APPROVAL_EXPIRED if late else states.APPROVAL_REJECTED
        return _end(task, now, edge, states.FAILED, reason, request, fields)
    _go_back(request, task, now, edge, fields, rule)


def describe_answer(request: Approval) -> dict[str, Any]:
    """What the units that a closed request led to see of it."""
    return {
        "decision": request.decision or request.status, "values": request.values,
        "comment": request.comment, "by": request.decided_by,
        "at": request.decided_at.isoformat() if request.decided_at else None,
        "approval": str(request.id), "step": request.step, "step_index": request.step_index,
    }  # fmt: skip


def _end(
    task: Task, now: dt.datetime, edge: str, target: str, reason: str, request: Approval,
    fields: dict[str, Any],
) -> None:  # fmt: skip
    kind = "ApprovalExpired" if reason == states.APPROVAL_EXPIRED else "ApprovalRejected"
    error = make_error(task, kind, request.comment or f"{request.subject}: {request.status}")
    end_task(task, now, edge, target, actor=SYSTEM, reason=reason, error=error,
             said={"reason": reason, "error": error}, **fields)  # fmt: skip


def _go_on(
    request: Approval, task: Task, now: dt.datetime, edge: str, fields: dict[str, Any],
    *, again: bool = False,
) -> None:  # fmt: skip
    """The next step, this one again, or (on a last step) the end."""
    name = request.next_step
    if again or request.then == "again":
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
