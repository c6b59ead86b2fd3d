"""Bulk operations as people and clients see them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import Count, QuerySet

from ledger.calls import read_call
from ledger.errors import InvalidInput, NotFound
from ledger.models import Approval, BulkItem, BulkOperation, Task
from ledger.models import bulk as words
from ledger.queries.paging import DEFAULT_LIMIT, Page, clamp_limit, page_newest, read_seq
from ledger.queries.seen import hide_text, see_approvals, see_tasks

FAILED = (words.REFUSED,)


def see_operations() -> QuerySet[BulkOperation]:
    """All of them; for who is limited to lanes the own ones, as others count tasks of all lanes."""
    call = read_call()
    rows = BulkOperation.objects.all()
    return rows if call.lanes is None else rows.filter(actor=call.actor)


def find_operation(operation_id: UUID) -> BulkOperation:
    """The row. Raises NotFound."""
    row = see_operations().filter(pk=operation_id).first()
    if row is None:
        raise NotFound("bulk operation", operation_id)
    return row


def list_operations(*, limit: int = DEFAULT_LIMIT, cursor: str = "") -> Page[dict[str, Any]]:
    """Newest first, each with its counts."""
    page = page_newest(see_operations(), "created_at", limit, cursor)
    counts = _count_outcomes([row.pk for row in page.items])
    return page.convert(lambda row: operation_json(row, counts.get(row.pk, {})))


def show_operation(operation_id: UUID) -> dict[str, Any]:
    """One with its counts. Raises NotFound."""
    row = find_operation(operation_id)
    return operation_json(row, _count_outcomes([row.pk]).get(row.pk, {}))


def _count_outcomes(keys: list[UUID]) -> dict[UUID, dict[str, int]]:
    rows = BulkItem.objects.filter(operation__in=keys).order_by()
    found: dict[UUID, dict[str, int]] = {}
    counted = rows.values_list("operation_id", "outcome").annotate(number=Count("id"))
    for key, outcome, number in counted:
        found.setdefault(key, {})[outcome] = number
    return found


def operation_json(row: BulkOperation, counts: dict[str, int]) -> dict[str, Any]:
    """The JSON of one; who is not shown contents is not shown what was written to a step."""
    arguments = dict(row.arguments)
    for name in ("note", "comment"):
        if name in arguments:
            arguments[name] = hide_text(arguments[name])
    return {
        "id": str(row.pk),
        "action": row.action,
        "arguments": arguments,
        "reason": row.reason,
        "selection": row.selection,
        "actor": row.actor,
        "status": row.status,
        "total": row.total,
        "counts": {outcome: counts.get(outcome, 0) for outcome in words.OUTCOMES},
        "stopped_by": row.stopped_by or None,
        "created_at": row.created_at,
        "finished_at": row.finished_at,
    }


def list_items(
    operation_id: UUID, *, outcome: str = "", limit: int = DEFAULT_LIMIT, cursor: str = ""
) -> Page[dict[str, Any]]:
    """The items in the order in which they are done, with title and status of their tasks now.

    `outcome` narrows them. Raises NotFound and InvalidInput.
    """
    find_operation(operation_id)
    if outcome and outcome not in words.OUTCOMES:
        known = ", ".join(words.OUTCOMES)
        raise InvalidInput("outcome", f"is {outcome!r:.60}; it takes one of {known}")
    rows = BulkItem.objects.filter(operation=operation_id, pk__gt=read_seq(cursor))
    rows = rows.filter(outcome=outcome) if outcome else rows
    size = clamp_limit(limit)
    found = list(rows.order_by("pk")[: size + 1])
    tasks = see_tasks().only("title", "workflow", "status").in_bulk([one.task for one in found])
    keys = [one.approval for one in found if one.approval]
    asked = see_approvals().only("subject").in_bulk(keys) if keys else {}
    shown = [_item_json(one, tasks.get(one.task), asked.get(one.approval)) for one in found[:size]]
    return Page(shown, str(found[size - 1].pk) if len(found) > size else None)


def _item_json(row: BulkItem, task: Task | None, asked: Approval | None) -> dict[str, Any]:
    return {
        "task": str(row.task),
        "title": (task.title or task.workflow) if task else "",
        "status": task.status if task else None,
        "approval": str(row.approval) if row.approval else None,
        "subject": asked.subject if asked else "",
        "status_seen": row.status_seen,
        "outcome": row.outcome,
        "why": row.why,
        "done_at": row.done_at,
    }
