"""The question itself: one commit with the output and the release of the worker."""

from __future__ import annotations

import datetime as dt

from ledger import canonical, conf, states
from ledger.events import Actor, record_event
from ledger.models import Approval
from ledger.sql import Claimed, Unit
from ledger.transitions.approvals import void_open_approval
from ledger.transitions.holder import leave_running, store_unit
from ledger.transitions.moves import lock_held, move_task
from ledger.workflows import AskApproval, Workflow


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
