"""The bounds of a task and what it has used of them; the record of single amounts."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Protocol

from django.db import IntegrityError
from django.db.models import F

from ledger import bounds, clock, conf, sql, states
from ledger.canonical import clean_text
from ledger.errors import InvalidInput, LimitReached, TaskNotFound
from ledger.models import Spend, Task

NAMES = ("units", "tokens", "cost", "wall", "deadline_at")
_LARGEST = 2**53
"""Counts stay exact in every JSON reader, browsers included."""


class Used(Protocol):
    """What `find_exhausted` reads: a Task or a claim."""

    limit_units: int
    limit_tokens: int
    limit_cost: int
    used_units: int
    used_tokens_in: int
    used_tokens_out: int
    used_cost: int


def find_exhausted(task: Used) -> str | None:
    """The reason code of the first limit that leaves no room for another unit, or None.

    A limit of 0 tokens or money forbids spending, not running.
    """
    if task.used_units >= task.limit_units:
        return states.LIMIT_UNITS
    if task.used_tokens_in + task.used_tokens_out >= max(task.limit_tokens, 1):
        return states.LIMIT_TOKENS
    if task.used_cost >= max(task.limit_cost, 1):
        return states.LIMIT_COST
    return None


def find_overdue(task: Task, now: dt.datetime) -> str | None:
    """The reason code of a passed wall limit or deadline, or None. `now` is the database's."""
    if task.deadline_at is not None and task.deadline_at <= now:
        return states.LIMIT_DEADLINE
    if task.wall_until is not None and task.wall_until <= now:
        return states.LIMIT_WALL
    return None


def asks_people(task: Task, reason: str) -> bool:
    """True when a used-up limit of the task is a question to people, not its end."""
    return task.on_limit == "ask" and reason in states.LIMIT_REASONS


def describe_reason(reason: str) -> str:
    """A limit's reason code as a sentence."""
    return f"The limit of {reason.removeprefix('limit_')} is used up."


def shift_wall(task: Task, seconds: float | None) -> dict[str, Any]:
    """The columns of a new wall limit: what was used of the old one stays used."""
    if seconds is None:
        return {}
    more = seconds - task.limit_wall
    if task.wall_until is not None:
        return {"wall_until": task.wall_until + dt.timedelta(seconds=more)}
    return {"wall_left": (task.wall_left or 0.0) + more}


def read_limits(given: Mapping[str, Any] | None, fill: bool = True) -> dict[str, Any]:
    """Limits as clients write them as columns: `{units, tokens, cost, wall, deadline_at}`.

    With `fill` what is not given gets its default. `cost` is a decimal string, `wall` seconds,
    `deadline_at` an aware datetime or RFC 3339 text. Raises InvalidInput naming the field.
    """
    given = dict(given or {})
    unknown = sorted(set(given) - set(NAMES))
    if unknown:
        raise InvalidInput(f"limits.{unknown[0]}", f"is no limit; there are {', '.join(NAMES)}")
    tunables = conf.load()
    columns: dict[str, Any] = {}
    if fill:
        columns = {
            "limit_units": tunables.limit_units,
            "limit_tokens": tunables.limit_tokens,
            "limit_cost": tunables.limit_cost_nano,
            "limit_wall": tunables.wall_seconds,
            "deadline_at": None,
        }
    for name, value in given.items():
        if value is None:
            continue
        columns["deadline_at" if name == "deadline_at" else f"limit_{name}"] = _read_one(
            name, value
        )
    return columns


