"""The ledger for code of the same process: submit a task, read, cancel, signal it, answer for it.

`submit` joins the caller's transaction, so a task exists if and only if the rows that it is about
do. From outside the process there is the REST API with the same words.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from ledger import queries, scopes
from ledger.errors import InvalidInput
from ledger.events import Actor
from ledger.models import Approval
from ledger.transitions.approvals import decide_approval
from ledger.transitions.forks import fork_task
from ledger.transitions.operators import cancel_task
from ledger.transitions.submit import submit_task, submit_tasks
from ledger.transitions.waits import send_signal
from ledger.workflows import Workflow

SYSTEM = Actor("system")


def submit(
    workflow: str | Workflow,
    input: Any = None,
    key: str | None = None,
    using: str | None = None,
    *,
    version: str | None = None,
    actor: Actor = SYSTEM,
    title: str = "",
    lane: str = "default",
    priority: int = 0,
    tags: Sequence[str] = (),
    limits: Mapping[str, Any] | None = None,
    max_repairs: int | None = None,
    not_before: dt.datetime | None = None,
) -> UUID:
    """The id of a new task, or of the one that `actor` submitted with the same key and body.

    Raises UnknownWorkflow, InvalidInput naming the field, PayloadTooLarge, IdempotencyConflict.
    `using` names the database whose transaction the caller is in: the ledger's is "default", and
    in any other the task would not share the caller's fate.
    """
    if using not in {None, "default"}:
        raise InvalidInput("using", f"is {using!r}; the ledger lives in 'default'.")
    scopes.require_lane(lane)
    if isinstance(workflow, str):
        workflow = queries.find_workflow(workflow, version)
    task, _ = submit_task(
        workflow=workflow,
        input={} if input is None else input,
        actor=actor,
        version=version,
        key=key,
        title=title,
        lane=lane,
        priority=priority,
        tags=tags,
        limits_given=limits,
        max_repairs=max_repairs,
        not_before=not_before,
    )
    return task.pk


def submit_many(items: Sequence[Mapping[str, Any]], *, actor: Actor = SYSTEM) -> list[UUID]:
    """The ids of up to 1,000 tasks, in order: all are submitted, or none.

    Each item is a mapping of the arguments of `submit`, `workflow` among them. Joins the caller's
    transaction. Raises what `submit` raises, the field named `items.N.FIELD`.
    """
    taken = [{"input": {}, **item, "limits_given": item.get("limits")} for item in items]
    for item in taken:
        item.pop("limits", None)
        scopes.require_lane(item.get("lane", "default"))
    return [task.pk for task, _ in submit_tasks(taken, actor=actor)]


def get(task_id: UUID | str) -> dict[str, Any]:
    """The Task JSON, times as datetimes. Raises TaskNotFound."""
    return queries.show_task(UUID(str(task_id)))


def cancel(task_id: UUID | str, reason: str = "", *, actor: Actor = SYSTEM) -> None:
    """Ask a task to end; at once unless a worker holds it. Raises TaskNotFound, WrongStatus."""
    cancel_task(UUID(str(task_id)), actor=actor, reason=reason)


def fork(
    task_id: UUID | str,
    from_step: str | int,
    input: Any = None,
    key: str | None = None,
    *,
    actor: Actor = SYSTEM,
    version: str | None = None,
    reason: str = "",
) -> UUID:
    """The id of a copy of a task in any status, queued at `from_step`; see `fork_task`.

    Raises TaskNotFound, UnknownWorkflow, UnknownStep, InvalidInput, IdempotencyConflict.
    """
    copy, _ = fork_task(
        task_id, from_step=from_step, input=input, key=key, actor=actor, version=version,
        reason=reason,
    )  # fmt: skip
    return copy.pk


def signal(
    task_id: UUID | str,
    name: str,
    data: Any = None,
    key: str | None = None,
    *,
    actor: Actor = SYSTEM,
) -> bool:
    """Put a signal into a task's mailbox; False when the same `key` did so before.

    Joins the caller's transaction. Raises TaskNotFound, WrongStatus, IdempotencyConflict,
    PayloadTooLarge, InvalidInput.
    """
    return send_signal(UUID(str(task_id)), name=name, data=data, key=key, actor=actor)


def answer(
    approval_id: UUID | str,
    decision: str,
    *,
    actor: Actor,
    digest: str,
    values: Mapping[str, Any] | None = None,
    comment: str = "",
) -> Approval:
    """Decide: approve, reject or send_back what `digest` says was shown.

    Raises NotFound, ApprovalClosed, DigestMismatch, NotAllowed, InvalidInput.
    """
    return decide_approval(
        UUID(str(approval_id)),
        decision=decision,
        actor=actor,
        values=values,
        comment=comment,
        digest=digest,
    )
