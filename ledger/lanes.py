"""What the settings of lanes mean for who claims: shares, gates, and what is closed."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping
from uuid import UUID

from django.db.models import Q, QuerySet

from ledger import clock, states
from ledger.lanebudgets import describe_over, has_budget, read_used, was_met_since
from ledger.models import Lane, Task
from ledger.models.lane import BUDGETS, PERIODS
from ledger.sql.lanes import Gate

RULES_SECONDS = 1.0
"""How old the settings may be that a worker goes by."""

PAUSED = "its lane is paused"


@dataclasses.dataclass(frozen=True, slots=True)
class Rules:
    """Of one lane: turns at a time as its weight, its gate if any, why nothing starts in it, and
    the task that does all the same."""

    weight: int = 1
    gate: Gate | None = None
    closed: str = ""
    through: UUID | None = None

    @property
    def paced(self) -> bool:
        """True where each unit is claimed by itself, because units are what a rate counts."""
        return self.gate is not None and self.gate.interval > 0


DEFAULT = Rules()


class Book:
    """The settings as this process read them last. Lanes without a row are in no book."""

    def __init__(self) -> None:
        self.rules: dict[str, Rules] = {}
        self.through: dict[str, UUID] = {}
        self._read_at = float("-inf")

    def refresh(self, *, now: bool = False) -> bool:
        """Read them anew if they are old, or now; whether they were."""
        at = time.monotonic()
        old = now or at - self._read_at > RULES_SECONDS or was_met_since(self._read_at)
        if old:
            self.rules = read_rules()
            found = {lane: rules.through for lane, rules in self.rules.items()}
            self.through = {lane: task for lane, task in found.items() if task is not None}
            self._read_at = at
        return old

    def get(self, lane: str) -> Rules:
        """The rules of a lane, as of the last reading."""
        return self.rules.get(lane, DEFAULT)


def read_rules() -> dict[str, Rules]:
    """The rules of every lane that has a row: one statement, and two more for budgets."""
    rows = list(Lane.objects.order_by())
    closed = find_closed(rows)
    chosen = [row.let_through for row in rows if lets_through(row, closed) and row.let_through]
    alive = set()
    if chosen:
        unfinished = Task.objects.filter(pk__in=chosen, finished_at__isnull=True)
        alive = set(unfinished.values_list("pk", "lane"))  # not one that was moved elsewhere
    return {
        row.name: Rules(
            row.weight, make_gate(row), closed.get(row.name, ""),
            row.let_through if (row.let_through, row.name) in alive else None,
        )
        for row in rows
    }  # fmt: skip


def make_gate(row: Lane) -> Gate | None:
    """What its claims are counted by; None where nothing is."""
    if row.cap is None and row.rate is None:
        return None
    interval = max(1, PERIODS[row.per] // row.rate) if row.rate else 0
    return Gate(row.name, row.cap, interval, row.burst)


def find_closed(rows: Iterable[Lane]) -> dict[str, str]:
    """Why nothing starts in them, of those lanes where it is so."""
    rows = list(rows)
    closed = {row.name: PAUSED for row in rows if row.paused}
    bounded = [row for row in rows if has_budget(row)]
    if bounded:
        used, now = read_used([row.name for row in bounded]), clock.read()
        for row in bounded:
            if why := describe_over(row, used[row.name], now):
                closed[row.name] = f"{PAUSED}; {why}" if row.paused else why
    return closed


def lets_through(row: Lane, closed: Mapping[str, str]) -> bool:
    """Whether one task may run in spite of the pause: no budget keeps it."""
    return row.paused and closed[row.name] == PAUSED


def list_closing() -> QuerySet[Lane]:
    """The lanes in which something may keep tasks from starting."""
    budget = Q(*[(f"{one}__isnull", False) for one in BUDGETS], _connector=Q.OR)
    return Lane.objects.filter(budget | Q(paused=True)).order_by()


def read_closed() -> dict[str, tuple[str, UUID | None]]:
    """Lane -> why nothing starts in it, and the task that does all the same."""
    rows = {row.name: row for row in list_closing()}
    closed = find_closed(rows.values())
    return {
        name: (why, rows[name].let_through if lets_through(rows[name], closed) else None)
        for name, why in closed.items()
    }


def may_start(task: Task, closed: dict[str, tuple[str, UUID | None]]) -> str:
    """Why a queued task does not start for its lane's sake; empty when it may."""
    why, through = closed.get(task.lane, ("", None))
    return "" if through == task.pk and task.status == states.QUEUED else why
