"""A person writes another output in a unit's place, and the task goes on from there."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from django.db.models import Q

from ledger import conf, queries, states
from ledger.errors import CONTENTS_REMOVED, ContentsRemoved, InvalidInput, NotEditable, NotFound
from ledger.events import Actor, record_event, shorten_values
from ledger.models import StepOutput, Task
from ledger.transitions.approvals import void_open_approval
from ledger.transitions.endings import explain_undone, find_undone
from ledger.transitions.holder import forget_answer
from ledger.transitions.mailbox import give_back_messages
from ledger.transitions.moves import (
    FRESH_UNIT,
    NO_FLAGS,
    NO_REPORT,
    lock_task,
    move_task,
    require_status,
)
from ledger.transitions.operators import FORK_HINT, check_reason
from ledger.transitions.rebuilding import (
    Place,
    check_stand,
    list_live,
    read_stand,
    record_spilled,
)
from ledger.transitions.submit import check_value


def edit_output(
    task_id: UUID | str,
    seq: int,
    *,
    output: Any,
    actor: Actor,
    reason: str,
    revision: int | None = None,
) -> None:
    """Anything but completed and cancelled -> queued, where it would be had the unit left `output`.

    The live output `seq` and all later ones are superseded, a new row takes its place under fence
    0, progress and workspace are what they were after it, the round rises. An open approval is
    voided, a running worker is fenced off.

    Raises TaskNotFound, NotFound, WrongStatus, StaleRevision, UnknownWorkflow, NotEditable for what
    is superseded, what people were asked about and what comes after an effect that is undone,
    InvalidInput, UnparsableInput, PayloadTooLarge.
    """
    check_reason(reason)
    if not reason.strip():
        raise InvalidInput("reason", "is required: it is on record with the edit")
    if not isinstance(output, dict):
        raise InvalidInput("output", "takes a JSON object")
    check_value("output", output, conf.load().inline_output_bytes)
    seen = queries.find_task(UUID(str(task_id)))
    if seen.thinned_at is not None:
        raise ContentsRemoved
    row = StepOutput.objects.filter(task=seen, seq=seq).defer("log_tail").first()
    if row is None:
        raise NotFound("output", seq)
    before = _select_before(row)
    through = before | Q(seq=seq)
    stand = read_stand(seen.pk, through, instead=(seq, output))
    with lock_task(seen.pk, revision) as (task, now):
        allowed = frozenset(states.STATUSES) - states.FINAL
        require_status(task, "edit an output of", allowed, FORK_HINT)
        check_stand(task, through, stand, seen.revision)
        if why := find_obstacle(task, seq):
            raise NotEditable(seq, why)
        place = _find_next(task, row)
        void_open_approval(task, actor, now, "an output was edited")
        give_back_messages(task)
        list_live(task.pk, ~before).update(superseded_in_round=task.round + 1)
        unit = _store(task, row, output, actor, now)
        record_spilled(stand, task, unit, actor, now)
        old = {"status": task.status, "output": row.output}
        new = {"status": states.QUEUED, "output": output}
        record_event(
            task, "edited", actor, now, step=row.step_name, turn=row.turn, reason=reason,
            to=place["step_name"], round=unit.round, output=unit.seq, replaces=row.seq,
            taken_from=task.lease_owner, before=shorten_values(old), after=shorten_values(new),
        )  # fmt: skip
        move_task(
            task, now, "edit_output", states.QUEUED, **FRESH_UNIT, **NO_FLAGS, **NO_REPORT,
            **place, round=unit.round, progress=stand.progress, workspace=stand.workspace,
            ending=None,
            **({} if _leads_to(task, place) else forget_answer(task, row.step_index)),
        )  # fmt: skip


def explain_obstacle(task: Task, seq: int) -> str:
    """Why the output `seq` can't be edited, as a sentence; empty when it can, or is not there."""
    if task.thinned_at is not None:
        return CONTENTS_REMOVED
    if task.status in states.FINAL:
        return FORK_HINT
    why = find_obstacle(task, seq)
    return str(NotEditable(seq, why)) if why else ""


def explain_unit(task: Task, unit: Mapping[str, Any]) -> str:
    """The same of a unit that `queries.list_units` chose; no query unless something is undone."""
    if task.status in states.FINAL:
        return FORK_HINT
    why = _find_obstacle_of(task, SimpleNamespace(**unit))
    return str(NotEditable(unit["seq"], why)) if why else ""


def find_obstacle(task: Task, seq: int) -> str:
    """Why the output `seq` can't be edited as `task` is now, whatever its status; empty when it
    can. One query, and one more of a task that has undone something."""
    found = StepOutput.objects.filter(task=task, seq=seq).defer("output", "log_tail")
    row = found.annotate(**queries.look_for_edit(task.pk)).first()
    return "" if row is None else _find_obstacle_of(task, row)


def _find_obstacle_of(task: Task, row: Any) -> str:
    """The same of an output that was read with what `look_for_edit` says."""
    if row.superseded_in_round is not None:
        return "it is superseded; edit the one in its place"
    stored = task.waits is not None and task.waits["for"] != states.BUDGET
    if stored and row.seq == row.last:
        return f"the task waits since then; restart from {row.step_name}"
    if row.asked:
        return (
            f"people were asked about it as it is; restart from {row.step_name}, so that they "
            "are asked again"
        )
    kept = _select_before(row) | Q(seq=row.seq)
    undone = find_undone(task, kept) if row.undoes else None
    return "" if undone is None else explain_undone(undone, task)


def _select_before(row: StepOutput) -> Q:
    """The units before this one."""
    return Q(step_index__lt=row.step_index) | Q(step_index=row.step_index, turn__lt=row.turn)


def _leads_to(task: Task, place: dict[str, Any]) -> bool:
    """Whether what the task was told since, such as a signal, is for the unit that comes next."""
    return task.answer is not None and task.answer.get("for_step") == place["step_name"]


def _store(
    task: Task, row: StepOutput, output: dict[str, Any], actor: Actor, now: dt.datetime
) -> Place:
    task.event_seq += 1
    unit = Place(task.event_seq, row.step_index, row.step_name, row.turn, task.round + 1)
    StepOutput.objects.create(
        task=task, **unit._asdict(), output=output, started_at=now, finished_at=now,
        worker=str(actor), fence=0, workspace=row.workspace,
    )  # fmt: skip
    return unit


def _find_next(task: Task, row: StepOutput) -> dict[str, Any]:
    """The unit that came after this one: the next turn of a loop that went on, else the next step.

    Whether a loop goes on is what its code decided at that turn, and an edit does not ask it.
    """
    here = task.step_index == row.step_index and task.turn > row.turn
    if here or list_live(task.pk, Q(step_index=row.step_index, turn__gt=row.turn)).exists():
        return {"step_index": row.step_index, "step_name": row.step_name, "turn": row.turn + 1}
    workflow = queries.find_workflow(task.workflow, task.workflow_version)
    after = workflow.steps[workflow.index_of(row.step_name) + 1 :]
    if not after:
        raise NotEditable(row.seq, f"no step comes after {row.step_name}; restart from it")
    return {"step_index": row.step_index + 1, "step_name": after[0].name, "turn": 0}
