"""What people want of a worker, as it hears it: with the look that its guardian takes anyway."""

from __future__ import annotations

import time
from collections.abc import Callable

from ledger.models.worker import DEADS, DRAINS
from ledger.sweeper import MAX_SECONDS, Due, Sweeper

FRESH_SECONDS = 15.0
"""A worker that has not heard for so long claims nothing before it does: it stood still, and may
have been declared dead."""


class Orders:
    """One worker's. `hear` is called by the guardian's thread, the rest by both."""

    def __init__(self) -> None:
        self.told = ""
        """`Worker.told`, as it was heard last."""
        self.skew: float | None = None
        """Seconds that this host's clock is before the database's."""
        self.on_change: Callable[[], None] = lambda: None
        self.on_dead: Callable[[], None] = lambda: None
        self._sweeper: Sweeper | None = None
        self._heard = float("-inf")
        self._queued = True

    def follow(self, sweeper: Sweeper, owner: str) -> None:
        """Hear what `owner` is told with each look of `sweeper`."""
        self._sweeper, sweeper.owner, sweeper.hear = sweeper, owner, self.hear

    @property
    def drained(self) -> bool:
        """Nothing more is to be claimed."""
        return self.told in DRAINS

    @property
    def fresh(self) -> bool:
        """Whether it was heard of late."""
        return time.monotonic() - self._heard < FRESH_SECONDS

    @property
    def none_queued(self) -> bool:
        """Whether the last look, which was just now, found that no task at all is queued."""
        return not self._queued and time.monotonic() - self._heard < 2 * MAX_SECONDS

    def hear(self, due: Due, at: float) -> None:
        """Of a look that began `at` (monotonic)."""
        self._heard, self.skew = at, time.time() - due.now.timestamp()
        self._queued = due.queued
        if due.told != self.told:
            self.told = due.told
            self.on_change()
            if self.told in DEADS:
                self.on_dead()

    def doubt(self) -> None:
        """The lease was lost, to a person who takes this worker for dead maybe: hear again."""
        self._heard = float("-inf")
        if self._sweeper is not None:
            self._sweeper.hurry()
