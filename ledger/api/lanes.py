"""/lanes: what each has of the workers, and what people set for it."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.http import HttpRequest
from ninja import Router
from pydantic import BaseModel, StrictBool, StrictInt

from ledger.access import OPERATE, READ
from ledger.api.auth import require_scope
from ledger.api.bodies import Request
from ledger.api.schemas import PageOut
from ledger.queries import lanes as read
from ledger.queries.paging import DEFAULT_LIMIT, Page
from ledger.transitions.lanes import SETTINGS, run_one, set_lane

router = Router(tags=["fleet"])


class AmountsOut(BaseModel):
    """What was spent this day and this month (UTC)."""

    cost_day: str
    cost_month: str
    tokens_day: int
    tokens_month: int


class LaneOut(BaseModel):
    """A lane. `closed` says why nothing starts in it; `queued` is counted up to 10,000."""

    name: str
    weight: int
    cap: int | None
    rate: int | None
    per: str
    burst: int
    paused: bool
    running_one: str | None
    closed: str
    cost_day: str | None
    cost_month: str | None
    tokens_day: int | None
    tokens_month: int | None
    used: AmountsOut | None
    running: int
    queued: int
    oldest_queued_at: dt.datetime | None
    revision: int
    updated_at: dt.datetime | None


class LaneIn(Request):
    """What is to be changed; null takes a bound away. `run_one` lets one task through a pause."""

    weight: StrictInt | None = None
    cap: StrictInt | None = None
    rate: StrictInt | None = None
    per: str | None = None
    burst: StrictInt | None = None
    cost_day: str | None = None
    cost_month: str | None = None
    tokens_day: StrictInt | None = None
    tokens_month: StrictInt | None = None
    paused: StrictBool | None = None
    run_one: StrictBool = False
    revision: StrictInt | None = None
    reason: str = ""

    def list_settings(self) -> dict[str, Any]:
        """The settings that were given, null among them."""
        return {name: getattr(self, name) for name in SETTINGS if name in self.model_fields_set}


@router.get("", response=PageOut[LaneOut])
def list_lanes(
    request: HttpRequest, limit: int = DEFAULT_LIMIT, cursor: str = ""
) -> Page[dict[str, Any]]:
    """Lanes by name: those that something was set for, or that have work."""
    require_scope(request, READ)
    return read.list_lanes(limit, cursor)


@router.get("/{path:name}", response=LaneOut)
def get_lane(request: HttpRequest, name: str) -> dict[str, Any]:
    """One lane; of one that nobody set anything for, the defaults."""
    require_scope(request, READ)
    return read.find_lane(name)


@router.post("/{path:name}", response=LaneOut)
def change_lane(request: HttpRequest, name: str, body: LaneIn) -> dict[str, Any]:
    """Set what is given, pause or resume, or let one task through a pause."""
    actor = require_scope(request, OPERATE)
    given: dict[str, Any] = {"actor": actor, "revision": body.revision, "reason": body.reason}
    settings = body.list_settings()
    if settings or body.paused is not None or not body.run_one:
        row = set_lane(name, settings, paused=body.paused, **given)
        given["revision"] = row.revision
    if body.run_one:
        run_one(name, **given)
    return read.find_lane(name)
