"""What the API shows of effects."""

from __future__ import annotations

import datetime as dt

from pydantic import BaseModel

from ledger.api.schemas import Json


class CompensationOut(BaseModel):
    """What undoes an effect, and what is known of that: `state` as of an effect, not_done before
    it was first called."""

    name: str
    key: str
    state: str
    tries: int
    result: Json
    done_at: dt.datetime | None


class EffectOut(BaseModel):
    """An action on the outside world, and what is known of it.

    `state` is intent (a worker is at it), unknown (that worker was lost), done, not_done or
    compensated; `late` when a stale holder brought the result.
    """

    id: int
    name: str
    key: str
    step: str
    turn: int
    round: int
    state: str
    args: Json
    result: Json
    tries: int
    late: bool
    marked_by: str | None
    compensation: CompensationOut | None
    begun_at: dt.datetime
    done_at: dt.datetime | None
