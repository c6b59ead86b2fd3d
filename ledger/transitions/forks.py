"""A new task from any other, at any step that it has reached: the way on from what is final."""

from __future__ import annotations

import datetime as dt
from typing import Any
from uuid import UUID

from django.db.models import Q

from ledger import auditing, canonical, queries, states, uploads
from ledger.artifacts import VALUE_TYPE
from ledger.concurrency import read_key_columns
from ledger.errors import ContentsRemoved, InvalidInput, StaleRevision
from ledger.events import Actor, record_event
from ledger.ids import make_id
from ledger.models import Approval, Artifact, Task
from ledger.models.approvals import QUESTION
from ledger.sql.copying import copy_outputs
from ledger.transitions.endings import check_kept
from ledger.transitions.moves import check_reached, lock_task, update_row
from ledger.transitions.operators import check_reason
from ledger.transitions.rebuilding import (
    Stand,
    check_stand,
    list_live,
    read_stand,
    record_spilled,
)
from ledger.transitions.submit import Draft, check_input, check_key, find_same, store_draft
from ledger.transitions.verdicts import describe_answer
from ledger.unitlog import LOG_TYPE
from ledger.workflows import Workflow

KEPT = (
    "workflow", "input", "lane", "priority", "title", "tags", "limit_units", "limit_tokens",
    "limit_cost", "limit_wall", "max_repairs", "stall_after", "concurrency_key",
    "concurrency_limit",
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
    its workflow's version, any step of which will do. The same `key` and body give the same copy:
    returns (task, created).

    Raises TaskNotFound, ContentsRemoved, UnknownWorkflow, UnknownStep, StaleRevision,
    IdempotencyConflict, and InvalidInput where the step is not reached, comes after an effect that
    is undone, or people had agreed to another input or version.
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
    _check_contents(source)
    changed = input is not None or workflow.version != source.workflow_version
    if changed:
        new = check_input(workflow, source.input if input is None else input)
        columns |= {"input": new, **read_key_columns(workflow.concurrency, new)}
    place = _find_place(source, workflow, index)
    before = Q(step_index__lt=place)
    stand = read_stand(source.pk, before)
    uploads.keep_named([source.input, input])
    with lock_task(source.pk, revision) as (task, now):
        _check_contents(task)
        check_stand(task, before, stand, source.revision)
        if _find_place(task, workflow, index) != place:
            raise StaleRevision(source.revision, task.revision)
        check_kept(task, before, "from_step", step, "copy")
        if changed:
            _check_answers(task, place)
        columns = _draw_columns(task, workflow, stand, now) | columns
        answer = _find_answer(task, step, stand)
        columns |= {"step_index": place, "step_name": step, "answer": answer}
        copy, created = store_draft(Draft(columns, actor))
        if created:
            _fill_copy(copy, task, stand, actor, now, reason)
            auditing.audit_submissions([copy], actor)
        return copy, created


def _check_contents(task: Task) -> None:
    if task.thinned_at is not None:
        raise ContentsRemoved


def _find_place(task: Task, workflow: Workflow, index: int) -> int:
    """Where a step begins among the task's outputs: what stands below is before it.

    Where it has run or is to run; a step that only `workflow` has, after the last one before it.
    """
    step = workflow.steps[index].name
    places = list_live(task.pk, Q(step_name=step)).values_list("step_index", flat=True)
    if places:
        return min(places)
    own = workflow.version == task.workflow_version and task.status_reason != states.VERSION_MISFIT
    if own:
        check_reached(task, [one.name for one in workflow.steps], index, "from_step", "copy")
    if task.step_name == step:
        return task.step_index
    earlier = Q(step_name__in=[one.name for one in workflow.steps[:index]])
    return max(list_live(task.pk, earlier).values_list("step_index", flat=True), default=-1) + 1


def _check_answers(task: Task, place: int) -> None:
    """What people agreed to must not come to stand for something else."""
    lineage = queries.list_lineage(task.pk)
    asked = Approval.objects.filter(task__in=lineage, step_index__lt=place, kind=QUESTION)
    asked = asked.order_by("step_index")
    if (step := asked.values_list("step", flat=True).first()) is not None:
        raise InvalidInput(
            "from_step",
            f"people were asked at {step} about the work as it was; with another input or version "
            f"copy from {step} or earlier, so that they are asked again",
        )


def _draw_columns(task: Task, workflow: Workflow, stand: Stand, now: dt.datetime) -> dict[str, Any]:
    columns = {name: getattr(task, name) for name in KEPT}
    ahead = task.deadline_at is not None and task.deadline_at > now
    return columns | {
        "workflow_version": workflow.version, "definition_digest": workflow.digest(),
        "on_limit": workflow.on_limit, "self_approval": workflow.self_approval,
        "total_steps": len(workflow.steps), "progress": stand.progress,
        "workspace": stand.workspace, "copied_from_id": task.pk,
        "deadline_at": task.deadline_at if ahead else None,
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
    copy: Task, task: Task, stand: Stand, actor: Actor, now: dt.datetime, reason: str
) -> None:
    """Outputs and artifacts, and the event on both sides."""
    note: dict[str, Any] = {
        "from_step": copy.step_name,
        "outputs": len(stand.places),
        "reason": reason,
    }
    record_event(copy, "forked", actor, now, copied_from=str(task.pk), **note)
    copy.event_seq += copy_outputs(task, copy, copy.step_index, now)
    _copy_artifacts(copy, task, stand, now)
    if stand.spilled:
        record_spilled(stand, copy, stand.places[-1]._replace(round=0), actor, now)
    Task.objects.filter(pk=copy.pk).update(event_seq=copy.event_seq)
    record_event(task, "forked", actor, now, copied_to=str(copy.pk), **note)
    update_row(task, {"updated_at": now})


def _copy_artifacts(copy: Task, task: Task, stand: Stand, now: dt.datetime) -> None:
    """What those units saved, by the same names; the bytes are shared.

    Values that were too large for a row are read where they are: by their ids, which the outputs
    hold.
    """
    units = {place.unit for place in stand.places}
    saved = Artifact.objects.filter(task=task, blob__isnull=False)
    saved = saved.exclude(media_type__in=(VALUE_TYPE, LOG_TYPE))
    names = "name step step_index turn media_type blob_id created_by made_from".split()
    Artifact.objects.bulk_create(
        (
            Artifact(
                id=make_id(), task=copy, round=0, created_at=now, copied_from=row.pk,
                **{name: getattr(row, name) for name in names},
            )
            for row in saved.order_by("created_at", "id")
            if (row.step_index, row.turn, row.round) in units
        ),
        batch_size=CHUNK,
    )  # fmt: skip
