"""/tasks/{id}/transcript and /messages: what a task's agents said and did, and are told."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any
from uuid import UUID

from django.http import HttpRequest
from ninja import Header, Router
from pydantic import BaseModel

from ledger import queries, transcripts
from ledger.access import OPERATE, READ
from ledger.api.auth import require_scope
from ledger.api.bodies import ActionIn
from ledger.api.schemas import Json, PageOut, StepOut, ToldOut
from ledger.queries import DEFAULT_LIMIT, MAX_LIMIT, Page
from ledger.transitions.steering import steer_task, withdraw_message
from ledger.transitions.submit import check_key

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

    `open` are calls that wait for people or child tasks, `children` those that have ended, `heard`
    the messages of people that it was told; a child that the caller does not see has no `task`.
    `compaction` says which turns are no longer sent, and which artifact has them. In `more` stands
    what a newer version keeps besides.
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
    heard: list[dict[str, Any]]
    children: list[dict[str, Any]]
    compaction: dict[str, Any] | None
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

    A turn too large for an answer, or for what others of it leave, has no messages, and in `more`
    the artifact that holds it.
    """
    require_scope(request, READ)
    queries.read_revision(task_id)
    return transcripts.list_turns(task_id, superseded=all, limit=limit, cursor=cursor)


class MessageIn(ActionIn):
    """What the agent is told."""

    text: str


class MessageOut(BaseModel):
    """A message; `state` is pending, taken (by the unit that runs), told, untold (the task had
    ended) or withdrawn."""

    id: int
    by: str
    at: dt.datetime
    text: str
    state: str


@router.get("/{task_id}/messages", response=PageOut[MessageOut])
def list_messages(request: HttpRequest, task_id: UUID) -> Page[dict[str, Any]]:
    """What people said to the task's agents, newest first."""
    require_scope(request, READ)
    return Page(transcripts.list_messages(task_id, limit=MAX_LIMIT))


@router.post("/{task_id}/messages", response=PageOut[MessageOut])
def send_message(
    request: HttpRequest,
    task_id: UUID,
    body: MessageIn,
    idempotency_key: Annotated[str | None, Header(alias="Idempotency-Key")] = None,
) -> Page[dict[str, Any]]:
    """Tell the agent something at its next turn; answers all messages, newest first.

    A person without the permission to see contents can't. Of an `Idempotency-Key` the first counts.
    """
    actor = require_scope(request, OPERATE)
    queries.read_revision(task_id)
    queries.require_payload()
    check_key(idempotency_key, "Idempotency-Key")
    steer_task(
        task_id, text=body.text, key=idempotency_key, actor=actor, reason=body.reason,
        revision=body.revision,
    )  # fmt: skip
    return Page(transcripts.list_messages(task_id, limit=MAX_LIMIT))


@router.api_operation(["DELETE"], "/{task_id}/messages/{message_id}", response=PageOut[MessageOut])
def withdraw(request: HttpRequest, task_id: UUID, message_id: int) -> Page[dict[str, Any]]:
    """Take back a message that no unit has taken so far."""
    actor = require_scope(request, OPERATE)
    queries.read_revision(task_id)
    queries.require_payload()
    withdraw_message(task_id, message_id, actor=actor)
    return Page(transcripts.list_messages(task_id, limit=MAX_LIMIT))
