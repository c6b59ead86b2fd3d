"""What ended in a range: sums of hours that are over, and the tasks of the hours that are not.

An hour without a right sum, the one that goes on and the one in which the range begins are added up
from their tasks, over the index on their end, up to LIVE_CAP tasks.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import defaultdict
from typing import Any

from django.db import connection

from ledger import clock, hours
from ledger.queries.overview import read_rows
from ledger.queries.seen import write_lanes

LIVE_CAP = 100_000
DAY_HOURS = 24


@dataclasses.dataclass(slots=True)
class Amount:
    """Of tasks that ended: how many, their money, tokens and repairs."""

    tasks: int = 0
    cost: int = 0
    tokens: int = 0
    repairs: int = 0

    def add(self, tasks: int, cost: int, tokens: int, repairs: int) -> None:
        """Count these too."""
        self.tasks += tasks
        self.cost += cost
        self.tokens += tokens
        self.repairs += repairs


Steps = dict[int, tuple[int, float]]
"""How many tasks took so long: by the step on the scale, their number and their seconds."""


@dataclasses.dataclass(slots=True)
class EndedSums:
    """Everything of one range, by slots of `size` seconds since 1970 (UTC)."""

    now: float
    """The database's, in seconds since 1970."""
    size: int
    amounts: dict[tuple[int, str], Amount]
    """By (slot, status)."""
    began: dict[int, int]
    """How many of them began in a slot. Of an hour in which the range begins, all."""
    took: dict[int, Steps]
    of_workflow: dict[tuple[str, str], dict[tuple[int, str], Amount]]
    took_of_workflow: dict[tuple[str, str], Steps]
    of_day: dict[tuple[int, str], int]
    """How many ended in each hour of the last 24, by (hour, status), whatever the range."""
    last_hour: dict[str, int]
    """By status, of the last 60 minutes."""
    day_before: dict[str, int]
    """The same a day ago."""
    cut: bool
    """More than LIVE_CAP tasks were to be added up one by one."""


def sum_ended(seconds: int, size: int) -> EndedSums:
    """What ended in the last `seconds`, in slots of `size` seconds: two statements."""
    now = clock.read()
    good = hours.list_good()
    since = now - dt.timedelta(seconds=seconds)
    this, edge = int(now.timestamp()) // 3600, int(since.timestamp()) // 3600
    wanted = range(min(edge, this - DAY_HOURS), this + 1)
    # Slots that are finer than an hour can't be read from its sum.
    fine = range(edge, this + 1 if size < 3600 else edge + 1)
    summed = [hour for hour in wanted if hour in good and hour not in fine and hour != this]
    live = _join_hours([hour for hour in wanted if hour not in set(summed)])
    statement, values = _write_statement(now, since, size, summed, live)
    found = EndedSums(
        now.timestamp(), size, defaultdict(Amount), defaultdict(int), defaultdict(dict),
        defaultdict(lambda: defaultdict(Amount)), defaultdict(dict), defaultdict(int), {}, {},
        False,
    )  # fmt: skip
    for row in read_rows(statement, values):
        _take_row(found, *row)
    return found


def _take_row(
    found: EndedSums,
    kind: str,
    slot: int,
    status: str,
    workflow: str,
    version: str,
    took: int | None,
    tasks: int,
    cost: int,
    tokens: int,
    repairs: int,
    seconds: float,
) -> None:
    if kind == "all":
        found.amounts[slot, status].add(tasks, cost, tokens, repairs)
        if took is not None:
            found.took[slot][took] = (tasks, seconds)
    elif kind == "day":
        found.of_day[slot, status] = tasks
    elif kind == "began":
        found.began[slot] = tasks
    elif kind == "workflow":
        found.of_workflow[workflow, version][slot, status].add(tasks, cost, tokens, repairs)
    elif kind == "took":
        found.took_of_workflow[workflow, version][took or 0] = (tasks, seconds)
    elif kind == "last":
        found.last_hour[status] = tasks
    elif kind == "before":
        found.day_before[status] = tasks
    else:
        found.cut = tasks >= LIVE_CAP


def _join_hours(wanted: list[int]) -> list[tuple[int, int]]:
    """(first, the one after the last) of each run of hours, the latest run first."""
    runs: list[tuple[int, int]] = []
    for hour in reversed(wanted):
        if runs and runs[-1][0] == hour + 1:
            runs[-1] = (hour, runs[-1][1])
        else:
            runs.append((hour, hour + 1))
    return runs


