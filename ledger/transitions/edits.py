"""Raw edits of a task by an admin: one guarded write for every column that people may change.

An edit takes the task from its worker, raises fence and revision, and is on record with what was
there before. What only the engine can know (lease, question, outcome) is not set by hand.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db import DataError, IntegrityError
from django.db.models import Q

from ledger import auditing, bounds, canonical, clock, conf, limits, queries, registry, sql, states
from ledger.concurrency import read_new_key
from ledger.errors import (
    InvalidInput,
    PayloadTooLarge,
    UnknownWorkflow,
    UnparsableInput,
    Unserialisable,
    WrongStatus,
)
from ledger.events import Actor, record_event, shorten_values
from ledger.models import StepOutput, Task
from ledger.transitions.approvals import void_open_approval
from ledger.transitions.endings import (
    end_task,
    explain_undone,
    find_undone,
    is_undoing,
    list_open,
    refuse_end,
)
from ledger.transitions.holder import forget_answer
from ledger.transitions.limit_answers import find_limit_question, go_on_after_limit, has_room
from ledger.transitions.mailbox import give_back_messages
from ledger.transitions.moves import FRESH_UNIT, NO_FLAGS, lock_task, move_task, update_row
from ledger.transitions.operators import FORK_HINT, check_reason
from ledger.transitions.submit import FAR_FUTURE, check_count, read_columns

STATUSES = (states.QUEUED, states.SCHEDULED, states.PAUSED, states.CANCELLED)
"""What a status can be set to. `running` takes a lease, `waiting` a question, `completed` an
accepted output; `failed` and `dead` are verdicts of the engine."""

_REASONS = {
    states.QUEUED: "",
    states.SCHEDULED: states.NOT_BEFORE,
    states.PAUSED: states.PAUSED_BY_OPERATOR,
    states.CANCELLED: states.CANCELLED_BY_OPERATOR,
}
_LABELS = ("title", "lane", "priority", "tags", "max_repairs")
_POSITION = ("workflow_version", "step_index", "step_name", "turn")
_COUNTERS = ("attempts", "reclaims", "releases", "repair_count")
_LIMITS = {
    "limit_units": "units", "limit_tokens": "tokens", "limit_cost": "cost", "limit_wall": "wall",
    "deadline_at": "deadline_at",
}  # fmt: skip
_FLAGS = ("cancel_requested", "pause_requested")

EDITABLE = (
    "status", "available_at", *_LABELS, *_POSITION, "input", "progress", "feedback", *_COUNTERS,
    *_LIMITS, "stall_after", *_FLAGS,
)  # fmt: skip
"""The columns that `edit_task` takes; everything else follows from them or is a record."""

FINAL_EDITABLE = frozenset({"title", "tags"})
"""Of a completed or cancelled task: the labels. It is never set going again."""


def edit_task(
    task_id: UUID | str,
    *,
    changes: Mapping[str, Any],
    actor: Actor,
    reason: str,
    revision: int,
) -> None:
    """Any status to itself, or of an unfinished, failed or dead task to one of STATUSES.

    `changes` maps columns of EDITABLE to values as clients write them (money as a decimal
    string). A running task goes to the head of the queue, uncharged, or where its flags lead. A
    change of position, or of status, supersedes the outputs from there on, in a new round. A task
    that undoes its effects goes on with that, unless its position is changed.

    Raises TaskNotFound, StaleRevision, WrongStatus, Compensating, and InvalidInput naming the
    column.
    """
    check_reason(reason)
    if not reason.strip():
        raise InvalidInput("reason", "is required: it is on record with the edit")
    if unknown := sorted(set(changes) - set(EDITABLE)):
        raise InvalidInput(unknown[0], "is not to be edited")
    try:
        with lock_task(task_id, revision) as (task, now):
            _edit(task, now, dict(changes), actor, reason)
    except (IntegrityError, DataError) as error:
        raise InvalidInput("changes", f"the database refuses them: {error}") from None


def _edit(task: Task, now: dt.datetime, changes: dict[str, Any], actor: Actor, reason: str) -> None:
    if task.status in states.FINAL and not FINAL_EDITABLE.issuperset(changes):
        raise WrongStatus("edit more than title and tags of", task.status, FORK_HINT)
    target = _choose_target(task, changes)
    columns = _read_changes(task, changes, target, actor)
    columns = {name: new for name, new in columns.items() if _differs(new, getattr(task, name))}
    if not columns and changes.get("status", task.status) == task.status:
        raise InvalidInput("changes", "nothing differs from what is stored")
    moved = not columns.keys().isdisjoint({"step_index", "turn"})
    if target == states.WAITING and (moved or "workflow_version" in columns):
        # The question holds the names of the steps that an answer leads to.
        raise InvalidInput("step_name", "it waits for an answer at this step; set the status too")
    undoing = is_undoing(task) and not moved
    if undoing and target == states.CANCELLED:
        refuse_end(task, "cancel")
    if task.ending is not None and (moved or (not undoing and target != task.status)):
        columns["ending"] = None
    superseded = 0
    if moved or (target in STATUSES[:3] and not undoing):
        superseded = _supersede(task, columns)
        if moved or task.status in states.FINISHED:
            _check_not_undone(task, columns)
    if target != states.WAITING and task.status == states.WAITING:
        void_open_approval(task, actor, now, "the task was edited")
    before = {name: _show(name, getattr(task, name)) for name in ("status", *columns)}
    after = {name: _show(name, new) for name, new in ({"status": target} | columns).items()}
    record_event(
        task, "edited", actor, now, audited=False, reason=reason, taken_from=task.lease_owner,
        superseded=superseded, before=shorten_values(before), after=shorten_values(after),
    )  # fmt: skip
    # The raw edit is on record whole, where the event holds the digest of what is long.
    auditing.write_entry(
        actor, "edit_task", f"task:{task.pk}", at=now, task=task.pk, reason=reason,
        before=before, after=after,
    )  # fmt: skip
    if target == states.CANCELLED and list_open(task.pk).exists():
        fields = columns | {"fence": task.fence + 1}
        end_task(task, now, "edit_task", target, actor=actor, reason=_REASONS[target], **fields)
        return
    if target == states.WAITING and _answer_limit(task, now, columns, actor, reason):
        return
    _write(task, now, target, columns, chosen="status" in changes)


def _answer_limit(
    task: Task, now: dt.datetime, columns: dict[str, Any], actor: Actor, reason: str
) -> bool:
    """Let a task that waits for more of a limit go on, if the edit gives it that."""
    question = find_limit_question(task)
    if question is None or columns.keys().isdisjoint(_LIMITS):
        return False
    for name, value in columns.items():
        setattr(task, name, value)
    if not has_room(question, task, now):
        return False
    void_open_approval(task, actor, now, reason)
    fields = columns | {"fence": task.fence + 1}
    go_on_after_limit(task, now, "go_on_after_limit", fields, question)
    return True


def _differs(new: Any, old: Any) -> bool:
    """Whether two values are stored differently; to Python 1, 1.0 and True are the same."""
    if isinstance(new, (dict, list)) and isinstance(old, (dict, list)):
        return canonical.dump_json(new) != canonical.dump_json(old)
    return bool(new != old)


def _choose_target(task: Task, changes: Mapping[str, Any]) -> str:
    """The status after the edit; a running task is taken from its worker as a reclaim takes it."""
    chosen = changes.get("status", task.status)
    if chosen != task.status:
        if chosen not in STATUSES:
            raise InvalidInput("status", f"can be set to {', '.join(STATUSES)}")
        return str(chosen)
    if task.status != states.RUNNING:
        return task.status
    if changes.get("cancel_requested", task.cancel_requested):
        return states.CANCELLED
    return states.PAUSED if task.pause_requested else states.QUEUED


def _read_changes(task: Task, changes: dict[str, Any], target: str, actor: Actor) -> dict[str, Any]:
    """The columns that the edit asks for, checked, with those that follow from them."""
    columns: dict[str, Any] = {}
    labels = {name: changes.get(name, getattr(task, name)) for name in _LABELS}
    if not changes.keys().isdisjoint(_LABELS):
        columns |= read_columns(**labels, key=None, not_before=None)
        del columns["idempotency_key"]
    if not changes.keys().isdisjoint(_POSITION):
        columns |= _read_position(task, changes)
    for name in changes.keys() & set(_COUNTERS):
        columns[name] = check_count(name, changes[name], 0, 1_000_000)
    if columns.get("repair_count", 0) > task.round:
        raise InvalidInput("repair_count", f"can't pass the number of rounds, {task.round}")
    if "stall_after" in changes:
        columns["stall_after"] = _check_seconds("stall_after", changes["stall_after"])
    columns |= _read_values(task, changes, columns.get("workflow_version", task.workflow_version))
    columns |= _read_limits(task, changes)
    if columns.get("priority", task.priority) != task.priority:
        shift = (task.priority - columns["priority"]) * conf.RANK_PER_PRIORITY
        columns["rank"] = task.rank + shift
    return columns | _read_time(task, changes, target) | _read_flags(changes, target, actor)


def _read_position(task: Task, changes: Mapping[str, Any]) -> dict[str, Any]:
    version = changes.get("workflow_version", task.workflow_version)
    steps, digest = _find_steps(task.workflow, version)
    name, index = changes.get("step_name"), changes.get("step_index")
    if steps is None:
        if version != task.workflow_version:
            raise InvalidInput("workflow_version", f"nobody knows {task.workflow} {version}")
        if (name is None) != (index is None):
            raise InvalidInput("step_name", "nobody knows the steps here; give name and index")
        steps = []
    if steps and index is not None and name is None:
        check_count("step_index", index, 0, len(steps) - 1)
        name = steps[index]
    name = task.step_name if name is None else name
    if steps and name not in steps:
        raise InvalidInput("step_name", f"is none of the steps: {', '.join(steps)}")
    at = steps.index(name) if steps else task.step_index if index is None else index
    if index is not None and index != at:
        raise InvalidInput("step_index", f"of {name} is {at}")
    columns: dict[str, Any] = {
        "step_name": name, "step_index": check_count("step_index", at, 0, 10_000),
    }  # fmt: skip
    if steps:
        columns |= {"total_steps": len(steps)}
    if version != task.workflow_version:
        columns |= {"workflow_version": version, "definition_digest": digest}
    same = (name, at) == (task.step_name, task.step_index)
    turn = changes.get("turn", task.turn if same else 0)
    return columns | {"turn": check_count("turn", turn, 0, 2**31 - 1)}


def _find_steps(workflow: str, version: str) -> tuple[list[str] | None, str]:
    """The names of the steps and the digest, as this process or a live worker knows them."""
    try:
        here = registry.get(workflow, version)
        return [step.name for step in here.steps], here.digest()
    except UnknownWorkflow:
        known = queries.load_fleet().knows.get((workflow, version))
        return (known.steps, known.digest) if known else (None, "")


def _read_values(task: Task, changes: Mapping[str, Any], version: str) -> dict[str, Any]:
    """input, progress, feedback: JSON within the bounds that submit and checkpoint keep."""
    tunables = conf.load()
    columns: dict[str, Any] = {}
    for name, most in (("input", tunables.input_bytes), ("feedback", tunables.input_bytes),
                       ("progress", tunables.inline_progress_bytes)):  # fmt: skip
        if name not in changes:
            continue
        value = changes[name]
        try:
            size = len(canonical.dump_json(value, name))
        except Unserialisable as error:
            raise UnparsableInput(name, f"{error.path} {error.why}") from None
        if size > most:
            raise PayloadTooLarge(name, f"is {size} bytes, the bound is {most}")
        columns[name] = value
    if not isinstance(columns.get("progress", {}), dict):
        raise InvalidInput("progress", "takes a JSON object")
    if columns.get("input", {}) is None:
        raise InvalidInput("input", "is required")
    if "input" in columns or version != task.workflow_version:
        try:
            workflow = registry.get(task.workflow, version)
            columns["input"] = workflow.clean_input(columns.get("input", task.input))
            columns |= read_new_key(workflow.concurrency, columns["input"], task.concurrency_key)
        except UnknownWorkflow:
            return columns  # the worker that knows it checks the input when it runs
        except InvalidInput as error:
            raise InvalidInput("input", f"{error.field}: {error.reason}") from None
    return columns


def _read_limits(task: Task, changes: Mapping[str, Any]) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name in changes.keys() & _LIMITS.keys():
        if changes[name] is None and name != "deadline_at":
            raise InvalidInput(name, "is required")
        try:
            columns |= limits.read_limits({_LIMITS[name]: changes[name]}, fill=False)
        except InvalidInput as error:
            raise InvalidInput(name, error.reason) from None
    if "deadline_at" in changes:
        columns.setdefault("deadline_at", None)
    return columns | limits.shift_wall(task, columns.get("limit_wall"))


def _read_time(task: Task, changes: Mapping[str, Any], target: str) -> dict[str, Any]:
    moment = changes.get("available_at")
    if moment is None:
        if target == states.SCHEDULED and task.status != target:
            raise InvalidInput("available_at", "say when the task becomes ready")
        return {}
    if target != states.SCHEDULED:
        raise InvalidInput("available_at", "is for scheduled tasks; set the status too")
    if not isinstance(moment, dt.datetime) or moment.tzinfo is None:
        raise InvalidInput("available_at", "needs an offset, such as 2026-01-31T12:00:00Z")
    if moment > clock.read() + FAR_FUTURE:
        raise InvalidInput("available_at", "is more than ten years away")
    return {"available_at": moment}


def _read_flags(changes: Mapping[str, Any], target: str, actor: Actor) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    if "cancel_requested" in changes:
        if changes["cancel_requested"]:
            raise InvalidInput("cancel_requested", "set the status to cancelled instead")
        columns |= {"cancel_requested": False, "cancel_by": ""}
    if "pause_requested" in changes:
        wanted = bool(changes["pause_requested"])
        if wanted and target not in {states.SCHEDULED, states.WAITING}:
            raise InvalidInput("pause_requested", "set the status to paused instead")
        columns |= {"pause_requested": wanted, "pause_by": str(actor) if wanted else ""}
    return columns


def _check_seconds(name: str, value: Any) -> float:
    try:
        return bounds.check_seconds(value, name, least=1.0)
    except ValueError as error:
        raise InvalidInput(name, str(error).removeprefix(f"{name}: ")) from None


def _supersede(task: Task, columns: dict[str, Any]) -> int:
    """Free the place of the unit that comes next; the outputs from there on stay on record."""
    index = columns.get("step_index", task.step_index)
    turn = columns.get("turn", task.turn)
    count = StepOutput.objects.filter(
        Q(step_index__gt=index) | Q(step_index=index, turn__gte=turn),
        task=task, superseded_in_round__isnull=True,
    ).update(superseded_in_round=task.round + 1)  # fmt: skip
    if count or (index, turn) != (task.step_index, task.turn):
        give_back_messages(task)
    if count:
        columns |= {"round": task.round + 1, **forget_answer(task, index)}
    return count


def _check_not_undone(task: Task, columns: Mapping[str, Any]) -> None:
    """Raise InvalidInput where the task would go on as if what was undone were still done."""
    unit = (columns.get(name, getattr(task, name)) for name in ("step_name", "turn", "round"))
    if (undone := find_undone(task, unit=tuple(unit))) is not None:
        raise InvalidInput("step_name", explain_undone(undone, task))


def _write(
    task: Task, now: dt.datetime, target: str, columns: dict[str, Any], *, chosen: bool
) -> None:
    """Move the row, or stay; the fence rises either way."""
    fields = columns | {"fence": task.fence + 1}
    if target == task.status:
        if "ending" in columns:  # it goes on at its steps
            fields |= {"waits": None, "status_reason": ""}
        update_row(task, fields | {"updated_at": now})
        if target == states.QUEUED:
            sql.wake_workers()
        return
    defaults: dict[str, Any] = dict(NO_FLAGS) if chosen else {}
    if task.status in states.FINISHED:
        defaults |= FRESH_UNIT
    if task.status == states.RUNNING and target == states.QUEUED:
        defaults |= {"rank": task.rank, "available_at": task.available_at}
    if target == states.PAUSED:
        defaults |= {"pause_requested": False}
    for name in ("limit_wall", "wall_until", "wall_left", "priority"):
        setattr(task, name, columns.get(name, getattr(task, name)))
    reason = _REASONS[target]
    if states.counts_wall(task.status, task.status_reason) != states.counts_wall(target, reason):
        fields = {n: v for n, v in fields.items() if n not in {"wall_until", "wall_left"}}
    _check_room(task, columns, target, now)
    move_task(task, now, "edit_task", target, reason=reason, **(defaults | fields))


def _check_room(task: Task, columns: Mapping[str, Any], target: str, now: dt.datetime) -> None:
    """Raise InvalidInput when a task that is set going would end by its own limit at once."""
    if target not in {states.QUEUED, states.SCHEDULED}:
        return
    for name in columns.keys() & _LIMITS.keys():
        setattr(task, name, columns[name])
    over = limits.find_exhausted(task) or limits.find_overdue(task, now)
    if not over and task.wall_left is not None and task.wall_left <= 0:
        over = states.LIMIT_WALL
    if over:
        name = "deadline_at" if over == states.LIMIT_DEADLINE else over
        raise InvalidInput(name, "is used up, the task would end at once; raise it too")


def _show(name: str, value: Any) -> Any:
    """A column's value as JSON."""
    if name == "limit_cost":
        return conf.format_money(value)
    return value.isoformat() if isinstance(value, dt.datetime) else value
