"""The database's clock: the only clock that anything stored is read from or compared with.

Every statement takes the time from the one SQL fragment that `fragment` returns, so tests move
time for all of them by setting `offset` (seconds). Bare `now()` is never used: PostgreSQL freezes
it for the length of a transaction. `statement_timestamp()` is one time within a statement, may
stand in an index condition and costs less than `(SELECT clock_timestamp())` does.

SQLite promises one host and one clock; its fractions have three digits, so times are compared for
order and never for equality.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.db import connection
from django.db.models import DateTimeField, Expression

offset: float = 0.0
"""Seconds added to the database's clock. Tests only; 0 in production."""


def fragment(vendor: str, plus: str = "") -> str:
    """SQL text of the time now, `plus` a number of seconds (SQL text) later.

    `plus` is a literal or a placeholder that takes a float of seconds.
    """
    if vendor == "postgresql":
        text = "statement_timestamp()"
        if offset:
            text += f" + make_interval(secs => {offset:f})"
        if plus:
            text += f" + make_interval(secs => {plus})"
        return f"({text})"
    shift = f", '{offset:+f} seconds'" if offset else ""
    if plus:
        # `||` binds a number as text: '+1.5 seconds'. A negative number needs no other form.
        shift += f", ({plus}) || ' seconds'"
    return f"(SELECT strftime('%Y-%m-%d %H:%M:%f', 'now'{shift}))"


def micros_fragment(vendor: str) -> str:
    """SQL text of the time now as integer microseconds since 1970: the unit of `rank`."""
    if vendor == "postgresql":
        return f"CAST(extract(epoch FROM {fragment(vendor)}) * 1000000 AS bigint)"
    # julianday is a double: good to some 50 microseconds, finer than SQLite's milliseconds.
    return f"CAST((julianday({fragment(vendor)}) - 2440587.5) * 86400000000 AS integer)"


class _Now(Expression):
    """The database's time for ORM queries, `seconds` later (negative: earlier)."""

    output_field = DateTimeField()

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__()
        self.seconds = seconds

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[str | int, ...]]:
        if not self.seconds:
            return fragment(connection.vendor).replace("%", "%%"), ()
        text = fragment(connection.vendor, f"{self.seconds:f}")
        return text.replace("%", "%%"), ()


def now(plus: float = 0.0) -> _Now:
    """An ORM expression: the database's time, `plus` seconds later."""
    return _Now(plus)


def read() -> dt.datetime:
    """The database's time as an aware datetime in UTC: one round trip."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {fragment(connection.vendor)}".replace("%", "%%"), [])
        value = cursor.fetchone()[0]
    return parse(value)


def parse(value: dt.datetime | str) -> dt.datetime:
    """A time as the driver hands it over (SQLite: text in UTC) as an aware datetime."""
    if not isinstance(value, dt.datetime):
        value = dt.datetime.fromisoformat(value)
    return value.astimezone(dt.UTC) if value.tzinfo else value.replace(tzinfo=dt.UTC)


def store(value: dt.datetime, vendor: str) -> dt.datetime | str:
    """An aware datetime as a raw statement's parameter."""
    if value.tzinfo is not dt.UTC:
        value = value.astimezone(dt.UTC)
    if vendor == "postgresql":
        return value
    # Django's own text form, so that rows written by either side compare in order.
    return str(value.replace(tzinfo=None))
