"""What attempts logged: of what runs what its worker wrote down last, of the rest what is stored.

A position in a log is a number that an answer gave: from there on the next one goes on.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet

from ledger import blobs, states
from ledger.errors import InvalidInput, LedgerError, NotFound
from ledger.models import Artifact, Event, LiveLog, StepOutput, Task
from ledger.queries.seen import explain_missing, require_payload, see_artifacts, see_tasks
from ledger.unitlog import LOG_TYPE, read_after

RUNNING, DONE = "running", "done"
ENDS = {"attempt_failed": "failed", "released": "released", "reclaimed": "lost",
        "compensated": "undone"}  # fmt: skip
KEPT = frozenset({"failed", "undone"})
"""The ends whose event holds the end of the log."""
TAKEN = "taken"
"""From its worker, by an operator: only what was written down of its log says that it was."""

MAX_BYTES = 262_144
"""Of a log in one answer, unless all of it is asked for."""


@dataclasses.dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt that may have a log; its fence names it."""

    fence: int
    step: str
    turn: int
    state: str
    key: int = 0
    """Of the row that holds it: an output's, an event's, or a live log's."""
    logged: bool = False
    """Whether a row holds some of its log."""
    at: dt.datetime | None = None
    """When it ended; None while it runs."""


NONE = Attempt(0, "", 0, "")


def list_attempts(
    task_id: UUID, *, unit: str = "", after: int = 0, newest: int = 0
) -> list[Attempt]:
    """Attempts with a fence above `after`, in order; the last `newest` of them, if given.

    `unit` is `STEP:TURN`, or a step. Raises TaskNotFound, InvalidInput, NotAllowed.
    """
    return _list_attempts(_find_task(task_id), unit, {"fence__gt": after}, newest)


def read_log(
    task_id: UUID,
    *,
    unit: str = "",
    fence: int = 0,
    after: int = 0,
    whole: bool = False,
) -> dict[str, Any]:
    """The log of an attempt: of `fence`, or the last one at `unit`, or the one that is last of all.

    `{task, step, turn, fence, state, text, next, artifact, finished}`: `text` is what comes after
    the position `after`, at most MAX_BYTES unless `whole`, and `next` the position where that
    ends. `finished` says that the task is. Of a task that no attempt was made at, fence is 0.
    Raises NotFound, TaskNotFound, InvalidInput, NotAllowed.
    """
    if after < 0 or fence < 0:
        raise InvalidInput("after" if after < 0 else "fence", "takes a number, from 0.")
    task = _find_task(task_id)
    if fence:
        found = _list_attempts(task, unit, {"fence": fence}, 0)
    else:
        found = _list_attempts(task, unit, {}, 1)
    if not found and (fence or unit):
        raise NotFound("log", unit or fence)
    attempt = found[-1] if found else NONE
    return _show_log(task, attempt, after, whole)


def open_log(
    task_id: UUID, *, fence: int = 0, newest: int = 1
) -> tuple[Task, list[Attempt], dict[str, Any]]:
    """The task (with its title and workflow), its `newest` attempts, and as `read_log` the whole
    log of `fence`, or of the last attempt, with `at`, when that ended. Raises NotFound,
    TaskNotFound, NotAllowed."""
    task = _find_task(task_id)
    attempts = _list_attempts(task, "", {}, newest) if newest > 1 or not fence else []
    found = [one for one in attempts if one.fence == fence or not fence]
    if fence and not found:
        found = _list_attempts(task, "", {"fence": fence}, 0)
        if not found:
            raise NotFound("log", fence)
    attempt = found[-1] if found else NONE
    return task, attempts, {**_show_log(task, attempt, 0, True), "at": attempt.at}


def _show_log(task: Task, attempt: Attempt, after: int, whole: bool) -> dict[str, Any]:
    text, start, artifact = _read_text(task, attempt)
    shown, at = read_after(text, after, start, None if whole else MAX_BYTES)
    return {
        "task": str(task.pk), "step": attempt.step, "turn": attempt.turn, "fence": attempt.fence,
        "state": attempt.state, "text": shown, "next": at,
        "artifact": str(artifact.pk) if artifact else None,
        "finished": task.status in states.FINISHED,
    }  # fmt: skip