_SUMS = (
    "CAST(sum(tasks) AS bigint), CAST(sum(cost) AS bigint), CAST(sum(tokens) AS bigint), "
    "CAST(sum(repairs) AS bigint), sum(seconds)"
)
_COUNT = (
    "CAST(coalesce(sum(tasks), 0) AS bigint), CAST(0 AS bigint), CAST(0 AS bigint), "
    "CAST(0 AS bigint), CAST(0 AS double precision)"
)
_NONE = "CAST(NULL AS integer)"


def _write_statement(
    now: dt.datetime, since: dt.datetime, size: int, summed: list[int], live: list[tuple[int, int]]
) -> tuple[str, list[Any]]:
    lanes, of_lanes = write_lanes()
    since_value = clock.store(since, connection.vendor)
    parts, values = [], []
    fine = min(size, 3600)  # an hour's sum has one slot
    coarse, day = size // fine, int(now.timestamp()) // 3600 - DAY_HOURS
    for first, after in live:
        parts.append(
            f"SELECT * FROM (SELECT {hours.write_slot('finished_at', fine)} AS slot, "
            "CASE WHEN finished_at > %s THEN 1 ELSE 0 END AS inside, status, workflow, "
            f"workflow_version AS version, {hours.write_slot('started_at', fine)} AS began, "
            f"{hours.write_step()} AS took, 1 AS tasks, used_cost AS cost, used_tokens_in + "
            f"used_tokens_out AS tokens, repair_count AS repairs, {hours.write_seconds()} "
            "AS seconds, 1 AS live FROM longwatch_task "
            f"WHERE finished_at >= %s AND finished_at < %s{lanes} LIMIT {LIVE_CAP}) AS live"
        )
        values += [since_value, *hours.bound_hours(first, after), *of_lanes]
    if summed:
        times = 3600 // fine
        parts.append(
            f"SELECT hour * {times}, CASE WHEN hour > {int(since.timestamp()) // 3600} THEN 1 "
            f"ELSE 0 END, status, workflow, version, began * {times}, took, tasks, cost, tokens, "
            "repairs, seconds, 0 FROM longwatch_hour_sum "
            f"WHERE hour IN ({', '.join(map(str, summed))}){lanes}"
        )
        values += of_lanes
    figures = [
        f"SELECT 'all', slot / {coarse}, status, '', '', took, {_SUMS} FROM cells "
        f"WHERE inside = 1 GROUP BY slot / {coarse}, status, took",
        f"SELECT 'began', began / {coarse}, '', '', '', {_NONE}, {_COUNT} FROM cells "
        f"WHERE inside = 1 AND began IS NOT NULL GROUP BY began / {coarse}",
        f"SELECT 'workflow', slot / {coarse}, status, workflow, version, {_NONE}, {_SUMS} "
        f"FROM cells WHERE inside = 1 GROUP BY slot / {coarse}, status, workflow, version",
        f"SELECT 'took', 0, '', workflow, version, took, {_SUMS} FROM cells "
        "WHERE inside = 1 AND took IS NOT NULL GROUP BY workflow, version, took",
        f"SELECT 'day', slot * {fine} / 3600, status, '', '', {_NONE}, {_COUNT} FROM cells "
        f"WHERE slot * {fine} >= {day * 3600} GROUP BY slot * {fine} / 3600, status",
        f"SELECT 'live', 0, '', '', '', {_NONE}, {_COUNT} FROM cells WHERE live = 1",
    ]
    for kind, back in (("last", 1), ("before", DAY_HOURS + 1)):
        begin = now - dt.timedelta(hours=back)
        figures.append(
            f"SELECT '{kind}', 0, status, '', '', {_NONE}, {_COUNT} FROM (SELECT status, "
            f"1 AS tasks FROM longwatch_task WHERE finished_at > %s AND finished_at <= %s{lanes} "
            f"LIMIT {LIVE_CAP}) AS {kind}_hour GROUP BY status"
        )
        ends = (begin, begin + dt.timedelta(hours=1))
        values += [*(clock.store(one, connection.vendor) for one in ends), *of_lanes]
    return f"WITH cells AS ({' UNION ALL '.join(parts)}) {' UNION ALL '.join(figures)}", values
