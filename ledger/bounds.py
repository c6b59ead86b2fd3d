"""What an author bounds a task with: `Limits`, and lengths of time in seconds."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
from decimal import Decimal
from typing import Any

from ledger import conf

MAX_COUNT = 2**53 - 1
"""Largest count that a browser's numbers, JSON and both databases hold exactly."""

UNITS = {"K": 1024, "M": 1024**2, "G": 1024**3}

LEAST_MEMORY = 32 * 1024**2
"""Less than what the interpreter and Django take by themselves."""

MAX_SECONDS = 100 * 366 * 86_400.0


def seconds(count: float) -> float:
    """`count` seconds."""
    return count


def minutes(count: float) -> float:
    """`count` minutes in seconds."""
    return count * 60


def hours(count: float) -> float:
    """`count` hours in seconds."""
    return count * 3_600


def days(count: float) -> float:
    """`count` days in seconds."""
    return count * 86_400


def check_seconds(value: object, field: str, *, least: float = 0.0) -> float:
    """`value` as a length of time. Raises ValueError, naming `field`, for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{field}: {value!r} is no number of seconds")
    if not math.isfinite(value) or not least <= value <= MAX_SECONDS:
        raise ValueError(f"{field}: {value!r} s is out of range ({least:g} to {MAX_SECONDS:g})")
    return float(value)


MESSAGE, WITHDRAWN = "agent.message", "agent.withdrawn"
"""Signals that are messages to an agent, and those that were taken back."""


def check_signal(value: object, field: str) -> str:
    """`value` as a signal's name. Raises ValueError, naming `field`, for anything else."""
    if value in {MESSAGE, WITHDRAWN}:
        raise ValueError(f"{field}: {value} is for messages to an agent, which are sent as such")
    if not isinstance(value, str) or not 1 <= len(value) <= 100 or not value.isprintable():
        raise ValueError(f"{field}: a signal's name has 1 to 100 printable characters")
    return value


def check_count(value: object, field: str) -> int:
    """`value` as a count of 0 or more. Raises ValueError, naming `field`, for anything else."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{field}: {value!r} is no whole number")
    if not 0 <= value <= MAX_COUNT:
        raise ValueError(f"{field}: {value} is out of range (0 to {MAX_COUNT})")
    return value


def check_moment(value: object, field: str) -> dt.datetime:
    """`value` as a moment with a time zone. Raises ValueError, naming `field`, otherwise."""
    if not isinstance(value, dt.datetime):
        raise ValueError(f"{field}: {value!r} is no datetime")
    if value.utcoffset() is None:
        raise ValueError(f"{field}: {value} has no time zone; write datetime(..., tzinfo=UTC)")
    return value


def parse_bytes(value: int | str, field: str) -> int:
    """An amount of memory: bytes, or text such as "512M" or "2G". Raises ValueError."""
    size = value
    if isinstance(value, str) and value[:-1].isascii() and value[:-1].isdigit():
        size = int(value[:-1]) * UNITS.get(value[-1].upper(), 0)
    if isinstance(size, bool) or not isinstance(size, int) or not LEAST_MEMORY <= size <= MAX_COUNT:
        raise ValueError(f'{field}: {value!r} is no amount of memory; write "512M" or bytes')
    return size


@dataclasses.dataclass(frozen=True, slots=True)
class Isolation:
    """What the process of an isolated step may use: bytes of memory, seconds of processor time."""

    memory: int | None = None
    cpu: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one task; None takes the site's default. Raises ValueError naming a bad field.

    `tokens` counts in and out together, `cost` is a decimal string or Decimal, `units` counts
    accepted units, `wall` is seconds of queueing, running and backing off (never of waiting for
    people), `deadline_at` is a moment on the calendar.
    """

    tokens: int | None = None
    cost: str | int | Decimal | None = None
    units: int | None = None
    wall: float | None = None
    deadline_at: dt.datetime | None = None

    def __post_init__(self) -> None:
        if self.tokens is not None:
            check_count(self.tokens, "tokens")
        if self.cost is not None:
            conf.parse_money(self.cost, "cost")
        if self.units is not None:
            check_count(self.units, "units")
        if self.wall is not None:
            check_seconds(self.wall, "wall")
        if self.deadline_at is not None:
            check_moment(self.deadline_at, "deadline_at")

    def list_given(self) -> dict[str, Any]:
        """The bounds that are given, as a client writes them."""
        given: dict[str, Any] = {}
        for name, value in dataclasses.asdict(self).items():
            if isinstance(value, dt.datetime):
                given[name] = value.isoformat()
            elif value is not None:
                given[name] = str(value) if isinstance(value, Decimal) else value
        return given

    @property
    def cost_nano(self) -> int | None:
        """`cost` in integer nano-units, as tables hold it."""
        return None if self.cost is None else conf.parse_money(self.cost, "cost")
