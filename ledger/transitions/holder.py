"""The edges out of `running` that the holder takes, all under its fence.

The plain course of a unit is `sql.checkpoint_unit`. What is here costs a few statements more and
decides in one order: complete, fail and dead first (a cancel after the work is too late), then
cancel, pause, limits, and the next step.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import math
from collections.abc import Sequence
from typing import Any

from django.db.models import Q

from ledger import canonical, conf, limits, sql, states
from ledger.events import Actor, record_event
from ledger.models import StepOutput, Task
from ledger.sql import Claimed, Unit
from ledger.transitions.endings import end_task
from ledger.transitions.limit_questions import ask_limit, describe_timer
from ledger.transitions.moves import (
    FRESH_UNIT,
    NO_REPORT,
    lock_held,
    make_error,
    move_task,
)

_TIMERS = {"settle_unit": states.SLEEP, "record_failure": states.BACKOFF,
           "release_task": states.RELEASED}  # fmt: skip
"""What a delay on these ways out of `running` is for."""


@dataclasses.dataclass(frozen=True, slots=True)
class Attempt:
    """What is recorded of an attempt that ended without an accepted output."""

    error: dict[str, Any]
    log_tail: str = ""
    tokens: int = 0
    cost: int = 0
    log: str = ""
    """The artifact with all of the log, where a row does not hold it."""


def settle_unit(
    held: Claimed, unit: Unit, *, delay: float = 0.0, until: dt.datetime | None = None
) -> None:
    """running -> queued, scheduled, cancelled, paused, dead or waiting: store the output, let go.

    The way of a checkpoint that a flag or a limit kept off the plain course, and of Sleep and
    Again(after=): `delay` seconds or `until` a time. Raises LeaseLost or AlreadySettled.
    """
    with lock_held(held.lease, "output") as (task, now):
        fields = store_unit(task, held, unit, now)
        if until is not None:
            delay = max(0.0, (until - now).total_seconds())
        target, reason = _choose_next(task, now, delay, states.SLEEP)
        leave_running(task, held, now, "settle_unit", target, reason, delay, fields)


def repair_task(
    held: Claimed,
    unit: Unit,
    *,
    to_index: int,
    to_name: str,
    feedback: Any,
    named: Sequence[str] = (),
) -> None:
    """running -> queued at `to_index`, or dead when the repairs are used up.

    The unit's own output is stored already superseded; outputs from `to_index` on are superseded,
    and those of the steps `named`.
    """
    with lock_held(held.lease, "repair") as (task, now):
        spent = task.repair_count >= task.max_repairs
        fresh_round = task.round if spent or task.cancel_requested else task.round + 1
        fields = store_unit(task, held, unit, now, superseded_in=fresh_round)
        # The verdict stands on record either way; a person who restarts the task sees it.
        fields |= {"feedback": feedback, "step_index": task.step_index,
                   "step_name": task.step_name, "turn": task.turn}  # fmt: skip
        if leave_if_cancelled(task, held, now, "repair_task", fields):
            return
        if spent:
            task.error = fields["error"] = make_error(
                task, "RepairsExhausted", f"{task.repair_count} repairs were not enough"
            )
            return leave_running(task, held, now, "repair_task", states.DEAD,
                          states.REPAIRS_EXHAUSTED, 0, fields)  # fmt: skip
        supersede_outputs(task, to_index, fresh_round, named)
        record_event(
            task, "repaired", Actor("worker", held.owner), now,
            to=to_name, round=fresh_round, feedback=feedback, by_workflow=True,
        )  # fmt: skip
        fields |= {"round": fresh_round, "repair_count": task.repair_count + 1,
                   "step_index": to_index, "step_name": to_name, "turn": 0, **NO_REPORT,
                   **forget_answer(task, to_index)}  # fmt: skip
        target, reason = _choose_next(task, now)
        leave_running(task, held, now, "repair_task", target, reason, 0, fields)


def supersede_outputs(
    task: Task, from_index: int, in_round: int, named: Sequence[str] = ()
) -> None:
    """Mark the live outputs of `from_index` and all later steps as superseded; none is lost.

    `named` are these steps' names, where an output may stand at the index of another version.
    """
    later = Q(step_index__gte=from_index) | Q(step_name__in=named)
    StepOutput.objects.filter(later, task=task, superseded_in_round__isnull=True).update(
        superseded_in_round=in_round
    )


def forget_answer(task: Task, to_index: int) -> dict[str, Any]:
    """The column of people's answer after a restart: a question that is asked again has none."""
    asked_at = -1 if task.answer is None else task.answer["step_index"]
    return {"answer": None} if asked_at >= to_index else {}


