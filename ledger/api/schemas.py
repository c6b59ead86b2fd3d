"""The contract: what answers hold. OpenAPI is made from it and from `bodies`."""

from __future__ import annotations

import datetime as dt
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict

type Json = Any
"""Any JSON value."""


class StepOut(BaseModel):
    """A step of a workflow."""

    index: int
    name: str


class PositionOut(StepOut):
    """Where a task is; of a finished one, where its last unit was."""

    turn: int


class ClaimableOut(BaseModel):
    """Whether a worker could take the task now, and if not, why."""

    ok: bool
    why: str


class ReportOut(BaseModel):
    """What the running step last reported."""

    done: float | None
    total: float | None
    note: str


class LeaseOut(BaseModel):
    """Who holds the task, until when unless a heartbeat extends it."""

    owner: str
    until: dt.datetime


class RepairsOut(BaseModel):
    """The workflow's own restarts and their bound."""

    count: int
    max: int


class ReservedOut(BaseModel):
    """Announced for calls that are under way, or whose outcome nobody reported; counts as used."""

    tokens: int
    cost: str


class UsedOut(BaseModel):
    """What the task has used of its limits; `cost` is a decimal string."""

    units: int
    tokens_in: int
    tokens_out: int
    cost: str


class LimitsOut(BaseModel):
    """The bounds of a task; `wall` is in seconds, `cost` a decimal string."""

    units: int
    tokens: int
    cost: str
    wall: float
    deadline_at: dt.datetime | None


class EndingOut(BaseModel):
    """How a task ends once it has undone its effects."""

    status: str
    reason: str


class TaskBrief(BaseModel):
    """A task as lists show it: all but `input`, `progress` and `result`.

    `contents_removed` is `{at, days}` once retention took its contents, `days` after its end.
    """

    id: UUID
    workflow: str
    workflow_version: str
    title: str
    lane: str
    priority: int
    tags: list[str]
    submitted_by: str
    status: str
    status_reason: str
    ending: EndingOut | None
    error: dict[str, Json] | None
    claimable: ClaimableOut
    warnings: list[str]
    stalled: bool
    step: PositionOut
    total_steps: int
    progress_report: ReportOut
    lease: LeaseOut | None
    fence: int
    attempts: int
    reclaims: int
    round: int
    repairs: RepairsOut
    used: UsedOut
    reserved: ReservedOut
    limits: LimitsOut
    cancel_requested: bool
    pause_requested: bool
    parent: UUID | None
    copied_from: UUID | None
    waiting_for: dict[str, Any] | None
    concurrency: dict[str, Any] | None
    revision: int
    available_at: dt.datetime
    last_progress_at: dt.datetime
    created_at: dt.datetime
    started_at: dt.datetime | None
    updated_at: dt.datetime
    finished_at: dt.datetime | None
    contents_removed: dict[str, Any] | None


class TaskOut(TaskBrief):
    """A task."""

    input: Json
    progress: dict[str, Json]
    result: Json


class CopiedFromOut(BaseModel):
    """The output of another task that this one is a copy of."""

    task: UUID
    seq: int


class ToldOut(BaseModel):
    """The hand-off that a unit was given: `?sent=ID` of a task's hand-off gives its text."""

    id: int
    digest: str


class OutputOut(BaseModel):
    """The accepted output of one unit; under fence 0 it was copied, or edited by a person.

    `handoff` is null for a unit that asked for none.
    """

    seq: int
    step: StepOut
    turn: int
    round: int
    output: Json
    worker: str
    fence: int
    started_at: dt.datetime
    finished_at: dt.datetime
    superseded: bool
    superseded_in_round: int | None
    copied_from: CopiedFromOut | None
    edited_by: str | None
    handoff: ToldOut | None


class SpendOut(BaseModel):
    """One amount that an attempt spent, once per `key`; `stale` when it had lost its lease."""

    seq: int
    at: dt.datetime
    key: str
    step: str
    turn: int
    fence: int
    tokens_in: int
    tokens_out: int
    cost: str
    note: str
    stale: bool


