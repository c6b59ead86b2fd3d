"""How much work is left of the tasks in a list."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterable
from uuid import UUID

from dashboard.past import say_rest
from dashboard.shown import measure_wall
from ledger import queries, states
from ledger.calls import read_call
from ledger.models import Task

FRESH = 15.0
"""Seconds for which past runs are known: a list that is polled reads them no more often."""

MOST_KEPT = 100

_READ: dict[object, tuple[float, dict[tuple[str, str], list[float]]]] = {}


def estimate_rests(rows: Iterable[Task], now: dt.datetime) -> dict[UUID, str]:
    """Of each running task what its own page says, shorter; no query, or one for all of them."""
    running = [row for row in rows if row.status == states.RUNNING and row.started_at]
    if not running:
        return {}
    runs = _read_runs(frozenset((row.workflow, row.workflow_version) for row in running))
    return {
        row.pk: say_rest(
            runs[row.workflow, row.workflow_version], measure_wall(row, now), brief=True
        )
        for row in running
    }


def _read_runs(versions: frozenset[tuple[str, str]]) -> dict[tuple[str, str], list[float]]:
    """The past runs, of the tasks that the caller sees."""
    key = (read_call().lanes, versions)
    at, known = _READ.get(key, (0.0, {}))
    if not known or time.monotonic() - at > FRESH:
        if len(_READ) >= MOST_KEPT:
            _READ.clear()
        known = queries.read_runs(versions)
        _READ[key] = (time.monotonic(), known)
    return known


def forget_runs() -> None:
    """Read them anew the next time."""
    _READ.clear()
