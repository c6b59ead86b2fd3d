"""The contract: what requests may hold. OpenAPI is made from it and from `schemas`.

Requests refuse fields that they do not know. Ranges are checked where every way in passes, in the
ledger itself; here stand types.
"""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
)

from ledger.api.schemas import Json
from ledger.transitions.submit import MAX_BATCH


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


class BatchItemIn(SubmitIn):
    """A task of a batch, with its own idempotency key."""

    key: str | None = None


class BatchIn(Request):
    """Up to 1,000 tasks; all are submitted, or none."""

    items: Annotated[list[BatchItemIn], Field(min_length=1, max_length=MAX_BATCH)]


class ActionIn(Request):
    """Why, and (optional) the revision that the caller decided upon: 409 if it is no more."""

    reason: str = ""
    revision: StrictInt | None = None


class DeleteDemoIn(Request):
    """Why, for the audit log."""

    reason: str = ""


class SignalIn(ActionIn):
    """What the signal carries: any JSON."""

    data: Json = None


class RepairIn(ActionIn):
    """Where to restart, by name or index, and what the step is to know; under which version."""

    to_step: str | StrictInt
    note: str = ""
    workflow_version: str | None = None


class EditOutputIn(ActionIn):
    """What the unit is to have left, whole; the reason is required."""

    output: dict[str, Json]


class MarkEffectIn(ActionIn):
    """What came of an effect; `result` is what its step gets of one that is done."""

    to: Literal["done", "not_done", "compensated"]
    result: Json = None


class ChangeIn(ActionIn):
    """What is to be changed; what is left out stays."""

    title: str | None = None
    lane: str | None = None
    priority: StrictInt | None = None
    tags: list[str] | None = None


class ForkIn(ActionIn):
    """Where the copy begins, by name or index; another input, another version of the workflow."""

    from_step: str | StrictInt
    input: dict[str, Json] | None = None
    workflow_version: str | None = None


class ChangeLimitsIn(LimitsIn, ActionIn):
    """New bounds, directly or as the object `limits` in the form of a submission."""

    limits: LimitsIn | None = None


class AnswerIn(Request):
    """A decision about what `digest` says was shown."""

    decision: Literal["approve", "reject", "send_back"]
    digest: str
    values: dict[str, Json] | None = None
    comment: str = ""


class FilterIn(BaseModel):
    """What a list of tasks is narrowed to, as it stands in its address."""

    status: list[str] = []
    workflow: list[str] = []
    lane: list[str] = []
    tag: list[str] = []
    worker: list[str] = []
    owner: list[str] = []
    error: list[str] = []
    parent: list[str] = []
    created: list[str] = []
    started: list[str] = []
    finished: list[str] = []
    not_status: list[str] = []
    not_workflow: list[str] = []
    not_lane: list[str] = []
    not_tag: list[str] = []
    not_worker: list[str] = []
    not_owner: list[str] = []
    not_error: list[str] = []
    not_parent: list[str] = []
    stalled: bool = False
    q: str = ""

    def list_pairs(self) -> list[tuple[str, str]]:
        """(key, value) of each filter that is given."""
        pairs = [("stalled", "yes")] if self.stalled else []
        for key, given in self.model_dump(exclude={"stalled"}).items():
            values = [given] if isinstance(given, str) else given
            if key.endswith("status"):
                values = [part for value in values for part in value.split(",")]
            pairs += [(key, value) for value in values if value]
        return pairs


class DeclareDeadIn(Request):
    """Why."""

    reason: str = ""


class TellWorkerIn(DeclareDeadIn):
    """Whether all of its cluster is meant."""

    cluster: bool = False
