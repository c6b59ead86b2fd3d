"""What statuses, reasons, events and actors are called on the pages."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping
from typing import Any

from ledger import states


@dataclasses.dataclass(frozen=True, slots=True)
class Look:
    """How a status is shown: in words, by a shape of its own and by a colour."""

    label: str
    glyph: str
    css: str
    note: str = ""


LOOKS = {
    states.QUEUED: Look("Queued", "idle", "is-idle"),
    states.SCHEDULED: Look("Scheduled", "sched", "is-idle"),
    states.RUNNING: Look("Running", "run", "is-run"),
    states.WAITING: Look("Waiting", "wait", "is-wait"),
    states.PAUSED: Look("Paused", "pause", "is-idle"),
    states.COMPLETED: Look("Completed", "ok", "is-ok"),
    states.FAILED: Look("Failed", "fail", "is-fail"),
    states.DEAD: Look("Gave up", "dead", "is-dead"),
    states.CANCELLED: Look("Cancelled", "cancel", "is-idle"),
}
LOST = Look("Lost", "lost", "is-stall", "queues again by itself")
STALLED = Look("Stalled", "stall", "is-stall", "no progress, lease alive")
OVER_TIME = Look("Over time", "over", "is-stall", "far longer than past runs")
NOT_STARTED = Look("Not started", "idle", "is-idle")
NO_WORKER = Look("No worker", "none", "is-stall")

REASONS = {
    states.RETRIES_EXHAUSTED: "every retry of one unit failed",
    states.RECLAIMS_EXHAUSTED: "one step lost its worker too often",
    states.REPAIRS_EXHAUSTED: "the work was still wrong after the last repair",
    states.LIMIT_UNITS: "the limit of units is used up",
    states.LIMIT_TOKENS: "the limit of tokens is used up",
    states.LIMIT_COST: "the money limit is used up",
    states.LIMIT_WALL: "the time limit is used up",
    states.LIMIT_DEADLINE: "the deadline has passed",
    states.APPROVAL_EXPIRED: "nobody answered in time",
    states.UNSERIALISABLE_OUTPUT: "a step returned what can't be stored",
    states.COMPENSATION_FAILED: "what was to undo an effect failed",
    states.WORKFLOW_FAILED: "the workflow ended it",
    states.APPROVAL_REJECTED: "the request was rejected",
    states.SIGNAL_EXPIRED: "the signal did not come in time",
    states.APPROVAL: "for a person's answer",
    states.BUDGET: "for its parent's budget",
    states.DECIDED: "answered, takes effect in a moment",
    states.SIGNAL: "for a signal",
    states.CHILDREN: "for its children",
    states.BACKOFF: "after a failure",
    states.SLEEP: "the workflow sleeps",
    states.NOT_BEFORE: "not before its time",
    states.RELEASED: "a step asked to be run later",
    states.PAUSED_BY_OPERATOR: "by an operator",
    states.VERSION_MISFIT: "its step is not in this version of the workflow",
    states.CANCELLED_BY_OPERATOR: "by an operator",
    states.CANCELLED_BY_PARENT: "by its parent",
    states.COMPENSATING: "undoing its effects",
}

EVENTS = {
    "submitted": Look("Submitted", "idle", "is-idle"),
    "checkpoint": Look("Output stored", "ok", "is-ok"),
    "repaired": Look("Restarted from a step", "fix", "is-fix"),
    "attempt_failed": Look("Attempt failed", "fail", "is-fail"),
    "released": Look("Given back by its worker", "idle", "is-idle"),
    "reclaimed": Look("Worker lost, queued again", "lost", "is-stall"),
    "scheduled": Look("Scheduled", "sched", "is-idle"),
    "promoted": Look("Due, queued", "sched", "is-idle"),
    "approval_requested": Look("Approval asked", "wait", "is-wait"),
    "approval_voted": Look("Vote", "wait", "is-wait"),
    "approval_decided": Look("Approval answered", "wait", "is-wait"),
    "approval_undone": Look("Answer undone", "wait", "is-wait"),
    "approval_expired": Look("Approval expired", "dead", "is-dead"),
    "approval_escalated": Look("Approval passed on", "wait", "is-wait"),
    "approval_reminded": Look("Reminder", "wait", "is-wait"),
    "approval_voided": Look("Approval void", "cancel", "is-idle"),
    "waiting": Look("Waiting", "wait", "is-wait"),
    "signalled": Look("Signal", "wait", "is-wait"),
    "steered": Look("Message to the agent", "wait", "is-wait"),
    "steer_withdrawn": Look("Message withdrawn", "cancel", "is-idle"),
    "steer_heard": Look("Messages told to the agent", "ok", "is-ok"),
    "spawned": Look("Children started", "run", "is-run"),
    "cancel_requested": Look("Cancel asked", "cancel", "is-idle"),
    "cancelled": Look("Cancelled", "cancel", "is-idle"),
    "pause_requested": Look("Pause asked", "pause", "is-idle"),
    "paused": Look("Paused", "pause", "is-idle"),
    "resumed": Look("Resumed", "run", "is-run"),
    "retried": Look("Retried now", "run", "is-run"),
    "limits_changed": Look("Limits changed", "idle", "is-idle"),
    "limit_warned": Look("Limit partly used", "stall", "is-stall"),
    "tool_denied": Look("Tool call denied", "fail", "is-fail"),
    "circling": Look("Goes in circles", "stall", "is-stall"),
    "effect_marked": Look("Effect settled by a person", "idle", "is-idle"),
    "compensating": Look("Undoes its effects", "fix", "is-fix"),
    "compensated": Look("Effect undone", "fix", "is-fix"),
    "edited": Look("Edited", "idle", "is-idle"),
    "forked": Look("Copied", "idle", "is-idle"),
    "completed": Look("Completed", "ok", "is-ok"),
    "failed": Look("Failed", "fail", "is-fail"),
    "dead": Look("Gave up", "dead", "is-dead"),
    "stale_write_refused": Look("Late write of a lost worker refused", "lost", "is-stall"),
}

EFFECTS = {
    "intent": Look("Begun", "run", "is-run"),
    "unknown": Look("Unknown", "lost", "is-stall"),
    "done": Look("Done", "ok", "is-ok"),
    "not_done": Look("Not done", "cancel", "is-idle"),
    "compensated": Look("Undone", "fix", "is-fix"),
    "undoing": Look("Being undone", "run", "is-run"),
}

ANSWERS = {
    "open": "Open",
    "approved": "Approved",
    "rejected": "Rejected",
    "sent_back": "Sent back",
    "expired": "Expired",
    "void": "Void",
}


def describe_status(task: Mapping[str, Any], now: dt.datetime) -> Look:
    """How the status of a Task JSON is shown at `now`, its reason in words as the note."""
    status, look = task["status"], LOOKS[task["status"]]
    if status == states.RUNNING:
        if task["lease"] and task["lease"]["until"] < now:
            return LOST
        if task["cancel_requested"]:
            return dataclasses.replace(look, note="cancel asked")
        if task["pause_requested"]:
            return dataclasses.replace(look, note="pauses after this unit")
        if task["ending"]:
            look = dataclasses.replace(look, note=REASONS[states.COMPENSATING])
        return STALLED if task["stalled"] else look
    if status == states.QUEUED and task["claimable"]["why"]:
        why = task["claimable"]["why"].replace("no worker for", "none knows")
        # What keeps it is its lane or its key, unless nobody could run it.
        nobody = "worker" in why or why.startswith("none knows")
        return dataclasses.replace(NO_WORKER if nobody else look, note=why)
    note = REASONS.get(task["status_reason"], task["status_reason"])
    if task["pause_requested"] and status in {states.SCHEDULED, states.WAITING}:
        note += "; pauses after that"
    return dataclasses.replace(look, note=note)


DEEDS = {
    "sign_in": "Signed in",
    "sign_in_link": "Signed in by a link",
    "sign_in_try": "Sign-in",
    "sign_out": "Signed out",
}
"""Actions of the audit log whose code does not read as what was done."""


def name_action(code: str) -> str:
    """What the audit log calls an action: an event's label, or its code as words."""
    look = EVENTS.get(code)
    return look.label if look else DEEDS.get(code, code.replace("_", " ").capitalize())


def say_money(nano: int) -> str:
    """Nano-units as '$1,234.56'; what is less than a cent says so, a task's page has it exact."""
    cents = round(nano / 10_000_000)
    if nano and not cents:
        return "<$0.01"
    return f"${cents / 100:,.2f}"
