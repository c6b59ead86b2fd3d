"""A new task from any other, at any step that it has reached: the way on from what is final."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import Any
from uuid import UUID

from django.db.models import Q

from ledger import canonical, queries, states
from ledger.artifacts import VALUE_TYPE
from ledger.errors import InvalidInput
from ledger.events import Actor, record_event
from ledger.ids import make_id
from ledger.models import Approval, Artifact, StepOutput, Task
from ledger.transitions.approvals import describe_answer
from ledger.transitions.moves import lock_task, update_row
from ledger.transitions.operators import check_reason
from ledger.transitions.rebuilding import (
    Stand,
    check_stand,
    list_live,
    read_stand,
    record_spilled,
    select_before,
    select_unknown,
)
from ledger.transitions.submit import Draft, check_input, check_key, find_same, store_draft
from ledger.workflows import Workflow

KEPT = (
    "workflow", "input", "lane", "priority", "title", "tags", "limit_units", "limit_tokens",
    "limit_cost", "limit_wall", "max_repairs", "stall_after",
)  # fmt: skip
"""What a copy has in common with its original; of the limits nothing is used yet."""

CHUNK = 200


def fork_task(
    task_id: UUID | str,
    *,
    from_step: str | int,
    actor: Actor,
    input: Any = None,
    version: str | None = None,
    key: str | None = None,
    reason: str = "",
    revision: int | None = None,
) -> tuple[Task, bool]:
    """nothing -> queued at `from_step`: a copy of a task in any status, which stays as it is.

    The live outputs of the steps before are copied under fence 0, with what they saved; progress
    and workspace are what they add up to. Nothing is used yet, and no effect, spend or approval is
    taken along; the answer that led to `from_step` is. `input` replaces the original's, `version`
    its workflow's version: any of its steps will do then, and outputs are matched by their steps'
    names. The same `key` and body give the same copy: returns (task, created).

    Raises TaskNotFound, UnknownWorkflow, UnknownStep, StaleRevision, IdempotencyConflict, and
    InvalidInput where the step is not reached, the code lost a step that has an output before it,
    or people had agreed to another input or version.
    """
    check_reason(reason)
    source = queries.find_task(UUID(str(task_id)))
    workflow = queries.find_workflow(source.workflow, version or source.workflow_version)
    index = workflow.index_of(from_step)
    step = workflow.steps[index].name
    columns: dict[str, Any] = {
        "idempotency_key": check_key(key), "submitted_by": str(actor),
        "body_digest": canonical.digest_json(["fork", str(source.pk), step, version, input]),
    }  # fmt: skip
    found = find_same(columns)
    if found is not None:
        return found, False
    changed = input is not None or workflow.version != source.workflow_version
    if changed:
        columns["input"] = check_input(workflow, source.input if input is None else input)
    before = select_before(workflow, index)
    stand = read_stand(source.pk, before)
    with lock_task(source.pk, revision) as (task, now):
        check_stand(task, before, stand, source.revision)
        if workflow.version == task.workflow_version:
            _check_position(task, workflow, index)
        if changed:
            _check_answers(task, workflow, index)
        columns = _draw_columns(task, workflow, index, stand, now) | columns
        copy, created = store_draft(Draft(columns, actor))
        if created:
            _fill_copy(copy, task, workflow, stand, actor, now, reason)
        return copy, created


def _check_position(task: Task, workflow: Workflow, index: int) -> None:
    """The step is reached, and this code has every step before it that the task has outputs of."""
    name = workflow.steps[index].name
    if index > task.step_index and task.status_reason != states.VERSION_MISFIT:
        allowed = ", ".join(step.name for step in workflow.steps[: task.step_index + 1])
        raise InvalidInput("from_step", f"{name} has not been reached; copy from {allowed}")
    lost = list_live(task.pk, select_unknown(workflow, index)).first()
    if lost is not None:
        raise InvalidInput(
            "from_step",
            f"version {workflow.version} has no step {lost.step_name} any more, and this task an "
            f"output of it before {name}; copy from an earlier step, or name a version",
        )


def _check_answers(task: Task, workflow: Workflow, index: int) -> None:
    """What people agreed to must not come to stand for something else."""
    lineage = queries.list_lineage(task.pk)
    names = [step.name for step in workflow.steps[:index]]
    asked = Approval.objects.filter(task__in=lineage, step__in=names).order_by("step_index")
    if (step := asked.values_list("step", flat=True).first()) is not None:
        raise InvalidInput(
            "from_step",
            f"people were asked at {step} about the work as it was; with another input or version "
            f"copy from {step} or earlier, so that they are asked again",
        )


def _draw_columns(
    task: Task, workflow: Workflow, index: int, stand: Stand, now: dt.datetime
) -> dict[str, Any]:
    columns = {name: getattr(task, name) for name in KEPT}
    ahead = task.deadline_at is not None and task.deadline_at > now
    return columns | {
        "workflow_version": workflow.version, "definition_digest": workflow.digest(),
        "total_steps": len(workflow.steps), "step_index": index,
        "step_name": workflow.steps[index].name, "progress": stand.progress,
        "workspace": stand.workspace, "copied_from": task,
        "deadline_at": task.deadline_at if ahead else None,
        "answer": _find_answer(task, workflow.steps[index].name, stand),
    }  # fmt: skip


def _find_answer(task: Task, step: str, stand: Stand) -> dict[str, Any] | None:
    """People's answer, or the signal, that led to `step` from a unit that is copied; or None.

    The task's row has the last one only, the approvals have all, but not those of its original.
    """
    last = task.answer or {}
    asked_at = {place.step_name for place in stand.places} | {None}  # a signal was asked nowhere
    if last.get("for_step") == step and last.get("step") in asked_at:
        return task.answer
    units = {place.unit for place in stand.places}
    asked = Approval.objects.filter(
        task=task, status="approved", then="next", next_step=step, applied_at__isnull=False
    )
    for request in asked.order_by("-decided_at"):
        if (request.step_index, request.turn, request.round) in units:
            return describe_answer(request) | {"for_step": step, "for_turn": None}
    return None


def _fill_copy(
    copy: Task, task: Task, workflow: Workflow, stand: Stand, actor: Actor, now: dt.datetime,
    reason: str,
) -> None:  # fmt: skip
    """Outputs and artifacts, and the event on both sides."""
    note: dict[str, Any] = {
        "from_step": copy.step_name,
        "outputs": len(stand.places),
        "reason": reason,
    }
    record_event(copy, "forked", actor, now, copied_from=str(task.pk), **note)
    for chunk in itertools.batched(stand.places, CHUNK):
        _copy_outputs(copy, task, workflow, [place.seq for place in chunk], now)
    _copy_artifacts(copy, task, workflow, stand, now)
    if stand.spilled:
        last = stand.places[-1]
        at = last._replace(step_index=workflow.index_of(last.step_name), round=0)
        record_spilled(stand, copy, at, actor, now)
    Task.objects.filter(pk=copy.pk).update(event_seq=copy.event_seq)
    record_event(task, "forked", actor, now, copied_to=str(copy.pk), **note)
    update_row(task, {"updated_at": now})


def _copy_outputs(
    copy: Task, task: Task, workflow: Workflow, seqs: list[int], now: dt.datetime
) -> None:
    """As they are; but this task did no work for them, so they took no time and cost nothing."""
    rows = []
    for row in list_live(task.pk, Q(seq__in=seqs)):
        copy.event_seq += 1
        rows.append(
            StepOutput(
                task=copy, seq=copy.event_seq, round=0, turn=row.turn, output=row.output,
                step_index=workflow.index_of(row.step_name), step_name=row.step_name,
                started_at=now, finished_at=now, worker=row.worker, fence=0,
                workspace=row.workspace, copied_from={"task": str(task.pk), "seq": row.seq},
            )
        )  # fmt: skip
    StepOutput.objects.bulk_create(rows)


def _copy_artifacts(
    copy: Task, task: Task, workflow: Workflow, stand: Stand, now: dt.datetime
) -> None:
    """What those units saved, by the same names; the bytes are shared.

    Values that were too large for a row are read where they are: by their ids, which the outputs
    hold.
    """
    units = {place.unit for place in stand.places}
    saved = Artifact.objects.filter(task=task).exclude(media_type=VALUE_TYPE)
    names = "name step turn media_type blob_id created_by".split()
    Artifact.objects.bulk_create(
        (
            Artifact(
                id=make_id(), task=copy, round=0, created_at=now,
                step_index=workflow.index_of(row.step),
                **{name: getattr(row, name) for name in names},
            )
            for row in saved.order_by("created_at", "id")
            if (row.step_index, row.turn, row.round) in units
        ),
        batch_size=CHUNK,
    )  # fmt: skip
