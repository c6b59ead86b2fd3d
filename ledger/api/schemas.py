"""The contract: what requests may hold and what answers do hold. OpenAPI is made from it.

Requests refuse fields that they do not know. Ranges are checked where every way in passes, in the
ledger itself; here stand types.
"""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
)

type Json = Any
"""Any JSON value."""


def _require_text(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError("takes RFC 3339 text such as 2026-01-31T12:00:00Z")
    return value


def _move_to_utc(value: dt.datetime) -> dt.datetime:
    try:
        return value.astimezone(dt.UTC)
    except OverflowError:
        raise ValueError("is out of range") from None


Moment = Annotated[AwareDatetime, BeforeValidator(_require_text), AfterValidator(_move_to_utc)]
"""RFC 3339 with an offset; a time without one would mean another moment on every machine."""


class Request(BaseModel):
    """What every body has in common: no unknown field."""

    model_config = ConfigDict(extra="forbid")


class LimitsIn(Request):
    """Bounds of a task; what is left out keeps its value or default."""

    units: StrictInt | None = None
    tokens: StrictInt | None = None
    cost: str | None = None
    wall: Annotated[float, Field(strict=True)] | None = None
    deadline_at: Moment | None = None

    def list_given(self) -> dict[str, Any]:
        """The bounds that were given."""
        return {
            name: getattr(self, name)
            for name in LimitsIn.model_fields
            if getattr(self, name) is not None
        }


class SubmitIn(Request):
    """A new task."""

    workflow: str
    workflow_version: str | None = None
    input: dict[str, Json]
    title: str = ""
    lane: str = "default"
    priority: StrictInt = 0
    tags: list[str] = []
    limits: LimitsIn | None = None
    max_repairs: StrictInt | None = None
    not_before: Moment | None = None


class ActionIn(Request):
    """Why, and (optional) the revision that the caller decided upon: 409 if it is no more."""

    reason: str = ""
    revision: StrictInt | None = None


class RepairIn(ActionIn):
    """Where to restart, by name or index, and what the step is to know."""

    to_step: str | StrictInt
    note: str = ""


class ChangeLimitsIn(LimitsIn, ActionIn):
    """New bounds, directly or as the object `limits` in the form of a submission."""

    limits: LimitsIn | None = None


class AnswerIn(Request):
    """A decision about what `digest` says was shown."""

    decision: Literal["approve", "reject", "send_back"]
    digest: str
    values: dict[str, Json] | None = None
    comment: str = ""


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


class TaskBrief(BaseModel):
    """A task as lists show it: all but `input`, `progress` and `result`."""

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
    error: dict[str, Json] | None
    claimable: ClaimableOut
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
    limits: LimitsOut
    cancel_requested: bool
    pause_requested: bool
    parent: UUID | None
    revision: int
    available_at: dt.datetime
    last_progress_at: dt.datetime
    created_at: dt.datetime
    started_at: dt.datetime | None
    updated_at: dt.datetime
    finished_at: dt.datetime | None


class TaskOut(TaskBrief):
    """A task."""

    input: Json
    progress: dict[str, Json]
    result: Json


class OutputOut(BaseModel):
    """The accepted output of one unit."""

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


class ArtifactOut(BaseModel):
    """A named blob: a unit's product, or (`task` null) an upload."""

    id: UUID
    task: UUID | None
    name: str
    step: str
    media_type: str
    size: int
    sha256: str
    created_at: dt.datetime


class VoteOut(BaseModel):
    """One person's vote."""

    by: str
    decision: str
    comment: str
    at: dt.datetime


class ApprovalOut(BaseModel):
    """A question to people; `decisions` are the ones it offers."""

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
    form: dict[str, Json] | None
    proposal: Json
    digest: str
    decisions: list[str]
    votes_needed: int
    votes: list[VoteOut]
    decision: str | None
    values: Json
    comment: str
    decided_by: str | None
    requested_at: dt.datetime
    expires_at: dt.datetime
    decided_at: dt.datetime | None


class WorkflowOut(BaseModel):
    """A workflow version and how many live workers can run it."""

    name: str
    version: str
    description: str
    steps: list[str]
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
    live: bool
    draining: bool
    units: int
    tasks: list[UUID]
    knows: list[KnownOut]
    started_at: dt.datetime
    seen_at: dt.datetime
    stopped_at: dt.datetime | None


class PageOut[T](BaseModel):
    """Some items; with `next_cursor`, `?cursor=` continues after them."""

    model_config = ConfigDict(from_attributes=True)

    items: list[T]
    next_cursor: str | None