def fail_task(held: Claimed, attempt: Attempt) -> None:
    """running -> failed: the workflow itself ended it."""
    with lock_held(held.lease, "failure") as (task, now):
        record_attempt(task, held, attempt, now, "attempt_failed")
        leave_running(task, held, now, "fail_task", states.FAILED, states.WORKFLOW_FAILED, 0,
               {"error": attempt.error})  # fmt: skip


def bury_task(held: Claimed, attempt: Attempt | None, reason: str, least: int = 0) -> None:
    """running -> dead at once: a limit is used up, or the output can't be stored.

    `attempt` is None when the limit was found before the step began; `least` is the limit that
    what was refused would have needed. Waiting instead, where people are asked about limits, and
    cancelled, by a limit alone, where that was asked for: nobody is asked about its limit then.
    """
    with lock_held(held.lease, "failure") as (task, now):
        fields = {}
        if attempt is not None:
            record_attempt(task, held, attempt, now, "attempt_failed")
            fields["error"] = attempt.error
        by_limit = reason != states.UNSERIALISABLE_OUTPUT
        if by_limit and leave_if_cancelled(task, held, now, "bury_task", fields):
            return
        leave_running(task, held, now, "bury_task", states.DEAD, reason, 0, fields, least)


def record_failure(held: Claimed, attempt: Attempt, *, retries: int, backoff: float) -> None:
    """running -> scheduled (backoff), or dead when the retries are used up. Charged."""
    with lock_held(held.lease, "failure") as (task, now):
        attempts = task.attempts + 1
        place = {} if task.ending is None else {k: attempt.error[k] for k in ("step", "turn")}
        record_attempt(task, held, attempt, now, "attempt_failed", number=attempts, **place)
        fields = {"attempts": attempts, "error": {**attempt.error, "attempt": attempts}}
        if attempts > retries and not task.cancel_requested:
            target, reason = states.DEAD, states.RETRIES_EXHAUSTED
            if task.ending is not None:
                reason = states.COMPENSATION_FAILED
        else:
            target, reason = _choose_next(task, now, max(backoff, 0.001), states.BACKOFF)
        leave_running(task, held, now, "record_failure", target, reason, backoff, fields)


def release_task(held: Claimed, *, why: str, delay: float | None = None, retries: int = 3) -> None:
    """running -> queued at the head, or scheduled after `delay`: given back uncharged.

    Beyond the bound of releases each counts as an attempt, so nothing goes round for ever.
    """
    with lock_held(held.lease, "release") as (task, now):
        releases, attempts = task.releases + 1, task.attempts
        if releases > conf.load().max_releases:
            attempts += 1
        record_event(task, "released", Actor("worker", held.owner), now, why=why, delay=delay,
                     started_at=held.started_at.isoformat())  # fmt: skip
        fields: dict[str, Any] = {"releases": releases, "attempts": attempts}
        if attempts > retries and not task.cancel_requested:
            fields["error"] = make_error(task, "TooManyReleases", why)
            target, reason = states.DEAD, states.RETRIES_EXHAUSTED
        else:
            target, reason = _choose_next(task, now, delay or 0.0, states.RELEASED)
        if target == states.QUEUED:
            # It keeps the place it was claimed with: a drain costs no task its turn.
            fields |= {"rank": task.rank, "available_at": task.available_at}
        leave_running(task, held, now, "release_task", target, reason, delay or 0.0, fields)


def misfit_task(held: Claimed, *, problem: str) -> None:
    """running -> paused (version_misfit): this version has no such step; an operator chooses.

    Unless one has chosen already, by asking to cancel.
    """
    with lock_held(held.lease, "misfit") as (task, now):
        target, reason = states.PAUSED, states.VERSION_MISFIT
        if task.cancel_requested:
            target, reason = states.CANCELLED, states.CANCELLED_BY_OPERATOR
        error = make_error(task, "VersionMisfit", problem)
        leave_running(task, held, now, "misfit_task", target, reason, 0, {"error": error})


def report_progress(lease: sql.Lease, done: float | None, total: float | None, note: str) -> None:
    """running -> running: what a step says of itself. Progress in the sense of `stalled`.

    Raises LeaseLost, and ValueError for NaN and infinity, which JSON has no word for.
    """
    for number in (done, total):
        if number is not None and not math.isfinite(number):
            raise ValueError(f"report(): {number} is no amount of progress")
    with lock_held(lease, "progress") as (task, now):
        # No revision: a report is a beat, and costs neither an index entry nor a stale form.
        Task.objects.filter(pk=task.pk, fence=task.fence).update(
            progress_done=done, progress_total=total, progress_note=canonical.clean_text(note, 500),
            last_progress_at=now, beat=task.beat + 1,
        )  # fmt: skip


