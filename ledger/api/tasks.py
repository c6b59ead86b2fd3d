"""/tasks: submit, read, wait, list, and everything that people do to a task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any
from uuid import UUID

from django.http import HttpRequest
from ninja import Header, Query, Router, Status

from ledger import queries
from ledger.access import OPERATE, READ, SUBMIT
from ledger.api.auth import require_any, require_scope
from ledger.api.bodies import (
    ActionIn,
    BatchIn,
    ChangeIn,
    ChangeLimitsIn,
    DeleteDemoIn,
    EditOutputIn,
    FilterIn,
    ForkIn,
    MarkEffectIn,
    RepairIn,
    SignalIn,
    SubmitIn,
)
from ledger.api.effects import EffectOut
from ledger.api.files import ArtifactOut
from ledger.api.longpoll import wait_for_change
from ledger.api.schemas import (
    DeletedOut,
    EventOut,
    HandoffOut,
    OutputOut,
    PageOut,
    SpendOut,
    TaskBrief,
    TaskOut,
)
from ledger.errors import InvalidInput
from ledger.handoff import build_handoff, count_tokens
from ledger.queries import DEFAULT_LIMIT, Page, TaskFilter
from ledger.queries.paging import read_seq
from ledger.transitions import deleting, operators, outputs
from ledger.transitions.effects import compensate_task, mark_effect
from ledger.transitions.forks import fork_task
from ledger.transitions.submit import check_key, submit_task, submit_tasks
from ledger.transitions.waits import send_signal

router = Router(tags=["tasks"])

Key = Annotated[str | None, Header(alias="Idempotency-Key")]


@router.post("", response={200: TaskOut, 201: TaskOut})
def submit(
    request: HttpRequest, body: SubmitIn, idempotency_key: Key = None
) -> Status[dict[str, Any]]:
    """Submit a task. With an `Idempotency-Key` the same body gives the same task, with 200."""
    actor = require_scope(request, SUBMIT)
    _check_key(idempotency_key)
    given = _read_submission(body)
    given["workflow"] = queries.find_workflow(body.workflow, body.workflow_version)
    task, created = submit_task(**given, key=idempotency_key, actor=actor)
    return Status(201 if created else 200, queries.show_task(task.pk))


def _check_key(key: str | None) -> None:
    check_key(key, "Idempotency-Key")


@router.post("/batch", response={200: PageOut[TaskBrief], 201: PageOut[TaskBrief]})
def submit_batch(request: HttpRequest, body: BatchIn) -> Status[Page[dict[str, Any]]]:
    """Submit up to 1,000 tasks, all or none; in the order given. 200 when all were there already.

    Each may have an idempotency `key` of its own. What is wrong is named `items.N.FIELD`.
    """
    actor = require_scope(request, SUBMIT)
    items = [_read_submission(item) | {"key": item.key} for item in body.items]
    stored = submit_tasks(items, actor=actor)
    created = any(new for _, new in stored)
    shown = queries.show_tasks([task.pk for task, _ in stored])
    return Status(201 if created else 200, Page(shown))


@router.post("/delete-demo", response=DeletedOut)
def delete_demo(request: HttpRequest, body: DeleteDemoIn | None = None) -> dict[str, Any]:
    """Delete the finished tasks of the demo that nothing else stands on; says why others stay."""
    actor = require_scope(request, OPERATE)
    found = deleting.delete_demo(actor=actor, reason=(body or DeleteDemoIn()).reason)
    return {
        "deleted": [str(one.id) for one in found if not one.why],
        "kept": [{"id": str(one.id), "why": one.why} for one in found if one.why],
    }


def _read_submission(body: SubmitIn) -> dict[str, Any]:
    """The arguments of `submit_task` that stand in a body."""
    return {
        "workflow": body.workflow,
        "version": body.workflow_version,
        "input": body.input,
        "title": body.title,
        "lane": body.lane,
        "priority": body.priority,
        "tags": body.tags,
        "limits_given": body.limits.list_given() if body.limits else None,
        "max_repairs": body.max_repairs,
        "not_before": body.not_before,
    }


@router.get("", response=PageOut[TaskBrief])
def list_tasks(
    request: HttpRequest,
    filters: Query[FilterIn],
    limit: int = DEFAULT_LIMIT,
    cursor: str = "",
) -> Page[dict[str, Any]]:
    """Tasks, newest first. A filter may stand several times: any of its values, with `not_` none
    of them. `status` takes comma-separated lists too; ages are `<2h` (since then) or `>2h`.
    """
    require_scope(request, READ)
    wanted = TaskFilter(filters.list_pairs())
    return queries.list_tasks(wanted, limit=limit, cursor=cursor)


@router.get("/{task_id}", response=TaskOut)
def get_task(
    request: HttpRequest, task_id: UUID, wait: float | None = None, revision: int | None = None
) -> dict[str, Any]:
    """A task. With `wait` (seconds, at most 60) the answer comes when `revision` is passed."""
    require_scope(request, READ)
    if wait is not None:
        if not wait >= 0:
            raise InvalidInput("wait", "takes seconds, from 0.")
        seen = queries.read_revision(task_id) if revision is None else revision
        wait_for_change(request, task_id, seen, wait)
    return queries.show_task(task_id)


@router.get("/{task_id}/outputs", response=PageOut[OutputOut])
def list_outputs(
    request: HttpRequest,
    task_id: UUID,
    all: bool = False,
    limit: int = DEFAULT_LIMIT,
    cursor: str = "",
) -> Page[dict[str, Any]]:
    """The accepted outputs, in order; `all=1` shows also those that a restart superseded."""
    require_scope(request, READ)
    queries.read_revision(task_id)
    return queries.list_outputs(task_id, superseded=all, limit=limit, cursor=cursor)


@router.get("/{task_id}/events", response=PageOut[EventOut])
def list_events(
    request: HttpRequest,
    task_id: UUID,
    after: str = "",
    limit: int = DEFAULT_LIMIT,
    cursor: str = "",
) -> Page[dict[str, Any]]:
    """The record of a task, in order, accepted outputs included; `after` a seq."""
    require_scope(request, READ)
    queries.read_revision(task_id)
    return queries.list_events(task_id, after=after, limit=limit, cursor=cursor)


@router.get("/{task_id}/artifacts", response=PageOut[ArtifactOut])
def list_artifacts(
    request: HttpRequest, task_id: UUID, limit: int = DEFAULT_LIMIT, cursor: str = ""
) -> Page[dict[str, Any]]:
    """What the task produced, newest first."""
    require_scope(request, READ)
    queries.read_revision(task_id)
    return queries.list_artifacts(task_id, limit=limit, cursor=cursor)


@router.get("/{task_id}/spend", response=PageOut[SpendOut])
def list_spend(
    request: HttpRequest, task_id: UUID, limit: int = DEFAULT_LIMIT, cursor: str = ""
) -> Page[dict[str, Any]]:
    """The single amounts that attempts spent, in order, those of lost attempts included."""
    require_scope(request, READ)
    queries.read_revision(task_id)
    return queries.list_spend(task_id, limit=limit, cursor=cursor)


@router.get("/{task_id}/effects", response=PageOut[EffectOut])
def list_effects(
    request: HttpRequest, task_id: UUID, limit: int = DEFAULT_LIMIT, cursor: str = ""
) -> Page[dict[str, Any]]:
    """What the task did to the world outside, in the order in which it was first begun."""
    require_scope(request, READ)
    queries.read_revision(task_id)
    return queries.list_effects(task_id, limit=limit, cursor=cursor)


@router.get("/{task_id}/handoff", response=HandoffOut)
def show_handoff(
    request: HttpRequest, task_id: UUID, tokens: int | None = None, sent: str = ""
) -> dict[str, Any]:
    """What a unit is told of the work before it, as Markdown and as data, within a bound; or what
    one was told (`sent`, the id in its output's `handoff`)."""
    require_scope(request, READ)
    queries.read_revision(task_id)
    queries.require_payload()
    if sent:
        row = queries.find_handoff(task_id, read_seq(sent, "sent"))
        text = row["text"] or None
        count = None if text is None else count_tokens(text)
        return {"task": str(task_id), "digest": row["digest"], "tokens": count, "markdown": text,
                "data": None}  # fmt: skip
    now = build_handoff(task_id, tokens)
    names = ("markdown", "data", "digest", "tokens")
    return {"task": str(task_id), **{name: getattr(now, name) for name in names}}


@router.post("/{task_id}/effects/{effect_id}/mark", response=TaskOut)
def settle_effect(
    request: HttpRequest, task_id: UUID, effect_id: int, body: MarkEffectIn
) -> dict[str, Any]:
    """Say what came of an effect that nobody knows of, or that it was undone."""
    given = {"effect_id": effect_id, "to": body.to, "result": body.result}
    return _act(request, task_id, mark_effect, body, **given)


@router.post("/{task_id}/compensate", response=TaskOut)
def compensate(request: HttpRequest, task_id: UUID, body: ActionIn | None = None) -> dict[str, Any]:
    """Undo the effects of a task that gave up or failed; after that it ends as it has ended."""
    return _act(request, task_id, compensate_task, body or ActionIn())


@router.post("/{task_id}/cancel", response=TaskOut)
def cancel(request: HttpRequest, task_id: UUID, body: ActionIn | None = None) -> dict[str, Any]:
    """End the task: at once, or at the end of the unit that runs. Twice is harmless.

    What it did outside is undone first, where it has compensations for that.
    """
    return _act(request, task_id, operators.cancel_task, body or ActionIn())


@router.post("/{task_id}/stop", response=TaskOut)
def stop(request: HttpRequest, task_id: UUID, body: ActionIn | None = None) -> dict[str, Any]:
    """End the unit that runs, after a cancel that it does not heed."""
    return _act(request, task_id, operators.stop_task, body or ActionIn())


@router.post("/{task_id}/pause", response=TaskOut)
def pause(request: HttpRequest, task_id: UUID, body: ActionIn | None = None) -> dict[str, Any]:
    """Hold the task where it is, or from the end of the unit that runs."""
    return _act(request, task_id, operators.pause_task, body or ActionIn())


@router.post("/{task_id}/resume", response=TaskOut)
def resume(request: HttpRequest, task_id: UUID, body: ActionIn | None = None) -> dict[str, Any]:
    """Let a paused task go on."""
    return _act(request, task_id, operators.resume_task, body or ActionIn())


@router.post("/{task_id}/retry", response=TaskOut)
def retry(request: HttpRequest, task_id: UUID, body: ActionIn | None = None) -> dict[str, Any]:
    """Run the same unit now."""
    return _act(request, task_id, operators.retry_task, body or ActionIn())


@router.post("/{task_id}/repair", response=TaskOut)
def repair(request: HttpRequest, task_id: UUID, body: RepairIn) -> dict[str, Any]:
    """Restart from a step: its output and all later ones are superseded.

    With `workflow_version` the task goes on under that version, from any step of it.
    """
    more = {"to_step": body.to_step, "note": body.note, "version": body.workflow_version}
    return _act(request, task_id, operators.restart_task, body, **more)


@router.post("/{task_id}/change", response=TaskOut)
def change(request: HttpRequest, task_id: UUID, body: ChangeIn) -> dict[str, Any]:
    """Change title, lane, priority or tags; what runs goes on."""
    given = {name: getattr(body, name) for name in ("title", "lane", "priority", "tags")}
    return _act(request, task_id, operators.change_task, body, **given)


@router.post("/{task_id}/outputs/{seq}/edit", response=TaskOut)
def edit_output(
    request: HttpRequest, task_id: UUID, seq: int, body: EditOutputIn
) -> dict[str, Any]:
    """Put another output in a unit's place: later ones are superseded, it goes on from there."""
    return _act(request, task_id, outputs.edit_output, body, seq=seq, output=body.output)


@router.post("/{task_id}/fork", response={200: TaskOut, 201: TaskOut})
def fork(
    request: HttpRequest, task_id: UUID, body: ForkIn, idempotency_key: Key = None
) -> Status[dict[str, Any]]:
    """A new task with copies of the outputs before a step; the original stays as it is.

    From any status. With an `Idempotency-Key` the same body gives the same copy, with 200.
    """
    actor = require_scope(request, OPERATE)
    _check_key(idempotency_key)
    copy, created = fork_task(
        task_id,
        from_step=body.from_step,
        actor=actor,
        input=body.input,
        version=body.workflow_version,
        key=idempotency_key,
        reason=body.reason,
        revision=body.revision,
    )
    return Status(201 if created else 200, queries.show_task(copy.pk))


@router.post("/{task_id}/signals/{name}", response=TaskOut)
def signal(
    request: HttpRequest,
    task_id: UUID,
    name: str,
    body: SignalIn | None = None,
    idempotency_key: Key = None,
) -> dict[str, Any]:
    """Put a signal into the task's mailbox; a task that waits for it goes on.

    With the scope `submit` alone a caller signals its own tasks only.
    """
    actor, scopes = require_any(request, OPERATE, SUBMIT)
    _check_key(idempotency_key)
    given = body or SignalIn()
    send_signal(
        task_id,
        name=name,
        data=given.data,
        key=idempotency_key,
        actor=actor,
        reason=given.reason,
        revision=given.revision,
        only_own=OPERATE not in scopes,
    )
    return queries.show_task(task_id)


@router.post("/{task_id}/limits", response=TaskOut)
def extend_limits(request: HttpRequest, task_id: UUID, body: ChangeLimitsIn) -> dict[str, Any]:
    """Change the bounds; a task that a limit had ended goes on."""
    given = body.list_given() | (body.limits.list_given() if body.limits else {})
    return _act(request, task_id, operators.extend_limits, body, limits_given=given)


def _act(
    request: HttpRequest,
    task_id: UUID,
    transition: Callable[..., None],
    body: ActionIn,
    **more: Any,
) -> dict[str, Any]:
    actor = require_scope(request, OPERATE)
    transition(task_id, actor=actor, reason=body.reason, revision=body.revision, **more)
    return queries.show_task(task_id)
