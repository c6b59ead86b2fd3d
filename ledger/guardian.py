"""The thread beside a worker's main thread: beats, looks, acts where the step can't."""

from __future__ import annotations

import logging
import random
import signal
import threading
import time
from collections.abc import Callable

from django.db import DatabaseError, InterfaceError, connections

from ledger.sql import is_outage

Tick = Callable[[], float | None]
"""Returns in how many seconds it wants to be called again; None for `OFTEN_SECONDS`, or
`RESTING_SECONDS` while nothing is in hand."""

OFTEN_SECONDS, RESTING_SECONDS = 0.25, 1.0
LATE_SECONDS = 0.05
"""So much later such a tick may come, with another: to wake up costs as much as to look."""
AFTER_ERROR_SECONDS = (0.5, 1.5)
"""Between these, so that a fleet does not come back to its database in one instant."""

log = logging.getLogger(__name__)


class Guardian(threading.Thread):
    """Calls each of `on_tick` when it is due. Start it after the fork; it dies with the process.

    Its database connections are its own, as Django's are per thread. A tick that raises is logged
    and called again a second later; it never ends the thread.
    """

    def __init__(self) -> None:
        super().__init__(name="guardian", daemon=True)
        self.on_tick: list[Tick] = []
        self.let_go: Callable[[], None] = lambda: None
        """Gives the lease in hand back, uncharged. Called last before the process ends at once."""
        self.explain: Callable[[str], str] = lambda owner: ""
        """How another worker, by its name as owner, has ended; "" where that is not known."""
        self.cluster = ""
        """Name of the cluster that the process is of."""
        self.retire: Callable[[], None] = lambda: None
        """Asks for another process in place of this one, after the unit in hand."""
        self.rests: Callable[[], bool] = lambda: False
        """Whether nothing is in hand, nor looked for."""
        self._nudged = threading.Event()
        self._all_now = True
        self._called: dict[Tick, tuple[float, float | None]] = {}
        """When each tick returned, and in how many seconds it wants to be called again."""
        self._unanswered: set[Tick] = set()

    def run(self) -> None:
        # What the step's main thread waits for must not end up here.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGTERM, signal.SIGUSR2})
        while True:
            all_now, self._all_now = self._all_now, False
            self._nudged.wait(self.call_due(all_now=all_now))
            self._nudged.clear()

    @property
    def in_contact(self) -> bool:
        """Whether the database answered every tick when it was last called."""
        return not self._unanswered

    def doubt(self, tick: Tick) -> None:
        """Count `tick` as not answered until it is called."""
        self._unanswered.add(tick)

    def nudge(self) -> None:
        """Call all ticks now, from any thread: what they look at has changed."""
        self._all_now = True
        self._nudged.set()

    def rouse(self) -> None:
        """Rest no longer, from any thread: something is in hand."""
        self._nudged.set()

    def call_due(self, *, all_now: bool = False) -> float:
        """Call what is due; seconds until the next one is."""
        for tick in tuple(self.on_tick):
            if all_now or self._find_due(tick) <= time.monotonic():
                seconds = self._call(tick)
                self._called[tick] = (time.monotonic(), seconds)
        due = min((self._find_due(tick, latest=True) for tick in self.on_tick), default=0.0)
        return min(max(0.0, due - time.monotonic()), RESTING_SECONDS + LATE_SECONDS)

    def _find_due(self, tick: Tick, *, latest: bool = False) -> float:
        called, seconds = self._called.get(tick, (0.0, 0.0))
        if seconds is not None:
            return called + seconds
        often = RESTING_SECONDS if self.rests() else OFTEN_SECONDS
        return called + often + (LATE_SECONDS if latest else 0.0)

    def _call(self, tick: Tick) -> float | None:
        try:
            seconds = tick()
            self._unanswered.discard(tick)
            return seconds
        except (DatabaseError, InterfaceError) as error:  # while it lasts: no traceback
            log.warning("the guardian can't reach the database: %s", error)
            (self._unanswered.add if is_outage(error) else self._unanswered.discard)(tick)
        except Exception:
            self._unanswered.discard(tick)
            log.exception("a tick of the guardian failed; it is called again")
        connections.close_all()
        return random.uniform(*AFTER_ERROR_SECONDS)
