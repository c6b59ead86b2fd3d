"""/bulk: one action on many tasks, stored; the workers do it one task at a time."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any
from uuid import UUID

from django.http import HttpRequest
from ninja import Header, Router, Status
from pydantic import BaseModel, ConfigDict, StrictInt

from ledger.access import APPROVE, OPERATE, READ
from ledger.api.auth import require_any, require_scope
from ledger.api.bodies import FilterIn, Request
from ledger.api.schemas import Json, PageOut
from ledger.bulk.answers import ANSWERS, Asked, read_asked
from ledger.bulk.making import make_answers, make_operation, stop_operation
from ledger.bulk.selecting import Selection, read_ids
from ledger.errors import InvalidInput
from ledger.queries import DEFAULT_LIMIT, Page
from ledger.queries.bulk import find_operation, list_items, list_operations, show_operation

router = Router(tags=["bulk"])

Key = Annotated[str | None, Header(alias="Idempotency-Key")]


class BulkFilterIn(FilterIn):
    """What a list of tasks is narrowed to; a name that is none is refused, not left out."""

    model_config = ConfigDict(extra="forbid")


class AskedIn(Request):
    """A question, and the digest of what was read of it."""

    id: str
    digest: str


class BulkIn(Request):
    """An action, what it takes, and the tasks: by id, or all that match a filter now (`{}`: every
    task). With `expected` it is refused when it would be done to more; who means exactly the tasks
    that they have seen gives their ids. `approve` and `reject` take `approvals` instead, and of
    arguments a `comment`."""

    action: str
    arguments: dict[str, Json] = {}
    reason: str = ""
    tasks: list[str] | None = None
    filter: BulkFilterIn | None = None
    approvals: list[AskedIn] | None = None
    expected: StrictInt | None = None

    def read_selection(self) -> Selection:
        """Either of the two. Raises InvalidInput for both or neither."""
        if (self.tasks is None) == (self.filter is None) or self.approvals is not None:
            raise InvalidInput("tasks", "give either tasks (ids) or filter")
        if self.filter is not None:
            return Selection(pairs=tuple(self.filter.list_pairs()))
        return Selection(ids=read_ids(self.tasks or ()))

    def read_asked(self) -> tuple[Asked, ...]:
        """The questions. Raises InvalidInput when there is none, or tasks beside them."""
        if not self.approvals or self.tasks is not None or self.filter is not None:
            raise InvalidInput("approvals", f"to {self.action} takes approvals, and no tasks")
        return read_asked((one.id, one.digest) for one in self.approvals)


class StopIn(Request):
    """Why, for the audit log."""

    reason: str = ""


class BulkOut(BaseModel):
    """One action on many tasks; `selection` is `{filter: [[key, value], …]}`, `{ids: number}` or
    `{approvals: number}`."""

    id: str
    action: str
    arguments: dict[str, Json]
    reason: str
    selection: dict[str, Json]
    actor: str
    status: str
    total: int
    counts: dict[str, int]
    stopped_by: str | None
    created_at: dt.datetime
    finished_at: dt.datetime | None


class BulkItemOut(BaseModel):
    """One task of it: how it was when it was chosen, what came of it and why. `approval` and
    `subject` are the question that was answered."""

    task: str
    title: str
    status: str | None
    approval: str | None
    subject: str
    status_seen: str
    outcome: str
    why: str
    done_at: dt.datetime | None


@router.post("", response={200: BulkOut, 201: BulkOut})
def begin_bulk(request: HttpRequest, body: BulkIn, idempotency_key: Key = None) -> Status[Any]:
    """Begin one. Which tasks it is for is settled here; tasks that it can't be done to are skipped.

    With an `Idempotency-Key` the same body gives the same operation, with 200. `approve` and
    `reject` take the permission approve, all else operate.
    """
    if body.action in ANSWERS:
        actor = require_scope(request, APPROVE)
        comment = ANSWERS[body.action].read(body.arguments).get("comment", "")
        row, created = make_answers(
            body.action, body.read_asked(), actor=actor, comment=comment, key=idempotency_key
        )
        return Status(201 if created else 200, show_operation(row.pk))
    actor = require_scope(request, OPERATE)
    row, created = make_operation(
        body.action, body.read_selection(), actor=actor, arguments=body.arguments,
        reason=body.reason, key=idempotency_key, expected=body.expected,
    )  # fmt: skip
    return Status(201 if created else 200, show_operation(row.pk))


@router.get("", response=PageOut[BulkOut])
def list_bulk(
    request: HttpRequest, limit: int = DEFAULT_LIMIT, cursor: str = ""
) -> Page[dict[str, Any]]:
    """The operations, newest first. Who is limited to lanes sees the own ones."""
    require_scope(request, READ)
    return list_operations(limit=limit, cursor=cursor)


@router.get("/{bulk_id}", response=BulkOut)
def show_bulk(request: HttpRequest, bulk_id: UUID) -> dict[str, Any]:
    """One, with how many of its tasks had which outcome."""
    require_scope(request, READ)
    return show_operation(bulk_id)


@router.get("/{bulk_id}/items", response=PageOut[BulkItemOut])
def list_bulk_items(
    request: HttpRequest,
    bulk_id: UUID,
    outcome: str = "",
    limit: int = DEFAULT_LIMIT,
    cursor: str = "",
) -> Page[dict[str, Any]]:
    """What came of each task: pending, done, refused, skipped or stopped, and why."""
    require_scope(request, READ)
    return list_items(bulk_id, outcome=outcome, limit=limit, cursor=cursor)


@router.post("/{bulk_id}/stop", response=BulkOut)
def stop_bulk(request: HttpRequest, bulk_id: UUID, body: StopIn | None = None) -> dict[str, Any]:
    """Leave what is done, begin nothing more. Twice is harmless."""
    require_any(request, OPERATE, APPROVE)
    answers = find_operation(bulk_id).action in ANSWERS
    actor = require_scope(request, APPROVE if answers else OPERATE)
    stop_operation(bulk_id, actor=actor, reason=(body or StopIn()).reason)
    return show_operation(bulk_id)
