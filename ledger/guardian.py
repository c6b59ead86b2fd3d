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
"""Returns in how many seconds it wants to be called again; None for `DEFAULT_SECONDS`."""

DEFAULT_SECONDS = 0.25
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
        self._nudged = threading.Event()
        self._due: dict[Tick, float] = {}
        self._unanswered: set[Tick] = set()

    def run(self) -> None:
        # What the step's main thread waits for must not end up here.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGTERM, signal.SIGUSR2})
        hurry = True
        while True:
            hurry = self._nudged.wait(self.call_due(all_now=hurry))
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
        self._nudged.set()

    def call_due(self, *, all_now: bool = False) -> float:
        """Call what is due; seconds until the next one is."""
        for tick in tuple(self.on_tick):
            if all_now or self._due.get(tick, 0.0) <= time.monotonic():
                self._due[tick] = time.monotonic() + self._call(tick)
        due = [self._due.get(tick, 0.0) for tick in self.on_tick]
        return min(max(0.0, min(due, default=float("inf")) - time.monotonic()), DEFAULT_SECONDS)

    def _call(self, tick: Tick) -> float:
        try:
            seconds = tick()
            self._unanswered.discard(tick)
            return DEFAULT_SECONDS if seconds is None else seconds
        except (DatabaseError, InterfaceError) as error:  # while it lasts: no traceback
            log.warning("the guardian can't reach the database: %s", error)
            (self._unanswered.add if is_outage(error) else self._unanswered.discard)(tick)
        except Exception:
            self._unanswered.discard(tick)
            log.exception("a tick of the guardian failed; it is called again")
        connections.close_all()
        return random.uniform(*AFTER_ERROR_SECONDS)
