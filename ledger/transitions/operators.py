"""What people (and their tokens) do to a task, guarded by what they were shown if they say so."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from django.db.models import Q

from ledger import canonical, conf, limits, queries, sql, states
from ledger.errors import InvalidInput, UnparsableInput, Unserialisable, WrongStatus
from ledger.events import Actor, record_event
from ledger.models import Task
from ledger.transitions.approvals import void_open_approval
from ledger.transitions.endings import (
    check_kept,
    check_not_undone,
    end_task,
    refuse_end,
    will_end,
)
from ledger.transitions.holder import forget_answer, supersede_outputs
from ledger.transitions.limit_answers import (
    change_limits,
    find_limit_question,
    go_on_after_limit,
    has_room,
    leave_stored_unit,
)
from ledger.transitions.mailbox import give_back_messages
from ledger.transitions.moves import (
    FRESH_UNIT,
    NO_FLAGS,
    NO_REPORT,
    check_reached,
    lock_task,
    move_task,
    require_status,
    update_row,
)
from ledger.transitions.submit import read_columns
from ledger.transitions.waits import revive_wait
from ledger.workflows import Workflow

FORK_HINT = "It is final; copy it from a step instead."


def cancel_task(
    task_id: UUID | str, *, actor: Actor, reason: str = "", revision: int | None = None
) -> None:
    """Anything but completed -> cancelled, at once; of what runs, a flag for the next boundary.

    Or -> queued, to undo its effects first. Cancelling twice is harmless. Raises Compensating for
    a task that undoes them already, to end otherwise.
    """
    check_reason(reason)
    with lock_task(task_id, revision) as (task, now):
        if task.status == states.CANCELLED or will_end(task, states.CANCELLED):
            return
        refuse_end(task, "cancel")
        require_status(task, "cancel", states.UNFINISHED | {states.FAILED, states.DEAD})
        if task.status == states.RUNNING:
            if not task.cancel_requested:
                record_event(task, "cancel_requested", actor, now, reason=reason)
                update_row(
                    task, {"cancel_requested": True, "cancel_by": str(actor), "updated_at": now}
                )
            return
        _cancel(task, now, "cancel_task", actor, reason)


def stop_task(
    task_id: UUID | str, *, actor: Actor, reason: str = "", revision: int | None = None
) -> None:
    """running with cancel asked -> cancelled now: the worker is fenced off, its unit is lost.

    Or -> queued, to undo its effects first.
    """
    check_reason(reason)
    with lock_task(task_id, revision) as (task, now):
        require_status(task, "stop", {states.RUNNING})
        refuse_end(task, "stop")
        if not task.cancel_requested:
            hint = "Ask to cancel first; stop is for a unit that won't end."
            raise WrongStatus("stop", task.status, hint)
        _cancel(task, now, "stop_task", actor, reason)


def _cancel(task: Task, now: dt.datetime, edge: str, actor: Actor, reason: str) -> None:
    void_open_approval(task, actor, now, "the task was cancelled")
    end_task(task, now, edge, states.CANCELLED, actor=actor,
             reason=states.CANCELLED_BY_OPERATOR, said={"reason": reason})  # fmt: skip


def pause_task(
    task_id: UUID | str, *, actor: Actor, reason: str = "", revision: int | None = None
) -> None:
    """queued -> paused at once; else a flag that acts where the task would become queued."""
    check_reason(reason)
    with lock_task(task_id, revision) as (task, now):
        require_status(task, "pause", states.UNFINISHED)
        if task.status == states.PAUSED or task.pause_requested:
            return
        if task.status == states.QUEUED:
            record_event(task, "paused", actor, now, reason=reason)
            return move_task(task, now, "pause_task", states.PAUSED,
                             reason=states.PAUSED_BY_OPERATOR)  # fmt: skip
        record_event(task, "pause_requested", actor, now, reason=reason)
        update_row(task, {"pause_requested": True, "pause_by": str(actor), "updated_at": now})


def resume_task(
    task_id: UUID | str, *, actor: Actor, reason: str = "", revision: int | None = None
) -> None:
    """paused -> queued; of anything else unfinished, take the wish to pause back."""
    check_reason(reason)
    with lock_task(task_id, revision) as (task, now):
        require_status(task, "resume", states.UNFINISHED)
        if task.status != states.PAUSED and not task.pause_requested:
            return
        record_event(task, "resumed", actor, now, reason=reason)
        if task.status == states.PAUSED:
            return move_task(task, now, "resume_task", states.QUEUED, **_unpause())
        update_row(task, {**_unpause(), "updated_at": now})


def retry_task(
    task_id: UUID | str, *, actor: Actor, reason: str = "", revision: int | None = None
) -> None:
    """scheduled, failed, dead or running -> queued: the same unit now.

    From failed and dead the counters of the unit start anew; from running the task is taken from
    its worker, uncharged. A cancel or a pause that was asked for is taken back. Of a task that was
    undoing its effects that goes on; once it has ended, only a restart does what is undone again.
    """
    check_reason(reason)
    with lock_task(task_id, revision) as (task, now):
        require_status(
            task, "retry", {states.SCHEDULED, states.FAILED, states.DEAD, states.RUNNING},
            FORK_HINT if task.status in states.FINAL else "",
        )  # fmt: skip
        fields: dict[str, Any] = {**NO_FLAGS}
        if task.status in states.FINISHED:
            check_not_undone(task, "retry")
            fields |= {**FRESH_UNIT, **leave_stored_unit(task)}
        record_event(task, "retried", actor, now, reason=reason, taken_from=task.lease_owner)
        if task.status == states.RUNNING:
            fields |= {"rank": task.rank, "available_at": task.available_at}
        move_task(task, now, "retry_task", **fields, **revive_wait(task, now))


def restart_task(
    task_id: UUID | str,
    *,
    to_step: str | int,
    note: str,
    actor: Actor,
    version: str | None = None,
    reason: str = "",
    revision: int | None = None,
) -> None:
    """Anything but completed and cancelled -> queued at `to_step`, with `note` as feedback.

    Outputs of that step and all later ones are superseded, an open approval is voided, the round
    rises; a person's restart is not counted against max_repairs. A running worker is fenced off.
    With `version` the task goes on under that version of its workflow, from any of its steps: the
    way on for a task whose own version is gone, or that stands at no step of it. What a task has
    undone by then stays undone; what it has not is undone no more.

    Raises UnknownStep, UnknownWorkflow when neither this process nor a live worker has the code,
    or InvalidInput for an input that the version doesn't take, and for a step after an effect that
    is undone.
    """
    check_reason(reason)
    check_reason(note, "note")
    with lock_task(task_id, revision) as (task, now):
        allowed = frozenset(states.STATUSES) - states.FINAL
        require_status(task, "restart", allowed, FORK_HINT)
        workflow = queries.find_workflow(task.workflow, version or task.workflow_version)
        index = _find_step(task, workflow, to_step)
        name = workflow.steps[index].name
        later = [step.name for step in workflow.steps[index:]]
        kept = ~(Q(step_index__gte=index) | Q(step_name__in=later))
        check_kept(task, kept, "to_step", name, "restart")
        moved = _enter_version(task, workflow)
        void_open_approval(task, actor, now, "the task was restarted")
        give_back_messages(task)
        supersede_outputs(task, index, task.round + 1, later)
        feedback = {"comment": note, "by": str(actor)}
        record_event(task, "repaired", actor, now, to=name, round=task.round + 1,
                     feedback=feedback, reason=reason, by_workflow=False,
                     taken_from=task.lease_owner, version=workflow.version)  # fmt: skip
        move_task(
            task, now, "restart_task", states.QUEUED, **FRESH_UNIT, **NO_FLAGS,
            round=task.round + 1, step_index=index, step_name=name, turn=0, feedback=feedback,
            ending=None, **NO_REPORT, **forget_answer(task, index), **moved,
        )  # fmt: skip


def _find_step(task: Task, workflow: Workflow, to_step: str | int) -> int:
    index = workflow.index_of(to_step)
    own = workflow.version == task.workflow_version and task.status_reason != states.VERSION_MISFIT
    if own:
        check_reached(task, [step.name for step in workflow.steps], index, "to_step", "restart")
    return index


def _enter_version(task: Task, workflow: Workflow) -> dict[str, Any]:
    """The columns of a task that goes on under `workflow`; its input must be one of it."""
    columns = {
        "definition_digest": workflow.digest(), "total_steps": len(workflow.steps),
        "on_limit": workflow.on_limit, "self_approval": workflow.self_approval,
    }  # fmt: skip
    if workflow.version == task.workflow_version:
        return columns
    return columns | {
        "workflow_version": workflow.version, "input": workflow.clean_input(task.input)
    }  # fmt: skip


def extend_limits(
    task_id: UUID | str,
    *,
    limits_given: Mapping[str, Any],
    actor: Actor,
    reason: str = "",
    revision: int | None = None,
) -> None:
    """Change the bounds of anything unfinished; what a limit had ended goes on: dead -> queued.

    A question about the limit is closed by it. Raises InvalidInput naming the limit, also when a
    dead task's own limit is still used up.
    """
    check_reason(reason)
    columns = limits.read_limits(limits_given, fill=False)
    if not columns:
        raise InvalidInput("limits", f"name at least one of {', '.join(limits.NAMES)}")
    with lock_task(task_id, revision) as (task, now):
        dead_by_limit = task.status == states.DEAD and task.status_reason in states.LIMIT_REASONS
        if not dead_by_limit:
            require_status(task, "extend the limits of", states.UNFINISHED)
        if dead_by_limit:
            check_not_undone(task, "extend the limits of")
        columns = change_limits(task, columns, actor, now, reason)
        if dead_by_limit:
            over = limits.find_exhausted(task) or limits.find_overdue(task, now)
            if over or (task.wall_left is not None and task.wall_left <= 0):
                name = (over or states.LIMIT_WALL).removeprefix("limit_")
                raise InvalidInput(f"limits.{name}", "is still used up; raise it further")
            return go_on_after_limit(task, now, "extend_limits", columns)
        question = find_limit_question(task)
        if question is None or not has_room(question, task, now):
            return update_row(task, {**columns, "updated_at": now})
        void_open_approval(task, actor, now, reason or "the limit was changed")
        go_on_after_limit(task, now, "go_on_after_limit", columns, question)


def change_task(
    task_id: UUID | str,
    *,
    actor: Actor,
    title: str | None = None,
    lane: str | None = None,
    priority: int | None = None,
    tags: Sequence[str] | None = None,
    reason: str = "",
    revision: int | None = None,
) -> None:
    """Title, lane, priority and tags of anything but completed and cancelled, wherever it stands.

    None leaves one as it is. The place in the queue follows the priority. A holder keeps its lease:
    no write of a holder touches these columns. Raises InvalidInput naming the field.
    """
    check_reason(reason)
    given = {"title": title, "lane": lane, "priority": priority, "tags": tags}
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        raise InvalidInput("changes", "name at least one of title, lane, priority, tags")
    with lock_task(task_id, revision) as (task, now):
        require_status(task, "change", frozenset(states.STATUSES) - states.FINAL, FORK_HINT)
        before = {name: getattr(task, name) for name in ("title", "lane", "priority", "tags")}
        after = read_columns(**(before | given), key=None, max_repairs=None, not_before=None)
        columns = {name: after[name] for name in given if after[name] != before[name]}
        if not columns:
            return
        old = {name: before[name] for name in columns}
        record_event(task, "edited", actor, now, reason=reason, before=old, after=dict(columns))
        shift = (task.priority - after["priority"]) * conf.RANK_PER_PRIORITY
        update_row(task, {**columns, "rank": task.rank + shift, "updated_at": now})
        if task.status == states.QUEUED:
            sql.wake_workers()


def _unpause() -> dict[str, Any]:
    return {"pause_requested": False, "pause_by": ""}


def check_reason(text: Any, field: str = "reason") -> None:
    """Raise InvalidInput unless `text` can be put on record as a reason."""
    if not isinstance(text, str) or len(text) > 4000:
        raise InvalidInput(field, "takes a text of at most 4,000 characters")
    try:
        canonical.check_json(text, field)
    except Unserialisable as error:
        raise UnparsableInput(field, error.why) from None
