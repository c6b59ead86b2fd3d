"""Which runs take far longer than those before them: over three times what 95 of 100 took.

What past runs took stands in the sums of closed hours, so nothing is added up from tasks; an hour
whose sum is not right just now is left out.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from django.db.models import Q

from ledger import clock, states
from ledger.queries.estimates import LEAST
from ledger.queries.overview import read_rows
from ledger.queries.seen import write_lanes

TIMES: Final = 3
SHARE: Final = 0.95

type Bounds = dict[tuple[str, str], float]
"""(workflow, version) -> seconds from its first claim after which a running task is over time."""


def read_bounds() -> Bounds:
    """Of the versions of which LEAST runs or more completed in the hours that are summed (those of
    the last 8 days): one statement, of the caller's lanes."""
    lanes, values = write_lanes()
    rows = read_rows(
        "SELECT workflow, version, took, CAST(sum(tasks) AS bigint), sum(seconds) "
        "FROM longwatch_hour_sum WHERE hour IN (SELECT hour FROM longwatch_hour GROUP BY hour "
        "HAVING max(CASE WHEN changed THEN 1 ELSE 0 END) = 0) "
        f"AND status = %s AND took IS NOT NULL{lanes} GROUP BY workflow, version, took "
        "ORDER BY took",
        [states.COMPLETED, *values],
    )
    steps: defaultdict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
    for workflow, version, _, tasks, seconds in rows:
        steps[workflow, version].append((int(tasks), float(seconds)))
    return {
        key: TIMES * _find_high(found)
        for key, found in steps.items()
        if sum(tasks for tasks, _ in found) >= LEAST
    }


def _find_high(steps: list[tuple[int, float]]) -> float:
    """What SHARE of the runs did not take longer than, as the mean of its step on the scale."""
    below, wanted = 0, SHARE * sum(tasks for tasks, _ in steps)
    for tasks, seconds in steps:
        below += tasks
        if below >= wanted:
            return seconds / tasks
    return 0.0


def match_over(bounds: Bounds) -> Q:
    """Running tasks that are over time. None for no bounds."""
    any_of = Q(pk__in=())
    for (workflow, version), seconds in sorted(bounds.items()):
        before: Any = clock.now(-seconds)
        any_of |= Q(workflow=workflow, workflow_version=version, started_at__lt=before)
    return any_of
