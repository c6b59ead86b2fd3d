"""What of the ledger the present caller sees: rows by their lanes, contents by the permission.

Every read model takes its rows from here, so one that is added can't forget the lanes (a test reads
the code for it). A worker, a command and code of the same process see everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from django.db.models import Exists, OuterRef, Q, QuerySet, Value

from ledger.auditing import REMOVED_TASK
from ledger.calls import read_call, sees_lane, sees_payload
from ledger.errors import NotAllowed, TaskNotFound, TaskRemoved
from ledger.models import Approval, Artifact, AuditEntry, Task

HIDDEN = "(not shown without the permission payload)"

OPEN_DATA = frozenset(
    "started_at worker until tokens cost reclaims reason to round by_workflow taken_from version "
    "superseded superseded_in_round approval subject risk decision expires_at title lane name key "
    "copied_from copied_to from_step outputs taken count why delay number charged consequence "
    "replaces signal completed others then compensated tool limit percent used".split()
)
"""Of an event's data: statuses, times, names, figures. Everything else is contents."""

OPEN_COLUMNS = frozenset(
    "status title lane priority tags units tokens cost wall deadline_at".split()
)
"""Of what an event says of a change, `before` and `after`."""


def see_tasks() -> QuerySet[Task]:
    """The tasks of the caller's lanes."""
    lanes = read_call().lanes
    return Task.objects.all() if lanes is None else Task.objects.filter(lane__in=lanes)


def explain_missing(task_id: UUID) -> TaskNotFound:
    """Why there is no such task for the caller: retention deleted it, or there never was one."""
    kept = AuditEntry.objects.filter(task=task_id, action=REMOVED_TASK)
    found = kept.values_list("at", "before__lane", "after__days").first()
    if found is None or not sees_lane(found[1]):
        return TaskNotFound(task_id)
    return TaskRemoved(task_id, found[0], found[2])


def see_approvals() -> QuerySet[Approval]:
    """The questions of the tasks of the caller's lanes."""
    lanes = read_call().lanes
    rows = Approval.objects.all()
    return rows if lanes is None else rows.filter(task__lane__in=lanes)


def see_artifacts() -> QuerySet[Artifact]:
    """Artifacts of the tasks of the caller's lanes, and the caller's own uploads."""
    call = read_call()
    rows = Artifact.objects.all()
    if call.lanes is None:
        return rows
    own = Q(task__isnull=True, created_by=call.actor)
    return rows.filter(Q(task__lane__in=call.lanes) | own)


def write_lanes(column: str = "lane") -> tuple[str, list[str]]:
    """The same as a condition of a raw statement (` AND …`, or nothing), with its values."""
    lanes = read_call().lanes
    if lanes is None:
        return "", []
    if not lanes:
        return " AND false", []
    marks = ", ".join(["%s"] * len(lanes))
    return f" AND {column} IN ({marks})", sorted(lanes)


def require_payload() -> None:
    """Raise NotAllowed for a caller that is not shown contents."""
    if not sees_payload():
        raise NotAllowed("This needs the permission payload, which the caller does not have.")


def see_children(ids: Iterable[str]) -> set[str]:
    """Those of the tasks that the caller sees; for who sees all lanes, all without a look."""
    found = set(ids)
    if read_call().lanes is None or not found:
        return found
    return {str(pk) for pk in see_tasks().filter(pk__in=found).values_list("pk", flat=True)}


def find_hidden_family() -> Exists | Value:
    """Of a task as an annotation: whether children of it are in lanes that the caller does not
    see."""
    lanes = read_call().lanes
    if lanes is None:
        return Value(False)
    return Exists(Task.objects.filter(parent=OuterRef("pk")).exclude(lane__in=lanes))


def require_family(parent_id: UUID, row: Task | None = None) -> None:
    """Raise NotAllowed for a caller who sees only some of a task's children: a text that tells of
    all of them can't be shown in part. `row` is of `find_shown`, of who has just read it."""
    if read_call().lanes is None:
        return
    hidden = getattr(row, "family_hidden", None)
    if hidden is None:
        rows = Task.objects.filter(pk=parent_id).annotate(hides=find_hidden_family())
        hidden = rows.values_list("hides", flat=True).first()
    if hidden:
        raise NotAllowed("It tells of child tasks in lanes that the caller does not see.")


def hide_value(value: Any, instead: Any = None) -> Any:
    """`value` for who may see contents, else `instead`."""
    return value if sees_payload() else instead


def hide_text(text: str) -> str:
    """The same of a text; an empty one stays empty."""
    return text if not text or sees_payload() else HIDDEN


def hide_error(error: dict[str, Any] | None) -> dict[str, Any] | None:
    """An error without its text: its type, and where it happened."""
    return error if error is None or sees_payload() else drop_text(error)


def drop_text(error: Mapping[str, Any]) -> dict[str, Any]:
    """The same whoever asks."""
    kept = ("type", "step", "turn", "attempt")
    return {name: error[name] for name in kept if name in error} | {"message": HIDDEN}


def hide_data(data: dict[str, Any]) -> dict[str, Any]:
    """An event's data without contents."""
    return data if sees_payload() else drop_contents(data)


def drop_contents(data: Mapping[str, Any]) -> dict[str, Any]:
    """The same whoever asks."""
    shown = {name: value for name, value in data.items() if name in OPEN_DATA}
    if data.get("delay") is not None:  # of a RetryLater, so in the step's own words
        shown["why"] = HIDDEN
    if data.get("call") is not None:  # of a tool's call: a rule may quote what the model wrote
        shown["reason"] = HIDDEN
    for name in ("before", "after"):
        if isinstance(given := data.get(name), Mapping):
            shown[name] = {key: given[key] for key in given.keys() & OPEN_COLUMNS}
    return shown | ({"error": drop_text(data["error"])} if data.get("error") else {})
