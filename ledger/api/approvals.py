"""/approvals: the questions that tasks wait on, and answering them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import HttpRequest
from ninja import Router

from ledger import queries
from ledger.access import APPROVE, READ
from ledger.api.auth import require_scope
from ledger.api.bodies import AnswerIn
from ledger.api.schemas import ApprovalOut, PageOut
from ledger.queries import DEFAULT_LIMIT, Page
from ledger.transitions.approvals import decide_approval

router = Router(tags=["approvals"])


@router.get("", response=PageOut[ApprovalOut])
def list_approvals(
    request: HttpRequest,
    status: str = "",
    task: UUID | None = None,
    limit: int = DEFAULT_LIMIT,
    cursor: str = "",
) -> Page[dict[str, Any]]:
    """Approvals, newest first: all, or those of one status or task."""
    require_scope(request, READ)
    return queries.list_approvals(status=status, task_id=task, limit=limit, cursor=cursor)


@router.get("/{approval_id}", response=ApprovalOut)
def get_approval(request: HttpRequest, approval_id: UUID) -> dict[str, Any]:
    """An approval, with what is to be decided and its digest."""
    require_scope(request, READ)
    return queries.show_approval(queries.find_approval(approval_id))


@router.post("/{approval_id}/answer", response=ApprovalOut)
def answer(request: HttpRequest, approval_id: UUID, body: AnswerIn) -> dict[str, Any]:
    """Decide. It takes effect at once; `digest` is the one of what was read."""
    actor = require_scope(request, APPROVE)
    decide_approval(
        approval_id,
        decision=body.decision,
        actor=actor,
        digest=body.digest,
        values=body.values,
        comment=body.comment,
    )
    return queries.show_approval(queries.find_approval(approval_id))
