"""What time does to an open question."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from ledger import states
from ledger.errors import NotFound
from ledger.events import SYSTEM, record_event
from ledger.models import Approval, ApprovalVote, Task
from ledger.models import approvals as kinds
from ledger.queries.seen import see_approvals
from ledger.transitions.moves import lock_if_free, move_task, update_row
from ledger.transitions.verdicts import act_on

MAX_REMINDERS = 50
"""Of one question; who has not answered by then is not helped by more."""


def expire_approval(approval_id: UUID) -> bool:
    """waiting -> the same with the next people asked, or dead (approval_expired), or what the
    workflow says; silence is never a yes.
    """
    with _lock_open(approval_id) as found:
        if found is None:
            return False
        request, task, now = found
        if request.expires_at > now:
            return False
        if escalate_question(request, task, now):
            move_task(task, now, "expire_approval", states.WAITING, reason=states.APPROVAL)
            return True
        Approval.objects.filter(pk=request.pk).update(
            status=kinds.EXPIRED, decided_at=now, decided_by=str(SYSTEM), applied_at=now
        )
        request.status, request.decided_at = kinds.EXPIRED, now
        record_event(task, "approval_expired", SYSTEM, now, approval=str(request.id),
                     consequence=request.on_expiry)  # fmt: skip
        if task.status == states.WAITING:
            act_on(request, task, now, "expire_approval")
        else:
            update_row(task, {"updated_at": now})
        return True


def escalate_question(request: Approval, task: Task, now: dt.datetime) -> bool:
    """Ask the next people, for their own time; False when there are none.

    The caller holds both rows, and has seen that the time is over. Votes of those before are
    void: they had theirs, and the next ones decide alone. The question itself is the same.
    """
    chain = request.escalation or ()
    if request.level >= len(chain):
        return False
    people, seconds = chain[request.level]
    before, request.assignees = request.assignees, people
    request.level += 1
    request.expires_at = now + dt.timedelta(seconds=seconds)
    request.remind_at = find_reminder(request, now, now)
    columns = ("assignees", "level", "expires_at", "remind_at")
    Approval.objects.filter(pk=request.pk).update(**{n: getattr(request, n) for n in columns})
    ApprovalVote.objects.filter(approval=request, voided_at__isnull=True).update(voided_at=now)
    record_event(task, "approval_escalated", SYSTEM, now, approval=str(request.id), to=people,
                 subject=request.subject, risk=request.risk, before=before, level=request.level,
                 expires_at=request.expires_at.isoformat())  # fmt: skip
    return True


def remind_approval(approval_id: UUID) -> bool:
    """waiting -> the same, with an event for those who are asked: once each time that it is due."""
    with _lock_open(approval_id) as found:
        if found is None:
            return False
        request, task, now = found
        due = request.remind_at
        if due is None or not due <= now < request.expires_at:
            return False
        request.reminders += 1
        Approval.objects.filter(pk=request.pk).update(
            reminders=request.reminders, remind_at=find_reminder(request, due, now)
        )
        record_event(task, "approval_reminded", SYSTEM, now, approval=str(request.id),
                     subject=request.subject, risk=request.risk, assignees=request.assignees,
                     count=request.reminders,
                     expires_at=request.expires_at.isoformat())  # fmt: skip
        move_task(task, now, "remind_approval", states.WAITING, reason=states.APPROVAL)
        return True


@contextmanager
def _lock_open(
    approval_id: UUID,
) -> Iterator[tuple[Approval, Task, dt.datetime] | None]:
    """An open question and its task, both locked, with the time; None when it is closed, or when
    somebody holds the task."""
    task_id = find_request(approval_id).task_id
    with lock_if_free(task_id) as found:
        if found is None:
            yield None
            return
        request = Approval.objects.select_for_update().get(pk=approval_id)
        yield (request, *found) if request.status == kinds.OPEN else None


def find_reminder(request: Approval, since: dt.datetime, now: dt.datetime) -> dt.datetime | None:
    """The next reminder after `now`, counted from `since`; what an outage left out is not made up.

    None without one before the question's time is over, and after MAX_REMINDERS.
    """
    if request.remind_seconds is None or request.reminders >= MAX_REMINDERS:
        return None
    every = dt.timedelta(seconds=request.remind_seconds)
    following = since + every * ((now - since) // every + 1)
    return following if following < request.expires_at else None


def find_request(approval_id: UUID | str) -> Approval:
    """The row of a question that exists for the caller. Raises NotFound."""
    request = see_approvals().filter(pk=approval_id).first()
    if request is None:
        raise NotFound("approval", approval_id)
    return request
