"""/tasks/{id}/transcript: what a task's agents said and did."""

from __future__ import annotations

import datetime as dt
from typing import Any
from uuid import UUID

from django.http import HttpRequest
from ninja import Router
from pydantic import BaseModel

from ledger import queries, transcripts
from ledger.access import READ
from ledger.api.auth import require_scope
from ledger.api.schemas import Json, PageOut, StepOut, ToldOut
from ledger.queries import DEFAULT_LIMIT, Page

router = Router(tags=["tasks"])


class AskedOut(BaseModel):
    """A question that people were asked about a call; `values` are its arguments as approved."""

    id: UUID
    subject: str
    status: str
    decision: str
    decided_by: str
    decided_at: dt.datetime | None
    comment: str
    values: Json
    proposal: Json


class TotalOut(BaseModel):
    """What the task's stored units had used up to a turn."""

    tokens: int
    cost: str


class TurnOut(BaseModel):
    """One unit of an agent: `messages` that it added, in pydantic-ai's form; `calls` with what was
    decided of each by rule, and `asked` by people, by the call's id.

    `open` are calls that wait for people. In `more` stands what a newer version keeps besides.
    """

    seq: int
    step: StepOut
    turn: int
    round: int
    session: Json
    began: Json
    messages: list[dict[str, Any]]
    calls: list[dict[str, Any]]
    asked: dict[str, list[AskedOut]]
    open: list[dict[str, Any]]
    spent: Json
    tokens: int
    cost: str
    total: TotalOut
    worker: str
    fence: int
    started_at: dt.datetime
    finished_at: dt.datetime
    superseded: bool
    superseded_in_round: int | None
    handoff: ToldOut | None
    more: dict[str, Any]


@router.get("/{task_id}/transcript", response=PageOut[TurnOut])
def list_turns(
    request: HttpRequest,
    task_id: UUID,
    all: bool = False,
    limit: int = DEFAULT_LIMIT,
    cursor: str = "",
) -> Page[dict[str, Any]]:
    """The turns of the task's agents, in order; `all=1` shows also those that a restart superseded.

    A turn too large for an answer has no messages, and in `more` the artifact that holds it.
    """
    require_scope(request, READ)
    queries.read_revision(task_id)
    return transcripts.list_turns(task_id, superseded=all, limit=limit, cursor=cursor)
