"""Tunables: every bound and interval of the engine, with its unit and its default.

Read from Django settings `LONGWATCH_<NAME>` at each `load()`, so tests and embedding projects
override them as any setting. Nothing is frozen at import.
"""

from __future__ import annotations

import dataclasses
import functools
from decimal import Decimal
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

NANO = 1_000_000_000
"""Nano-units in one unit of money."""

RANK_PER_PRIORITY = 60 * 1_000_000
"""One step of priority is worth this many microseconds of queueing (60 s), so nothing starves."""


@dataclasses.dataclass(frozen=True, slots=True)
class Tunables:
    """The engine's numbers. Seconds unless the name says otherwise."""

    workers: int = 2
    lease_seconds: float = 60.0
    heartbeat_seconds: float = 15.0
    drain_seconds: float = 300.0
    slice_seconds: float = 0.25  # how long a worker goes on with one task before it looks around
    stall_seconds: float = 600.0
    wedge_seconds: float = 30.0  # a new worker without a ticket for so long asks for a restart
    ticket_seconds: float = 45.0  # life of one resident ticket
    recycle_tickets: int = 2000  # a worker is replaced after so many tickets: about a day
    recycle_mb: int = 0  # or once it has been larger than this; 0 is never
    unit_margin_seconds: float = 5.0  # from a unit's soft stop to its hard stop
    collect_hours: float = 24.0  # between two looks for stored bytes that nothing names; 0: none
    undo_seconds: float = 8.0
    store_seconds: float = 60.0  # how long a unit waits for an artifact store that takes nothing

    retries: int = 3
    unit_seconds: float = 900.0
    max_reclaims: int = 3
    max_releases: int = 100
    max_repairs: int = 3
    limit_units: int = 10_000
    limit_tokens: int = 10_000_000
    limit_cost: str = "100.00"
    wall_seconds: float = 7 * 86_400.0
    approval_seconds: float = 7 * 86_400.0

    alert_seconds: float = 10.0  # for one alert: connection, answer and all
    alert_attempts: int = 16  # failures of an endpoint in a row until what waits for it is dead
    alert_backoff_seconds: float = 5.0  # after the first failure; doubled at each, up to an hour
    alert_look_seconds: float = 15.0  # between two looks at what is so for a while
    alert_days: float = 30.0  # how long what was told is kept

    input_bytes: int = 262_144
    handoff_tokens: int = 4_000  # of four bytes each
    inline_output_bytes: int = 65_536
    inline_progress_bytes: int = 262_144
    log_bytes: int = 4_194_304  # of an attempt's log; beyond it beginning and end are kept
    upload_bytes: int = 1_073_741_824
    artifact_days: float = 0.0  # from a task's end until its artifacts expire; 0 is never
    upload_hours: float = 24.0  # an upload in pieces is kept so long after its last one
    archive_bytes: int = 536_870_912
    blob_cache_bytes: int = 2_147_483_648  # of a host: copies of files of a store far away
    workspace_bytes: int = 21_474_836_480  # of a host: all folders of tasks

    @property
    def limit_cost_nano(self) -> int:
        """The default bound of money, in nano-units."""
        return _parse_bound(self.limit_cost)


_FIELDS: list[tuple[str, str, Any, Any]] = [
    (field.name, f"LONGWATCH_{field.name.upper()}", type(field.default), field.default)
    for field in dataclasses.fields(Tunables)
]


_loaded: tuple[object, Tunables] | None = None


def load() -> Tunables:
    """The tunables in force. Raises ImproperlyConfigured, naming the setting and the cure.

    Read once from each settings object, of which an override makes a new one: it takes 70 us, and
    every submission asks three times.
    """
    global _loaded
    if _loaded is None or _loaded[0] is not _find_source():
        tunables = _read()  # first: it is what sets the settings up
        _loaded = (_find_source(), tunables)
    return _loaded[1]


def _find_source() -> object:
    return vars(settings)["_wrapped"]


def _read() -> Tunables:
    given: dict[str, Any] = {}
    for field, name, kind, default in _FIELDS:
        value = getattr(settings, name, None)
        if value is None:
            continue
        try:
            given[field] = kind(value)
        except (TypeError, ValueError):
            raise ImproperlyConfigured(
                f"{name} is {value!r}; it takes a {kind.__name__}, by default {default}."
            ) from None
    tunables = Tunables(**given)
    if tunables.lease_seconds < 3 * tunables.heartbeat_seconds:
        raise ImproperlyConfigured(
            f"LONGWATCH_LEASE_SECONDS ({tunables.lease_seconds:g}) is under three heartbeats of "
            f"{tunables.heartbeat_seconds:g} s, so a single late beat would lose the lease. "
            "Raise it, or lower LONGWATCH_HEARTBEAT_SECONDS."
        )
    return tunables


def locate_var() -> Path:
    """The folder of what this site keeps on disk."""
    return Path(getattr(settings, "LONGWATCH_VAR", "") or "var").resolve()


def parse_money(value: str | int | Decimal, name: str = "cost") -> int:
    """A decimal amount as integer nano-units. Raises ValueError for what is no amount.

    A float is refused: 0.1 is not a tenth, and sums of money must add up.
    """
    if isinstance(value, (float, bool)):
        kind = type(value).__name__
        raise ValueError(f"{name}: {value!r} is a {kind}; write a decimal string such as '5.00'")
    try:
        amount = Decimal(value)
        # Judged before int(), which takes a minute for the seven bytes of 1e999990.
        in_range = 0 <= amount <= 9_000_000_000
    except (ArithmeticError, TypeError, ValueError):
        raise ValueError(
            f"{name}: {value!r} is no amount; write a decimal such as '5.00'"
        ) from None
    if not in_range:
        raise ValueError(f"{name}: {value} is out of range (0 to 9,000,000,000)")
    return int(amount * NANO)


@functools.cache
def _parse_bound(text: str) -> int:
    return parse_money(text, "LONGWATCH_LIMIT_COST")


def format_money(nano: int) -> str:
    """Nano-units as a plain decimal string, at least two places: 1_500_000_000 is '1.50'."""
    text = f"{Decimal(nano) / NANO:.9f}".rstrip("0")
    whole, _, fraction = text.partition(".")
    return f"{whole}.{fraction:0<2}"
