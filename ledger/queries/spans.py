"""What a task's timeline is made of."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
from typing import Any

from ledger import states

DONE, SUPERSEDED, RUNNING, STALLED = "done", "superseded", "running", "stalled"
FAILED, LOST, RELEASED, UNDONE = "failed", "lost", "released", "undone"
BACKOFF, WAITING, PAUSED, QUEUED = "backoff", "waiting", "paused", "queued"
SIGNAL, CHILDREN, BUDGET = states.SIGNAL, states.CHILDREN, states.BUDGET
"""What else is waited for; `WAITING` is for a person."""

WORK = frozenset({DONE, SUPERSEDED, RUNNING, STALLED, FAILED, LOST, RELEASED})
"""A worker was busy with the task; in all else nobody was."""


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """One thing that took time, `start` <= `end`; an `open` one is not over."""

    kind: str
    step: str
    start: dt.datetime
    end: dt.datetime
    turn: int = 0
    round: int = 0
    seq: int = 0
    worker: str = ""
    open: bool = False

    @property
    def took(self) -> dt.timedelta:
        """How long."""
        return self.end - self.start


@dataclasses.dataclass(frozen=True, slots=True)
class Restart:
    """Work from `to` on was found wrong `at` step `step`, or the output of `step` was `edited`."""

    seq: int
    at: dt.datetime
    step: str
    to: str
    round: int
    by: str
    by_workflow: bool
    feedback: Any
    edited: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Recovery:
    """One lost worker, and the attempt that did its unit again; None while there is none."""

    seq: int
    lost: Span
    fence: int
    number: int
    again: Span | None


@dataclasses.dataclass(frozen=True, slots=True)
class Timeline:
    """Everything between `start` and `end` (now, for a task that goes on), in order of time."""

    start: dt.datetime
    end: dt.datetime
    spans: list[Span]
    restarts: list[Restart]
    recoveries: list[Recovery]
    refused: list[dt.datetime]

    @property
    def rounds(self) -> list[tuple[int, dt.datetime, dt.datetime]]:
        """(round, start, end) of each round that is on record."""
        first = self.restarts[0].round - 1 if self.restarts else 0
        edges = [self.start, *(one.at for one in self.restarts), self.end]
        return [
            (first + number, start, max(start, end))
            for number, (start, end) in enumerate(itertools.pairwise(edges))
        ]
