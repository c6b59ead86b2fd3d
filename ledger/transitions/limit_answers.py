"""What becomes of a task whose limit was a question, or its end: extended it goes on."""

from __future__ import annotations

import datetime as dt
from typing import Any

from ledger import conf, limits, states
from ledger.errors import InvalidInput
from ledger.events import SYSTEM, Actor, record_event
from ledger.models import Approval, Task
from ledger.models import approvals as kinds
from ledger.queries.forecasts import measure_use
from ledger.transitions.moves import make_error, move_task
from ledger.transitions.waits import revive_wait


def act_on_limit(request: Approval, task: Task, now: dt.datetime) -> None:
    """Where the closed question about a limit leads: on under the new one, or dead by the old.

    Raises InvalidInput for a limit that is used up already.
    """
    facts: dict[str, Any] = request.payload or {}
    name, reason = facts["limit"], facts["reason"]
    by = Actor.parse(request.decided_by) if request.decided_by else SYSTEM
    if request.status == kinds.APPROVED:
        try:
            columns = limits.read_limits(request.values, fill=False)
        except InvalidInput as error:
            raise InvalidInput(f"values.{name}", error.reason) from None
        columns = change_limits(task, columns, by, now, request.comment)
        if not has_room(request, task, now):
            least = facts["least"]
            more = f"; what was refused needs at least {least}" if least else ""
            raise InvalidInput(f"values.{name}", f"has to be more than is used by now{more}")
        return go_on_after_limit(task, now, "go_on_after_limit", columns, request)
    end_by_limit(task, now, reason, by, request.comment)


def end_by_limit(task: Task, now: dt.datetime, reason: str, by: Actor, comment: str) -> None:
    """waiting -> dead: people, or nobody in time, extended the limit."""
    text = f"{limits.describe_reason(reason)} {comment}".strip()
    error = make_error(task, "LimitReached", text)
    record_event(task, "dead", by, now, reason=reason, error=error)
    move_task(task, now, "end_by_limit", states.DEAD, reason=reason, error=error)


def find_limit_question(task: Task) -> Approval | None:
    """The open question about a limit of a locked task."""
    if task.status_reason != states.APPROVAL:
        return None
    return Approval.objects.filter(task=task, status=kinds.OPEN, kind=kinds.LIMIT).first()


def has_room(request: Approval, task: Task, now: dt.datetime) -> bool:
    """True when the limit that was asked about, as it is now, lets the task go on."""
    facts: dict[str, Any] = request.payload or {}
    name, least = facts["limit"], facts["least"]
    if name == "deadline_at":
        return task.deadline_at is None or task.deadline_at > now
    bound: float = getattr(task, f"limit_{name}")
    least = (conf.parse_money(least) if name == "cost" else least) if least else 0
    return measure_use(task, name, now) < bound and least <= bound


def change_limits(
    task: Task, columns: dict[str, Any], actor: Actor, now: dt.datetime, reason: str
) -> dict[str, Any]:
    """Put new bounds on record and on the locked `task`; the columns to be written."""
    before = limits.describe_limits(task)
    columns = columns | limits.shift_wall(task, columns.get("limit_wall"))
    for name, value in columns.items():
        setattr(task, name, value)
    after = limits.describe_limits(task)
    record_event(task, "limits_changed", actor, now, reason=reason,
                 before=_as_text(before), after=_as_text(after))  # fmt: skip
    return columns


def go_on_after_limit(
    task: Task,
    now: dt.datetime,
    edge: str,
    columns: dict[str, Any],
    question: Approval | None = None,
) -> None:
    """waiting -> on: the same unit, or the wait, the timer or the pause that the limit ended.

    Or out of `dead`, along the `edge` of who extends the limit, without a `question`.
    """
    fields: dict[str, Any] = {"error": None, **columns, **leave_stored_unit(task)}
    fields |= revive_wait(task, now)
    target = fields.pop("target")
    if question is not None:
        facts: dict[str, Any] = question.payload or {}
        record_event(task, "promoted", SYSTEM, now, reason=facts["reason"])
        target, more = _find_place(task, now, target, facts["then"])
        fields |= more
    if states.counts_wall(target, fields.get("reason", "")):
        fields.pop("wall_left", None)  # move_task starts it again from the task's own
    move_task(task, now, edge, target, **fields)


def _find_place(
    task: Task, now: dt.datetime, target: str, then: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    if target == states.WAITING:
        record_event(task, "waiting", SYSTEM, now, reason=(task.waits or {})["for"])
        return target, {}
    until = dt.datetime.fromisoformat(then["until"]) if "until" in then else now
    if until > now:
        record_event(task, "scheduled", SYSTEM, now, reason=then["reason"], until=then["until"])
        return states.SCHEDULED, {"reason": then["reason"], "available_at": until}
    if task.pause_requested:
        record_event(task, "paused", Actor.parse(task.pause_by), now)
        return states.PAUSED, {"reason": states.PAUSED_BY_OPERATOR, "pause_requested": False}
    return target, {}


def leave_stored_unit(task: Task) -> dict[str, Any]:
    """Out of an end that came while people were asked: the step asks again, as its next turn.

    The unit's output is accepted and stays; the same unit can't store a second one. An answer to
    the old question must not pass for one to the new.
    """
    if task.waits is not None or task.ending is not None:
        return {}  # its unit is stored, and the wait for what came of it goes on
    stored = task.outputs.filter(
        step_index=task.step_index, turn=task.turn, superseded_in_round__isnull=True
    ).exists()
    return {"turn": task.turn + 1, "answer": None} if stored else {}


def _as_text(described: dict[str, Any]) -> dict[str, Any]:
    return {k: v.isoformat() if isinstance(v, dt.datetime) else v for k, v in described.items()}
