"""A used-up limit as a question: the task waits until a person extends the limit or ends it.

The question, the release of the lease and what the attempt leaves are one commit. It stands in
`approvals` beside those that steps ask, as a kind of its own.
"""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

from ledger import canonical, conf, limits, states
from ledger.events import SYSTEM, Actor, record_event
from ledger.models import Approval, Task
from ledger.models import approvals as kinds
from ledger.queries.forecasts import forecast_need, measure_use
from ledger.transitions.moves import move_task

PLACE = ("step_index", "step_name", "turn")
CENT = conf.parse_money("0.01")
WORDS = {"units": "units", "tokens": "tokens", "cost": "money", "wall": "working time",
         "deadline_at": "time: its deadline has passed"}  # fmt: skip


def name_limit(reason: str) -> str:
    """The limit, as clients write it, of a reason code."""
    name = reason.removeprefix("limit_")
    return "deadline_at" if name == "deadline" else name


def describe_timer(reason: str, until: dt.datetime) -> dict[str, Any]:
    """A timer that goes on when the limit is extended."""
    return {"status": states.SCHEDULED, "reason": reason, "until": until.isoformat()}


def describe_place(task: Task) -> dict[str, Any]:
    """Where a task that does not run goes on after the question: its timer, or its pause."""
    if task.status == states.SCHEDULED:
        return describe_timer(task.status_reason, task.available_at)
    return {"status": task.status} if task.status == states.PAUSED else {}


def ask_limit(
    task: Task,
    now: dt.datetime,
    edge: str,
    reason: str,
    actor: Actor,
    fields: dict[str, Any],
    then: dict[str, Any] | None = None,
    least: int = 0,
    *,
    by_holder: bool = False,
) -> None:
    """The locked task -> waiting (approval) along `edge`: shall its limit be extended?

    `fields` are the edge's columns, `then` is where it goes on if not in the queue, `least` the
    limit that a refused reservation needs.
    """
    name = name_limit(reason)
    place = {key: fields.get(key, getattr(task, key)) for key in PLACE}
    facts = _draw_facts(task, name, place["step_index"], least, now)
    shown = {
        "subject": canonical.clean_text(f"Out of {WORDS[name]}. Extend the limit?", 500),
        "body": facts.pop("text"),
        "payload": {"limit": name, "reason": reason, "then": then or {}, **facts},
        "form": _draw_form(name, max(least, math.floor(measure_use(task, name, now)) + 1)),
        "proposal": None if facts["forecast"] is None else {name: facts["forecast"]},
        "risk": "low",
    }  # fmt: skip
    request = Approval.objects.create(
        task=task, kind=kinds.LIMIT, step=place["step_name"], step_index=place["step_index"],
        turn=place["turn"], round=fields.get("round", task.round), money=True,
        digest=canonical.digest_json(list(shown.values())), self_approval=task.self_approval,
        then="again", steps=[], on_reject="dead", on_expiry="dead", requested_at=now,
        expires_at=now + dt.timedelta(seconds=conf.load().approval_seconds), **shown,
    )  # fmt: skip
    record_event(task, "approval_requested", actor, now, approval=str(request.id),
                 subject=request.subject, risk=request.risk, limit=name,
                 expires_at=request.expires_at.isoformat())  # fmt: skip
    if task.status == states.PAUSED:
        fields = {**fields, "pause_requested": True, "pause_by": task.pause_by or str(SYSTEM)}
    move_task(task, now, edge, states.WAITING, reason=states.APPROVAL, by_holder=by_holder,
              **fields)  # fmt: skip


def _draw_facts(
    task: Task, name: str, steps_done: int, least: int, now: dt.datetime
) -> dict[str, Any]:
    """Used so far, the forecast and the least new limit, as clients write them; and as a text."""
    used = measure_use(task, name, now)
    need = forecast_need(task, name, steps_done, now)
    measured = "wall" if name == "deadline_at" else name
    forecast: Any = None
    if need is not None:
        forecast = write_limit(name, max(need.need, least, math.floor(used) + 1), up=True)
    if need is not None and name == "deadline_at":
        forecast = (now + dt.timedelta(seconds=max(60, need.need - used))).isoformat()
    why = "No forecast: too few tasks of this workflow have completed, and no step is done here."
    if need is not None:
        why = f"Forecast: {forecast} in all, by {need.basis}."
    given = limits.describe_limits(task)[name]
    bound = given.isoformat() if isinstance(given, dt.datetime) else given
    spent = write_limit(measured, math.floor(used))
    text = (
        f"Used so far: **{spent}**{' s of working time' if measured == 'wall' else f' {name}'}; "
        f"the limit is **{bound}**, at step {steps_done + 1} of {task.total_steps}.\n\n{why}\n\n"
        "Approve with a new limit, and the same unit goes on. Reject, or let the question expire, "
        "and the task gives up by the limit."
    )
    return {
        "used": spent, "bound": bound, "forecast": forecast,
        "basis": None if need is None else need.basis,
        "least": write_limit(name, least) if least else None, "text": text,
    }  # fmt: skip


def write_limit(name: str, amount: int, *, up: bool = False) -> Any:
    """An amount as clients write it: money as text (`up` to a whole cent), else a number."""
    if name != "cost":
        return amount
    return conf.format_money(-(-amount // CENT) * CENT if up else amount)


def _draw_form(name: str, least: int) -> dict[str, Any]:
    field: dict[str, Any] = {"title": f"New limit: {name.removesuffix('_at')}"}
    if name == "cost":
        field |= {"type": "string", "pattern": r"^[0-9]+(\.[0-9]{1,9})?$"}
    elif name == "deadline_at":
        field |= {"type": "string", "format": "date-time"}
    else:
        field |= {"type": "integer", "minimum": least}
    return {"type": "object", "properties": {name: field}, "required": [name],
            "additionalProperties": False}  # fmt: skip
