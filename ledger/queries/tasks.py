"""Tasks as clients and operators see them: one, a filtered list, counts, the stalled ones."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import Case, CharField, Count, Expression, F, Value, When

from ledger import clock, states
from ledger.canonical import clean_text
from ledger.conf import format_money
from ledger.limits import describe_limits, describe_reserved, describe_used
from ledger.models import Task
from ledger.queries.counting import Tally
from ledger.queries.filters import IsStalled, TaskFilter
from ledger.queries.fleet import Fleet, load_fleet
from ledger.queries.paging import DEFAULT_LIMIT, Page, clamp_limit, page_newest
from ledger.queries.seen import explain_missing, hide_error, hide_text, hide_value, see_tasks

COUNT_CAP = 10_000
"""A status is counted no further: an exact count of old rows would become the costliest query."""

LARGE = ("input", "progress", "result", "feedback", "answer")
"""Columns that a list never reads; together they may hold half a megabyte a row."""

SHORT_TEXT = 300

_REASONS = {
    states.APPROVAL: "waits for an approval",
    states.BUDGET: "waits for its parent's budget",
    states.DECIDED: "decided; acts when the time to undo is over",
    states.SIGNAL: "waits for a signal",
    states.CHILDREN: "waits for its child tasks",
    states.BACKOFF: "backs off after a failed attempt",
    states.SLEEP: "sleeps",
    states.NOT_BEFORE: "starts later",
    states.RELEASED: "given back by its step, runs again later",
    states.VERSION_MISFIT: "its position does not fit the workflow's version",
    states.PAUSED_BY_OPERATOR: "paused by an operator",
}


class Later(Expression):
    """A value that is put in after the statement was compiled: it stands among the parameters."""

    output_field = CharField()

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        """A placeholder, whose parameter is a Later."""
        return "%s", (self,)


def find_task(task_id: UUID) -> Task:
    """The row itself, with `stalled` and the time of the look, `read_at`. Raises TaskNotFound."""
    rows = see_tasks().annotate(stalled=IsStalled(), read_at=clock.now())
    row = rows.filter(pk=task_id).first()
    if row is None:
        raise explain_missing(task_id)
    return row


def show_task(task_id: UUID) -> dict[str, Any]:
    """The Task JSON of one task. Raises TaskNotFound."""
    return task_json(find_task(task_id), load_fleet())


def list_children(parent_id: UUID, seq: int) -> list[dict[str, Any]]:
    """The tasks that one unit of a task spawned, in order; `seq` is the number of its output."""
    columns = ("id", "workflow", "title", "status", "status_reason", "result", "error")
    rows = see_tasks().filter(parent_id=parent_id, parent_seq=seq).order_by("id")
    return [
        {**row, "id": str(row["id"]), "result": hide_value(row["result"]),
         "error": hide_error(row["error"])}
        for row in rows.values(*columns)
    ]  # fmt: skip


def list_family(
    parent_id: UUID, fleet: Fleet | None = None, limit: int = 20
) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """(status -> number of a task's children, the Task JSON of some: what is not completed first).

    Without input, progress and result. One query; and one for the live workers, where a child waits
    for one and `fleet` is none that was loaded.
    """
    own = see_tasks().filter(parent_id=parent_id)
    tally = own.order_by().values(name=F("status")).annotate(number=Count("id"))
    rows = own.annotate(stalled=IsStalled(), tally=Tally(tally)).defer(*LARGE)
    done = Case(When(status=states.COMPLETED, then=1), default=0)
    some = list(rows.order_by(done, "id")[:limit])
    if not (fleet and fleet.knows) and any(row.status == states.QUEUED for row in some):
        fleet = load_fleet()
    counts: dict[str, int] = getattr(some[0], "tally") if some else {}  # noqa: B009
    return counts, [task_json(row, fleet or Fleet(0, {}), brief=True) for row in some]


def read_revision(task_id: UUID) -> int:
    """The revision alone: what a long poll asks for. Raises TaskNotFound."""
    revision = see_tasks().filter(pk=task_id).values_list("revision", flat=True).first()
    if revision is None:
        raise explain_missing(task_id)
    return revision


def list_lineage(task_id: UUID) -> list[UUID]:
    """The task and those that it was copied from, one from the other, the nearest first."""
    found = [task_id]
    sources = Task.objects.values_list("copied_from", flat=True)
    while source := sources.filter(pk=found[-1]).first():
        found.append(source)
    return found


def list_tasks(
    wanted: TaskFilter | None = None, *, limit: int = DEFAULT_LIMIT, cursor: str = ""
) -> Page[dict[str, Any]]:
    """Tasks, newest first, without their input, progress and result."""
    rows = (wanted or TaskFilter()).apply(see_tasks().annotate(stalled=IsStalled()).defer(*LARGE))
    page = page_newest(rows, "created_at", limit, cursor)
    fleet = load_fleet()
    return page.convert(lambda row: task_json(row, fleet, brief=True))


def show_tasks(keys: Sequence[UUID]) -> list[dict[str, Any]]:
    """The Task JSON of each, in this order, without input, progress and result."""
    rows = see_tasks().annotate(stalled=IsStalled()).defer(*LARGE).in_bulk(keys)
    fleet = load_fleet()
    return [task_json(rows[key], fleet, brief=True) for key in keys]


def list_stalled(limit: int = DEFAULT_LIMIT) -> list[dict[str, Any]]:
    """The running tasks without progress, the longest silent first."""
    rows = TaskFilter([("stalled", "yes")]).apply(
        see_tasks().annotate(stalled=IsStalled()).defer(*LARGE)
    )
    rows, fleet = rows.order_by("last_progress_at", "pk"), load_fleet()
    return [task_json(row, fleet, brief=True) for row in rows[: clamp_limit(limit)]]


def count_by_status(wanted: TaskFilter | None = None) -> dict[str, int]:
    """Status -> number of tasks that match `wanted`, whatever its status; each up to COUNT_CAP."""
    wanted = (wanted or TaskFilter()).drop_status()
    if wanted.found is not None or wanted.find_text():
        found = wanted.apply(see_tasks()).order_by().values_list("status")
        return dict.fromkeys(states.STATUSES, 0) | dict(found.annotate(number=Count("id")))
    rows = dataclasses.replace(wanted, since=None).apply(see_tasks().filter(status=Later()))
    parts: list[str] = []
    params: list[Any] = []
    for statuses, since in ((states.UNFINISHED, None), (states.FINISHED, wanted.since)):
        some = rows if since is None else rows.filter(created_at__gte=since)
        sql, given = some.order_by().values_list(Value(1))[:COUNT_CAP].query.sql_with_params()
        for status in sorted(statuses):
            parts.append(f"SELECT %s, (SELECT count(*) FROM ({sql}) AS capped)")
            params += [status, *(status if isinstance(one, Later) else one for one in given)]
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(parts), params)
        return dict(cursor.fetchall())


def task_json(row: Task, fleet: Fleet, *, brief: bool = False) -> dict[str, Any]:
    """The Task JSON; `brief` leaves out what a list does not read (`LARGE`)."""
    shown = {
        "id": str(row.pk),
        "workflow": row.workflow,
        "workflow_version": row.workflow_version,
        "title": row.title,
        "lane": row.lane,
        "priority": row.priority,
        "tags": row.tags,
        "submitted_by": row.submitted_by,
        "status": row.status,
        "status_reason": row.status_reason or _name_unit(row),
        "ending": None if row.ending is None else {k: row.ending[k] for k in ("status", "reason")},
        "error": hide_error(_shorten_error(row.error) if brief else row.error),
        "claimable": _show_claimable(row, fleet),
        "warnings": _list_warnings(row, fleet),
        "stalled": bool(getattr(row, "stalled", False)),
        "step": {"index": row.step_index, "name": row.step_name, "turn": row.turn},
        "total_steps": row.total_steps,
        "progress_report": {
            "done": row.progress_done,
            "total": row.progress_total,
            "note": hide_text(row.progress_note),
        },
        "lease": _show_lease(row.lease_owner, row.lease_until),
        "fence": row.fence,
        "attempts": row.attempts,
        "reclaims": row.reclaims,
        "round": row.round,
        "repairs": {"count": row.repair_count, "max": row.max_repairs},
        "used": describe_used(row),
        "reserved": describe_reserved(row),
        "limits": describe_limits(row),
        "cancel_requested": row.cancel_requested,
        "pause_requested": row.pause_requested,
        "parent": str(row.parent_id) if row.parent_id else None,
        "copied_from": str(row.copied_from_id) if row.copied_from_id else None,
        "waiting_for": _show_wait(row),
        "concurrency": _show_concurrency(row, fleet),
        "revision": row.revision,
        "available_at": row.available_at,
        "last_progress_at": row.last_progress_at,
        "created_at": row.created_at,
        "started_at": row.started_at,
        "updated_at": row.updated_at,
        "finished_at": row.finished_at,
        "contents_removed": _show_thinned(row),
    }
    if not brief:
        shown |= {
            "input": hide_value(row.input),
            "progress": hide_value(row.progress, {}),
            "result": hide_value(row.result),
        }
    return shown


def _name_unit(row: Task) -> str:
    """A claim leaves no reason, but what runs may be a compensation."""
    return "" if row.ending is None else states.COMPENSATING


def _show_thinned(row: Task) -> dict[str, Any] | None:
    """That retention took the contents of the task, when, and how many days after its end (null
    while it is at it)."""
    if row.thinned_at is None:
        return None
    return {"at": row.thinned_at, "days": row.thinned_days}


def _show_claimable(row: Task, fleet: Fleet) -> dict[str, Any]:
    if row.status == states.QUEUED:
        why = fleet.find_reason(row)
        return {"ok": not why, "why": why}
    if row.status == states.RUNNING:
        return {"ok": False, "why": "a worker holds it"}
    return {"ok": False, "why": _REASONS.get(row.status_reason, row.status)}


def _list_warnings(row: Task, fleet: Fleet) -> list[str]:
    """What does not keep the task from going on, yet a person should know."""
    if row.status in states.FINISHED:
        return []
    change = fleet.find_change(row.workflow, row.workflow_version, row.definition_digest)
    return [change] if change else []


def _show_wait(row: Task) -> dict[str, Any] | None:
    """Of a task that waits for a signal: its name, and until when; for children: how many; for its
    parent's budget: what the call that was refused needs of it."""
    if row.status != states.WAITING or row.waits is None:
        return None
    if row.waits["for"] == states.CHILDREN:
        return {"children": row.waits["count"], "open": row.children_open}
    if row.waits["for"] == states.BUDGET:
        cost = format_money(row.waits["cost"])
        return {"budget": {"tokens": row.waits["tokens"], "cost": cost}}
    return {"signal": row.waits["name"], "until": row.available_at.isoformat()}


def _show_concurrency(row: Task, fleet: Fleet) -> dict[str, Any] | None:
    """The key that it shares with others, how many may be under way, whether it is one of them;
    of a queued one, those that it waits for."""
    if row.concurrency_key is None:
        return None
    holds = row.held_key is not None and row.finished_at is None
    key = hide_text(row.concurrency_key)
    held_by = fleet.load_holders().list_seen(row) if row.status == states.QUEUED else []
    return {"key": key, "at_most": row.concurrency_limit, "holds": holds, "held_by": held_by}


def _show_lease(owner: str, until: dt.datetime | None) -> dict[str, Any] | None:
    return {"owner": owner, "until": until} if until else None


def _shorten_error(error: dict[str, Any] | None) -> dict[str, Any] | None:
    if not error or len(str(error.get("message", ""))) <= SHORT_TEXT:
        return error
    return error | {"message": clean_text(error["message"], SHORT_TEXT)}
