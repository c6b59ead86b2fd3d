"""What only the pages read: newest first, without large columns, a few summed figures."""

from __future__ import annotations

import dataclasses
import datetime as dt
import zlib
from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import Any
from uuid import UUID

from django.db.models import Count, F, Q, QuerySet, Sum, TextField
from django.db.models.functions import Cast

from ledger import clock, conf, states
from ledger.calls import sees_payload
from ledger.conf import format_money
from ledger.errors import NotFound
from ledger.models import Approval, Event, StepOutput, Task
from ledger.models.approvals import OPEN
from ledger.queries.filters import IsStalled
from ledger.queries.fleet import Fleet, load_fleet
from ledger.queries.history import show_event, show_outputs
from ledger.queries.seen import explain_missing, hide_text, see_approvals, see_tasks
from ledger.queries.tasks import COUNT_CAP

STOP_AFTER = 10.0
"""A unit has so many seconds to end by itself after a cancel was asked; then it may be stopped."""

MAX_FRESH = 100
"""New tasks are counted up to here; a page that stood for so long is loaded again anyway."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepSum:
    """What the live outputs of one step add up to; `nano` is money in nano-units."""

    index: int
    units: int
    worked: dt.timedelta
    tokens: int
    nano: int


def read_tag(task_id: UUID) -> str:
    """The polling tag of a task; see `make_tag`. Raises TaskNotFound."""
    columns = ("revision", "beat", "status", "lease_until", "cancel_requested", "updated_at",
               "workflow", "workflow_version", "lane", "concurrency_key", "concurrency_limit",
               "held_key")  # fmt: skip
    rows = see_tasks().annotate(stalled=IsStalled(), read_at=clock.now()).only(*columns)
    row = rows.filter(pk=task_id).first()
    if row is None:
        raise explain_missing(task_id)
    return make_tag(row)


def make_tag(row: Task, fleet: Fleet | None = None) -> str:
    """`revision.beat`, and what time alone has made of a running task since, or of a queued one its
    workers and its lane.

    That is `.lost`, `.late` or `.stalled`, and `.stop` once it may be stopped; a sum over why it
    does not start. Of a row with `read_at` and `stalled`.
    """
    why = ""
    if row.status == states.QUEUED:
        why = (fleet or load_fleet()).find_reason(row)
    late = "stalled" if getattr(row, "stalled", False) else ""
    if (left := seconds_left(row)) is not None and left < count_warning():
        late = "late" if left > 0 else "lost"
    parts = [str(row.revision), str(row.beat), late, "stop" if may_stop(row) else "",
             f"{zlib.crc32(why.encode()):x}" if why else ""]  # fmt: skip
    return ".".join(part for part in parts if part)


def seconds_left(row: Task) -> float | None:
    """Of a lease, by the database's clock; None without one."""
    read_at: dt.datetime = getattr(row, "read_at")  # noqa: B009  an annotation, not a column
    return None if row.lease_until is None else (row.lease_until - read_at).total_seconds()


def count_warning() -> float:
    """A lease that has fewer seconds left than this missed a beat, and is counted down."""
    tunables = conf.load()
    return min(15.0, tunables.lease_seconds - 2 * tunables.heartbeat_seconds)


def may_stop(row: Task) -> bool:
    """True when a unit goes on STOP_AFTER seconds after somebody asked to cancel."""
    read_at: dt.datetime = getattr(row, "read_at")  # noqa: B009
    waits = row.status == states.RUNNING and row.cancel_requested
    # The request was the last thing that anybody wrote: a checkpoint would have ended the task.
    return waits and (read_at - row.updated_at).total_seconds() >= STOP_AFTER


def sum_steps(task_id: UUID) -> list[StepSum]:
    """What the outputs that no restart superseded add up to, step by step, in order."""
    live = StepOutput.objects.filter(task=task_id, superseded_in_round__isnull=True)
    sums = live.values("step_index").annotate(
        units=Count("id"), worked=Sum(F("finished_at") - F("started_at")),
        all_tokens=Sum("tokens"), nano=Sum("cost"),
    )  # fmt: skip
    columns = ("step_index", "units", "worked", "all_tokens", "nano")
    return [StepSum(*row) for row in sums.order_by("step_index").values_list(*columns)]


def list_latest_outputs(task_id: UUID, *, before: int = 0, limit: int = 50) -> list[dict[str, Any]]:
    """The last units of a task, newest first, superseded ones too; `before` a seq, if given."""
    rows = StepOutput.objects.filter(task=task_id).defer("log_tail").order_by("-seq")
    if before:
        rows = rows.filter(seq__lt=before)
    return show_outputs(task_id, rows[:limit])


def find_output(task_id: UUID, seq: int) -> dict[str, Any]:
    """One unit with its log tail, tokens and cost. Raises NotFound."""
    row = StepOutput.objects.filter(task=task_id, seq=seq).first()
    if row is None:
        raise NotFound("output", seq)
    more = {
        "log_tail": hide_text(row.log_tail),
        "tokens": row.tokens,
        "cost": format_money(row.cost),
    }
    [shown] = show_outputs(task_id, [row])
    return shown | more


def find_edit_reason(task_id: UUID, seq: int) -> str:
    """Why a person wrote the output `seq` in a worker's place."""
    told = Event.objects.filter(task=task_id, kind="edited", data__output=seq)
    return str(told.values_list("data__reason", flat=True).first() or "")


def list_latest_events(
    task_id: UUID, *, before: int = 0, limit: int = 50, kind: str = "", text: str = ""
) -> list[dict[str, Any]]:
    """The last events of a task, newest first, without the checkpoints (those are its outputs).

    `kind` narrows them to one kind, `before` to those of a lower seq, `text` to those with it in
    kind, step, actor or, of who sees contents, in the data as it is stored.
    """
    rows = Event.objects.filter(task=task_id).order_by("-seq")
    if text:
        names = ("kind", "step", "actor", *(("written",) if sees_payload() else ()))
        has = [Q(**{f"{name}__icontains": text}) for name in names]
        rows = rows.alias(written=Cast("data", TextField())).filter(reduce(or_, has))
    if kind:
        rows = rows.filter(kind=kind)
    if before:
        rows = rows.filter(seq__lt=before)
    return [show_event(row) for row in rows[:limit]]


def count_waiting() -> int:
    """How many approvals wait for an answer, counted up to COUNT_CAP."""
    return select_waiting().count()


def select_waiting() -> QuerySet[Approval]:
    """The approvals that wait for an answer, as they are counted."""
    return see_approvals().filter(status=OPEN).order_by()[:COUNT_CAP]


def list_asked(task_id: UUID) -> list[dict[str, Any]]:
    """The questions that a task asked, newest first, without body and payload."""
    rows = see_approvals().filter(task=task_id).order_by("-requested_at", "-id")
    own = "id step round subject status decision decided_by comment requested_at decided_at".split()
    return _hide_comments(rows.values(*own)[:20])


def _hide_comments(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "comment": hide_text(row["comment"])} for row in rows]
