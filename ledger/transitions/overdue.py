"""What time does to an open question."""

from __future__ import annotations

from uuid import UUID

from ledger import states
from ledger.errors import NotFound
from ledger.events import SYSTEM, record_event
from ledger.models import Approval
from ledger.models import approvals as kinds
from ledger.transitions.moves import lock_if_free, update_row
from ledger.transitions.verdicts import act_on


def expire_approval(approval_id: UUID) -> bool:
    """waiting -> dead (approval_expired), or what the workflow says; silence is never a yes."""
    request = find_request(approval_id)
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
            act_on(request, task, now, "expire_approval")
        else:
            update_row(task, {"updated_at": now})
        return True


def find_request(approval_id: UUID | str) -> Approval:
    """The row of a question. Raises NotFound."""
    request = Approval.objects.filter(pk=approval_id).first()
    if request is None:
        raise NotFound("approval", approval_id)
    return request