class HandoffOut(BaseModel):
    """What a unit is told; `digest` is the SHA-256 of the Markdown, `tokens` its bytes by four.

    Of one that was sent only the Markdown is kept, and of old ones the digest alone.
    """

    task: UUID
    digest: str
    tokens: int | None
    markdown: str | None
    data: dict[str, Json] | None


class ActorOut(BaseModel):
    """Who did it."""

    kind: str
    id: str


class EventOut(BaseModel):
    """One line of a task's record."""

    seq: int
    at: dt.datetime
    kind: str
    actor: ActorOut
    step: str
    turn: int
    fence: int
    data: dict[str, Json]


class VoteOut(BaseModel):
    """One person's vote."""

    by: str
    decision: str
    comment: str
    at: dt.datetime


class AttachedOut(BaseModel):
    """An artifact that a question shows."""

    id: UUID
    name: str
    media_type: str
    size: int
    sha256: str


class EscalationOut(BaseModel):
    """Who is asked next, and for how many seconds."""

    assignees: list[str]
    seconds: float


class EditOut(BaseModel):
    """A value that an answer changed; `name` is empty for the proposal as a whole."""

    name: str
    proposed: Json
    answered: Json


class ApprovalOut(BaseModel):
    """A question to people; `decisions` are the ones it offers, `diff` is two artifacts or none.

    `risk_by` is `step`, or `workflow` where its floor raised the risk. `edits` is what the answer
    changed of the proposal. `escalation` are those still to be asked, then comes `on_expiry`.
    """

    id: UUID
    task: UUID
    workflow: str
    title: str
    submitted_by: str
    step: str
    turn: int
    round: int
    status: str
    subject: str
    body: str
    payload: Json
    risk: str
    risk_by: str
    artifacts: list[AttachedOut]
    diff: list[AttachedOut]
    form: dict[str, Json] | None
    proposal: Json
    digest: str
    decisions: list[str]
    votes_needed: int
    assignees: list[str]
    votes: list[VoteOut]
    decision: str | None
    values: Json
    edits: list[EditOut]
    comment: str
    decided_by: str | None
    requested_at: dt.datetime
    expires_at: dt.datetime
    escalation: list[EscalationOut]
    on_expiry: str
    reminders: int
    remind_at: dt.datetime | None
    decided_at: dt.datetime | None


class WorkflowOut(BaseModel):
    """A workflow version and how many live workers can run it."""

    name: str
    version: str
    description: str
    steps: list[str]
    scope: dict[str, list[str]] | None
    """What its steps may use: `secrets`, `tools`, `lanes`; null: anything."""
    workers: int
    input_schema: dict[str, Json] | None


class KnownOut(BaseModel):
    """A workflow version."""

    workflow: str
    version: str


class WorkerOut(BaseModel):
    """A worker process."""

    owner: str
    host: str
    pid: int
    cluster: str
    live: bool
    draining: bool
    """It claims nothing more: it leaves, or heard that people let it drain."""
    told: str
    """What people want of it: empty, `drain`, `drain_all` (its whole cluster) or `dead`."""
    units: int
    tasks: list[UUID]
    knows: list[KnownOut]
    started_at: dt.datetime
    seen_at: dt.datetime
    stopped_at: dt.datetime | None


class ToldWorkersOut(BaseModel):
    """How many workers were told."""

    workers: int


class FencedOut(BaseModel):
    """How many leases were taken from a worker."""

    fenced: int


class AuditOut(BaseModel):
    """A write by a person or a token, or a refused try (`allowed` false)."""

    seq: int
    at: dt.datetime
    actor: str
    action: str
    target: str
    task: UUID | None
    allowed: bool
    reason: str
    before: Json
    after: Json
    address: str
    request_id: str


class PageOut[T](BaseModel):
    """Some items; with `next_cursor`, `?cursor=` continues after them."""

    model_config = ConfigDict(from_attributes=True)

    items: list[T]
    next_cursor: str | None


class KeptOut(BaseModel):
    """A task of the demo that stays, and why."""

    id: str
    why: str


class DeletedOut(BaseModel):
    """The demo's tasks that are gone, and those that stay."""

    deleted: list[str]
    kept: list[KeptOut]
