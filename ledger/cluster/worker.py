"""Inside one worker process: the resident ticket, its guardian, and every way to leave."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import random
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final

from django.conf import settings
from django.db import DatabaseError, InterfaceError, connections
from django.utils.module_loading import import_string
from django_q.conf import Conf

from ledger import conf, processes, steplog
from ledger.cluster import deaths, runtime
from ledger.cluster.runtime import Drain
from ledger.guardian import Guardian
from ledger.wakeups import Waiter

LET_GO_STATUS: Final = 71
"""Exit status of a worker that gave its lease back instead of finishing the unit."""

AFTER_ERROR_SECONDS: Final = (0.3, 1.5)
"""Between these, so that a fleet does not come back to its database in one instant."""

LOOK_SECONDS: Final = 0.25
"""Between two looks at a worker that waits for its ticket."""

PULSE_SECONDS: Final = 0.5
"""How often a worker shows that Python runs in it."""

LINGER_SECONDS: Final = 2.0
"""How long a worker may take to end once its main thread has; a step may have left threads."""

FLOOD_BYTES: Final = 1_048_576
FLOOD_SECONDS: Final = 0.01
"""When so much was printed between two looks, the next one is so soon: it lies in memory."""

RESIDENT: Final = "ledger.runner.run_resident"

log = logging.getLogger(__name__)


class Worker:
    """One per worker process. `owner` is how the ledger names it; a pid alone comes again."""

    def __init__(self) -> None:
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex}"
        self.guardian = Guardian()
        self._tunables = conf.load()
        self._waiter = Waiter(self.must_leave, runtime.list_stops())
        self._told_to_leave = False
        self._waiting = False
        self._waited = 0.0
        self._orphan_until: float | None = None
        self._over_since: float | None = None

    def open(self) -> None:
        """Take signals and start the guardian. Called once, after the fork."""
        runtime.open_signals(self._take_signal)
        self.guardian.explain = deaths.explain_death
        self.guardian.cluster = runtime.cluster
        self.guardian.retire = self._retire
        processes.adopt_orphans()
        steplog.catch_output()
        self.guardian.on_tick.append(self._watch)
        self.guardian.start()
        timer = multiprocessing.current_process().timer  # type: ignore[attr-defined]  # of Pool
        threading.Thread(target=_keep_beating, args=(timer.beat,), daemon=True).start()

    def must_leave(self) -> bool:
        """Whether to start nothing more: the cluster drains, or this process was told to go."""
        return self._told_to_leave or runtime.get_drain() > Drain.RUN or runtime.is_orphan()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Around the wait for a ticket; waiting for long means that the pool is stuck."""
        self._waited, self._waiting = 0.0, True
        try:
            yield
        finally:
            self._waiting = False

    def run_ticket(self) -> None:
        """One resident ticket: the loop of `ledger.runner`. It raises nothing, since django-q2
        would keep a row for ever for each failure; an error of the ledger itself is waited out."""
        try:
            _load_resident()(
                owner=self.owner,
                stop=self.must_leave,
                until=time.monotonic() + self._tunables.ticket_seconds,
                guardian=self.guardian,
                idle=self._waiter.idle,
                turn_away=self._waiter.turn_away,
            )
        except (
            DatabaseError,
            InterfaceError,
        ) as error:  # for as long as an outage lasts: no traceback each time
            log.warning("the worker can't reach the database: %s", error)
            self._recover()
        except BaseException:
            log.exception("the resident loop failed; it goes on with the next ticket")
            self._recover()
        if self.must_leave():
            # django-q2's own way to end a worker after a ticket: it has grown too large.
            Conf.MAX_RSS = 1

    def _recover(self) -> None:
        """Trust no connection, and wait a little before the next try."""
        connections.close_all()
        self._waiter.close()
        until = time.monotonic() + random.uniform(*AFTER_ERROR_SECONDS)
        while not self.must_leave() and time.monotonic() < until:
            time.sleep(0.1)

    def _retire(self) -> None:
        self._told_to_leave = True

    def _take_signal(self, signum: int, frame: Any) -> None:
        self._told_to_leave = True

    # --- What the guardian looks at, four times a second, or once while the worker rests --------

    def _watch(self) -> float | None:
        now = time.monotonic()
        if runtime.get_drain() is Drain.LET_GO or self._is_orphan_too_long(now):
            self._leave_at_once()
        if self._waiting and not self.must_leave():
            # Counted in looks, not by the clock: a process that was stopped has not waited.
            self._waited += LOOK_SECONDS
            if self._waited > self._tunables.wedge_seconds:
                runtime.report_starved()
        if not threading.main_thread().is_alive():
            # A step left threads behind that the interpreter waits for; the pool would lose a slot.
            self._over_since = self._over_since or now
            if now > self._over_since + LINGER_SECONDS:
                os._exit(0)
        if steplog.drain_output(0.2) > FLOOD_BYTES:
            return FLOOD_SECONDS
        return LOOK_SECONDS if self._waiting else None

    def _is_orphan_too_long(self, now: float) -> bool:
        """A worker without a cluster may finish its unit, as long as a drain would have let it."""
        if self._orphan_until is None and runtime.is_orphan():
            self._orphan_until = now + self._tunables.drain_seconds
        return self._orphan_until is not None and now > self._orphan_until

    def _leave_at_once(self) -> None:
        try:
            self.guardian.let_go()
        except Exception:
            log.exception("could not give the lease back; it will expire")
        finally:
            steplog.drain_output(0.2)
            if runtime.is_orphan():  # else the main process ends what the step leaves
                processes.end_children()
            os._exit(LET_GO_STATUS)


def _keep_beating(beat: Callable[[], None]) -> None:
    """A thread of its own, as the guardian may wait for its database as long as that takes."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGTERM, signal.SIGUSR2})
    while True:
        beat()
        time.sleep(PULSE_SECONDS)


def _load_resident() -> Callable[..., Any]:
    """The loop that a ticket runs; a setting, so that the tests can kill a cluster without one."""
    loop: Callable[..., Any] = import_string(getattr(settings, "LONGWATCH_RESIDENT", RESIDENT))
    return loop
