"""Questions to people, open and decided."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from ledger.calls import sees_payload
from ledger.errors import InvalidInput, NotFound
from ledger.models import Approval
from ledger.models.approvals import STATUSES
from ledger.queries.paging import DEFAULT_LIMIT, Page, page_newest
from ledger.queries.seen import hide_text, see_approvals

TASK_COLUMNS = ("workflow", "title", "submitted_by", "revision")
OF_TASK = (
    "id", "parent", *TASK_COLUMNS, "used_units", "limit_units", "used_tokens_in",
    "used_tokens_out", "limit_tokens", "used_cost", "limit_cost", "repair_count", "max_repairs",
    "available_at",
)  # fmt: skip
"""What a question's page says of the task."""


def find_approval(approval_id: UUID) -> Approval:
    """The row with its task and votes. Raises NotFound."""
    row = _rows().filter(pk=approval_id).first()
    if row is None:
        raise NotFound("approval", approval_id)
    return hide_contents(row)


def hide_contents(row: Approval) -> Approval:
    """The row, to be shown and not stored, without what the caller is not to see."""
    if not sees_payload():
        row.body, row.comment = hide_text(row.body), hide_text(row.comment)
        row.payload = row.attached = row.form = row.proposal = row.values = None
    return row


def list_approvals(
    *,
    status: str = "",
    task_id: UUID | None = None,
    limit: int = DEFAULT_LIMIT,
    cursor: str = "",
) -> Page[dict[str, Any]]:
    """Approvals, newest first, of one status and one task if given. Raises InvalidInput."""
    rows = _rows()
    if status:
        if status not in STATUSES:
            raise InvalidInput(
                "status", f"is {status!r:.60}; it takes one of {', '.join(STATUSES)}."
            )
        rows = rows.filter(status=status)
    if task_id:
        rows = rows.filter(task=task_id)
    return page_newest(rows, "requested_at", limit, cursor).convert(
        lambda row: show_approval(hide_contents(row))
    )


def show_approval(row: Approval) -> dict[str, Any]:
    """The Approval JSON; `row` comes from `find_approval`."""
    return {
        "id": str(row.pk),
        "task": str(row.task_id),
        "workflow": row.task.workflow,
        "title": row.task.title,
        "submitted_by": row.task.submitted_by,
        "kind": row.kind,
        "step": row.step,
        "turn": row.turn,
        "round": row.round,
        "status": row.status,
        "subject": row.subject,
        "body": row.body,
        "payload": row.payload,
        "risk": row.risk,
        "risk_by": row.risk_by,
        "artifacts": (row.attached or {}).get("artifacts", []),
        "diff": (row.attached or {}).get("diff", []),
        "form": row.form,
        "proposal": row.proposal,
        "digest": row.digest,
        "decisions": list_decisions(row),
        "votes_needed": row.votes_needed,
        "assignees": row.assignees or [],
        "votes": [
            {
                "by": vote.by,
                "decision": vote.decision,
                "comment": hide_text(vote.comment),
                "at": vote.at,
            }
            for vote in row.votes.all()
            if vote.voided_at is None
        ],
        "decision": row.decision or None,
        "values": row.values,
        "edits": list_edits(row.proposal, row.values),
        "comment": row.comment,
        "decided_by": row.decided_by or None,
        "requested_at": row.requested_at,
        "expires_at": row.expires_at,
        "escalation": [
            {"assignees": people, "seconds": seconds}
            for people, seconds in (row.escalation or ())[row.level :]
        ],
        "on_expiry": row.on_expiry,
        "reminders": row.reminders,
        "remind_at": row.remind_at,
        "decided_at": row.decided_at,
    }


def list_edits(proposal: Any, values: Any) -> list[dict[str, Any]]:
    """What an answer changed of the agent's proposal: `name` (empty for the whole), `proposed` and
    `answered`, each None where there is none. The proposal itself stays as it was asked.
    """
    if values is None or values == proposal:
        return []
    if not isinstance(values, dict) or not isinstance(proposal, dict | None):
        return [{"name": "", "proposed": proposal, "answered": values}]
    old = proposal or {}
    return [
        {"name": name, "proposed": old.get(name), "answered": values.get(name)}
        for name in [*old, *(name for name in values if name not in old)]
        if (name in old) != (name in values) or old.get(name) != values.get(name)
    ]


def list_decisions(row: Approval) -> list[str]:
    """The decisions that the question offers."""
    return ["approve", "reject", *(["send_back"] if row.send_back_to else [])]


def _rows() -> QuerySet[Approval]:
    columns = [f"task__{name}" for name in OF_TASK]
    own = [field.attname for field in Approval._meta.concrete_fields if field.name != "task"]
    rows = see_approvals().select_related("task").prefetch_related("votes")
    return rows.only("task_id", *own, *columns)