def _choose_next(
    task: Task, now: dt.datetime, delay: float = 0.0, delay_reason: str = ""
) -> tuple[str, str]:
    """Where a task that would go on goes: cancel, pause, limits, then the next step.

    No limit keeps a task from undoing its effects.
    """
    if task.cancel_requested:
        return states.CANCELLED, states.CANCELLED_BY_OPERATOR
    if task.pause_requested and not delay:
        # With a delay the pause waits until the task would become queued.
        return states.PAUSED, states.PAUSED_BY_OPERATOR
    exhausted = limits.find_exhausted(task) or limits.find_overdue(task, now)
    if exhausted and task.ending is None:
        return states.DEAD, exhausted
    return (states.SCHEDULED, delay_reason) if delay else (states.QUEUED, "")


def leave_if_cancelled(
    task: Task, held: Claimed, now: dt.datetime, edge: str, fields: dict[str, Any]
) -> bool:
    """running -> cancelled along `edge`, with the unit's `fields`, if that was asked for."""
    if task.cancel_requested:
        reason = states.CANCELLED_BY_OPERATOR
        leave_running(task, held, now, edge, states.CANCELLED, reason, 0, fields)
    return task.cancel_requested


def leave_running(
    task: Task,
    held: Claimed,
    now: dt.datetime,
    edge: str,
    target: str,
    reason: str,
    delay: float,
    fields: dict[str, Any],
    least: int = 0,
) -> None:
    """Leave `running` along `edge`, with the event that the target asks for."""
    worker = Actor("worker", held.owner)
    if target == states.SCHEDULED:
        due = now + dt.timedelta(seconds=delay)
        fields = {**fields, "available_at": due}
        record_event(task, "scheduled", worker, now, reason=reason, until=due.isoformat())
    elif target == states.CANCELLED:
        by = Actor.parse(task.cancel_by)
        end_task(task, now, edge, target, actor=by, reason=reason, by_holder=True, **fields)
        return
    elif target == states.PAUSED:
        by = Actor.parse(task.pause_by) if task.pause_requested else worker
        record_event(task, "paused", by, now, reason=reason)
        fields = {**fields, "pause_requested": False}
    elif target in {states.DEAD, states.FAILED}:
        if not fields.get("error"):
            text = limits.describe_reason(reason)
            fields = {**fields, "error": make_error(task, "LimitReached", text)}
        if limits.asks_people(task, reason):
            until = now + dt.timedelta(seconds=delay)
            then = describe_timer(_TIMERS.get(edge, ""), until) if delay else {}
            return ask_limit(task, now, edge, reason, worker, fields, then, least, by_holder=True)
        said = {"reason": reason, "error": fields["error"]}
        if target == states.FAILED:
            end_task(task, now, edge, target, actor=worker, reason=reason, by_holder=True,
                     said=said, **fields)  # fmt: skip
            return
        record_event(task, target, worker, now, **said)
    move_task(task, now, edge, target, reason=reason, by_holder=True, **fields)


def store_unit(
    task: Task, held: Claimed, unit: Unit, now: dt.datetime, superseded_in: int | None = None
) -> dict[str, Any]:
    """Insert the output row; return what a finished unit changes on the task."""
    task.event_seq += 1
    StepOutput.objects.create(
        task=task, seq=task.event_seq, round=task.round, step_index=task.step_index,
        step_name=task.step_name, turn=task.turn, output=json.loads(unit.output),
        started_at=held.started_at, finished_at=now, worker=held.owner, fence=held.fence,
        tokens=unit.tokens, cost=unit.cost, log_tail=unit.log_tail, workspace=unit.workspace,
        superseded_in_round=superseded_in,
    )  # fmt: skip
    task.used_units += 1
    fields: dict[str, Any] = {
        **FRESH_UNIT, "used_units": task.used_units, "last_progress_at": now, "error": None,
        "step_index": unit.next_index, "step_name": unit.next_name, "turn": unit.next_turn,
    }  # fmt: skip
    if unit.next_index != task.step_index:
        fields |= NO_REPORT
    if unit.progress is not None:
        fields["progress"] = json.loads(unit.progress)
    if unit.workspace:
        fields["workspace"] = unit.workspace
    return fields


def record_attempt(
    task: Task, held: Claimed, attempt: Attempt, now: dt.datetime, kind: str, **more: Any
) -> None:
    """The event of an attempt that ended without an accepted output."""
    if attempt.log:
        more["log"] = attempt.log
    record_event(
        task, kind, Actor("worker", held.owner), now,
        started_at=held.started_at.isoformat(), worker=held.owner, error=attempt.error,
        tokens=attempt.tokens, cost=conf.format_money(attempt.cost), log_tail=attempt.log_tail,
        **more,
    )  # fmt: skip