def _read_one(name: str, value: Any) -> Any:
    field = f"limits.{name}"
    if name == "cost":
        try:
            return conf.parse_money(value, field)
        except ValueError as error:
            raise InvalidInput(field, str(error).removeprefix(f"{field}: ")) from None
    if name == "deadline_at":
        if isinstance(value, str):
            try:
                value = dt.datetime.fromisoformat(value)
            except ValueError:
                raise InvalidInput(field, "is no RFC 3339 time") from None
        if not isinstance(value, dt.datetime) or value.tzinfo is None:
            raise InvalidInput(field, "needs an offset, such as 2026-01-31T12:00:00Z")
        try:
            return value.astimezone(dt.UTC)
        except OverflowError:
            raise InvalidInput(field, "is no time in the years 1 to 9999 UTC") from None
    kinds = (int, float) if name == "wall" else (int,)
    most = int(bounds.MAX_SECONDS) if name == "wall" else _LARGEST
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 <= value <= most:
        raise InvalidInput(field, f"takes a number from 0 to {most}")
    return value


def _fit_key(key: str) -> str:
    """A key as it is stored: a long one by its digest, since cutting would make two keys one."""
    text = clean_text(key)
    return text if len(text) <= 200 else hashlib.sha256(key.encode(errors="replace")).hexdigest()


def describe_limits(task: Task) -> dict[str, Any]:
    """The limits as the API shows them."""
    return {
        "units": task.limit_units,
        "tokens": task.limit_tokens,
        "cost": conf.format_money(task.limit_cost),
        "wall": task.limit_wall,
        "deadline_at": task.deadline_at,
    }


def describe_used(task: Task) -> dict[str, Any]:
    """What is used, as the API shows it."""
    return {
        "units": task.used_units,
        "tokens_in": task.used_tokens_in,
        "tokens_out": task.used_tokens_out,
        "cost": conf.format_money(task.used_cost),
    }


def record_spend(
    held: sql.Claimed,
    *,
    key: str,
    tokens_in: int = 0,
    tokens_out: int = 0,
    cost: Decimal | str | int = 0,
    note: str = "",
) -> bool:
    """Record an amount that the attempt spent, once per `key`; False when it was recorded before.

    The one write that a stale holder may make: the money is gone whoever holds the task, so
    neither fence nor status is part of the guard; a stale amount is marked. Raises LimitReached,
    after recording, when a limit of tokens or money is passed.
    """
    nano = conf.parse_money(cost)
    for name, count in (("tokens_in", tokens_in), ("tokens_out", tokens_out)):
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= _LARGEST:
            raise ValueError(f"{name}: {count!r} is no count (0 to {_LARGEST})")
    try:
        with sql.atomic():
            # The row is locked before the insert: same order as every other writer, and the
            # sum and the amounts can't part.
            task = Task.objects.select_for_update().filter(pk=held.task_id).first()
            if task is None:
                raise TaskNotFound(held.task_id)
            Spend.objects.create(
                task_id=held.task_id,
                key=_fit_key(key),
                at=clock.now(),
                fence=held.fence,
                step=held.step_name,
                turn=held.turn,
                tokens_in=tokens_in,
                tokens_out=tokens_out,
                cost=nano,
                note=clean_text(note, 500),
                stale=task.fence != held.fence or task.lease_owner != held.owner,
            )
            Task.objects.filter(pk=held.task_id).update(
                used_tokens_in=F("used_tokens_in") + tokens_in,
                used_tokens_out=F("used_tokens_out") + tokens_out,
                used_cost=F("used_cost") + nano,
                beat=F("beat") + 1,  # no revision: what a person decides on is not changed by it
            )
    except IntegrityError:
        return False
    held.used_tokens_in = task.used_tokens_in + tokens_in
    held.used_tokens_out = task.used_tokens_out + tokens_out
    held.used_cost = task.used_cost + nano
    if held.used_tokens_in + held.used_tokens_out > task.limit_tokens:
        raise LimitReached(
            states.LIMIT_TOKENS, f"The limit of {task.limit_tokens} tokens is passed."
        )
    if held.used_cost > task.limit_cost:
        limit = conf.format_money(task.limit_cost)
        raise LimitReached(states.LIMIT_COST, f"The cost limit of {limit} is passed.")
    return True
