"""The question itself: one commit with the output and the release of the worker."""

from __future__ import annotations

import datetime as dt
from typing import Any
from uuid import UUID

from ledger import artifacts, canonical, conf, states
from ledger.errors import InvalidInput, NotFound
from ledger.events import Actor, record_event
from ledger.models import Approval, Task
from ledger.outcomes import RISKS
from ledger.sql import Claimed, Unit
from ledger.transitions.approvals import void_open_approval
from ledger.transitions.holder import leave_if_cancelled, store_unit
from ledger.transitions.moves import lock_held, move_task
from ledger.transitions.overdue import find_reminder
from ledger.workflows import AskApproval, Workflow


def ask_approval(
    held: Claimed,
    unit: Unit,
    ask: AskApproval,
    workflow: Workflow,
    attached: dict[str, Any] | None = None,
) -> Approval | None:
    """running -> waiting (approval): the output, the question and the release are one commit.

    Closes an open question of the task. The task stays at the step that asks until the decision
    is applied. `attached` is what `describe_attached` found. Returns None when the task was asked
    to cancel meanwhile.
    """
    with lock_held(held.lease, "approval request") as (task, now):
        fields = store_unit(task, held, unit, now)
        here = {"step_index": task.step_index, "step_name": task.step_name, "turn": task.turn}
        fields |= here
        void_open_approval(task, Actor("worker", held.owner), now, "asked again")
        if leave_if_cancelled(task, held, now, "ask_approval", fields):
            return None
        request = _draft_request(task, now, ask, workflow, attached)
        Approval.objects.bulk_create([request])
        record_event(task, "approval_requested", Actor("worker", held.owner), now,
                     approval=str(request.id), subject=request.subject, risk=request.risk,
                     expires_at=request.expires_at.isoformat())  # fmt: skip
        move_task(task, now, "ask_approval", states.WAITING, reason=states.APPROVAL,
                  by_holder=True, **fields)  # fmt: skip
        return request


def _draft_request(
    task: Task, now: dt.datetime, ask: AskApproval, workflow: Workflow,
    attached: dict[str, Any] | None,
) -> Approval:  # fmt: skip
    """The row to be: what is asked, of whom, until when, and what an answer leads to."""
    names = [step.name for step in workflow.steps]
    seconds = ask.expires if ask.expires is not None else conf.load().approval_seconds
    risk = max(ask.risk, workflow.risk_floor, key=RISKS.index)
    request = Approval(
        task=task, step=task.step_name, step_index=task.step_index, turn=task.turn,
        round=task.round, subject=canonical.clean_text(ask.subject, 500), body=ask.body,
        payload=ask.payload, attached=attached, risk=risk,
        risk_by="step" if risk == ask.risk else "workflow", outside_effect=ask.outside_effect,
        money=ask.money, form=ask.form, proposal=ask.proposal,
        digest=digest_request(ask, risk, attached), self_approval=workflow.self_approval,
        then=ask.then, votes_needed=ask.votes, assignees=list(ask.assignees) or None,
        next_step=next(iter(names[names.index(task.step_name) + 1 :]), ""),
        steps=names, send_back_to=str(ask.send_back_to or ""), on_reject=str(ask.on_reject),
        on_expiry=str(ask.on_expiry), requested_at=now,
        expires_at=now + dt.timedelta(seconds=seconds),
        escalation=list(ask.escalate) or None, remind_seconds=ask.remind,
    )  # fmt: skip
    request.remind_at = find_reminder(request, now, now)
    return request


def digest_request(ask: AskApproval, risk: str, attached: dict[str, Any] | None) -> str:
    """SHA-256 of what people are shown; an answer carries it, so nobody approves unseen text.

    Artifacts are in it by their own digests.
    """
    shown = [ask.subject, ask.body, ask.payload, ask.form, ask.proposal, risk]
    return canonical.digest_json([*shown, attached] if attached else shown)


def describe_attached(task_id: UUID, ask: AskApproval) -> dict[str, Any] | None:
    """The artifacts of the question as they are now; None without any.

    Raises InvalidInput for one that the task could not open itself.
    """
    fields = {"artifacts": ask.artifacts, "diff": ask.diff or ()}
    found = {
        field: [_describe_artifact(ref, task_id, field) for ref in refs]
        for field, refs in fields.items()
    }
    return found if any(found.values()) else None


def _describe_artifact(ref: str, task_id: UUID, field: str) -> dict[str, Any]:
    try:
        artifact = artifacts.find_artifact(ref, task_id)
    except NotFound:
        raise InvalidInput(
            f"AskApproval({field}=)", f"{ref!r:.80} is no artifact of this task."
        ) from None
    blob = artifacts.require_blob(artifact)
    return {
        "id": str(artifact.pk), "name": artifact.name, "media_type": artifact.media_type,
        "size": blob.size, "sha256": blob.digest,
    }  # fmt: skip