def _find_task(task_id: UUID) -> Task:
    columns = ("status", "fence", "step_name", "turn", "title", "workflow", "thinned_at",
               "thinned_days")  # fmt: skip
    task = see_tasks().filter(pk=task_id).only(*columns).first()
    if task is None:
        raise explain_missing(task_id)
    require_payload()
    return task


def _list_attempts(task: Task, unit: str, fences: dict[str, int], newest: int) -> list[Attempt]:
    step, turn = _read_unit(unit)
    found: dict[int, Attempt] = {}
    at_work = task.status == states.RUNNING and task.fence >= fences.get("fence__gt", -1) + 1
    at_work = at_work and fences.get("fence", task.fence) == task.fence
    if at_work and step in {"", task.step_name} and turn in {None, task.turn}:
        found[task.fence] = Attempt(task.fence, task.step_name, task.turn, RUNNING, logged=True)
        if newest == 1:
            return list(found.values())
    own = {"task": task.pk, "fence__gt": 0, **fences}
    narrow = {} if turn is None else {"turn": turn}
    named = narrow | ({"step": step} if step else {})
    outputs = StepOutput.objects.filter(**own, **narrow)
    outputs = outputs.filter(step_name=step) if step else outputs
    events = Event.objects.filter(**own, **named, kind__in=ENDS)
    live = LiveLog.objects.filter(**own, **named)
    told = Q(data__has_key="log_tail") & ~Q(data__log_tail="")
    # The first that knows of an attempt knows best.
    for row, logged in _cut(outputs, "seq", newest, ~Q(log_tail=""), "step_name", "finished_at"):
        found.setdefault(row[0], Attempt(row[0], row[1], row[2], DONE, row[3], logged, row[4]))
    for row, logged in _cut(events, "seq", newest, told, "step", "at", "kind"):
        found.setdefault(
            row[0], Attempt(row[0], row[1], row[2], ENDS[row[5]], row[3], logged, row[4])
        )
    for row, logged in _cut(live, "fence", newest, ~Q(text=""), "step", "at"):
        first = found.setdefault(row[0], Attempt(row[0], row[1], row[2], TAKEN, row[3], at=row[4]))
        found[row[0]] = dataclasses.replace(first, logged=first.logged or logged)
    return [found[one] for one in sorted(found)][-newest:]


def _cut(
    rows: QuerySet[Any], order: str, newest: int, logged: Q, step: str, *more: str
) -> Iterator[tuple[Any, bool]]:
    """(fence, step, turn, key …) of the rows, and whether they have some of the log."""
    rows = rows.order_by(f"-{order}")[:newest] if newest else rows.order_by(order)
    columns = ("fence", step, "turn", "pk", *more)
    for row in rows.values_list(*columns, ExpressionWrapper(logged, BooleanField())):
        yield row[:-1], bool(row[-1])


def _read_unit(unit: str) -> tuple[str, int | None]:
    step, colon, turn = unit.rpartition(":")
    if not colon:
        return unit, None
    if not (turn.isascii() and turn.isdigit() and len(turn) < 10):
        raise InvalidInput("unit", "takes STEP:TURN, such as draft:0.")
    return step, int(turn)


def _read_text(task: Task, attempt: Attempt) -> tuple[str, int, Artifact | None]:
    """What is stored of an attempt's log, the position where that begins, and all of it."""
    if attempt.state in KEPT | {DONE}:
        rows = see_artifacts().filter(task=task.pk, media_type=LOG_TYPE, fence=attempt.fence)
        artifact = rows.first()
        if artifact is not None and artifact.blob_id is not None:
            try:
                with blobs.open_blob(artifact.blob_id) as file:
                    return file.read().decode(errors="replace"), 0, artifact
            except (LedgerError, OSError):
                pass  # the end of it is in the row
    if attempt.state == DONE:
        text = StepOutput.objects.filter(pk=attempt.key).values_list("log_tail", flat=True).first()
        return text or "", 0, None
    if attempt.state in KEPT:
        data = Event.objects.filter(pk=attempt.key).values_list("data__log_tail", flat=True)
        return str(data.first() or ""), 0, None
    live = LiveLog.objects.filter(task=task.pk, fence=attempt.fence).first()
    if live is None:
        return "", 0, None
    text = live.text and live.text + "\n"
    return text, live.size - len(text.encode()), None
