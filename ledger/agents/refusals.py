"""A provider that says no: what it means for the unit, and when to come again."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import NoReturn

from pydantic_ai.exceptions import (
    ModelHTTPError,
    ModelOverloadedError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelUnavailableError,
)

from ledger.outcomes import RetryLater
from ledger.retry import draw_backoff

BUSY = (ModelRateLimitError, ModelOverloadedError, ModelUnavailableError)

LONGEST_WAIT = 3600.0
"""Seconds that a provider may send us away for at once; it is asked again then."""

_SPAN = re.compile(r"(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d*\.?\d+)s)?(?:(\d*\.?\d+)ms)?")
_UNITS = (3600.0, 60.0, 1.0, 0.001)


def explain_refusal(error: ModelHTTPError, attempt: int) -> NoReturn:
    """Raise RetryLater for a busy provider, which costs the unit no attempt, with the time that it
    names; else the error itself, a failed attempt."""
    if not isinstance(error, BUSY) or isinstance(error, ModelQuotaExceededError):
        raise error
    wait = error.retry_after
    if wait is None:
        wait = read_reset(error.headers or {})
    if wait is None:
        wait = draw_backoff(attempt)
    raise RetryLater(min(max(wait, 0.0), LONGEST_WAIT), str(error)) from error


def read_reset(headers: Mapping[str, str]) -> float | None:
    """Seconds until the last of a provider's limits is reset, by its `…ratelimit…reset…` headers:
    a span (`6m0s`) or a time, which is compared with the provider's own clock."""
    found = [
        _read_span(value, headers.get("date", ""))
        for name, value in headers.items() if "ratelimit" in name and "reset" in name
    ]  # fmt: skip
    return max((one for one in found if one is not None), default=None)


def _read_span(value: str, date: str) -> float | None:
    if (match := _SPAN.fullmatch(value.strip())) and any(match.groups()):
        return sum(float(n) * unit for n, unit in zip(match.groups(), _UNITS, strict=True) if n)
    try:
        until = dt.datetime.fromisoformat(value.strip())
        return (until - parsedate_to_datetime(date)).total_seconds()
    except (ValueError, TypeError):
        return None
