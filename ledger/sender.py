"""The sender: one process of a cluster that tells people. No worker waits for it.

Each try runs in a process forked for it, which is killed at its deadline: a lookup, a mail server
or a service that drips can't hold anything up, and what it breaks or leaks goes with it. A sender
may be killed at any instant; what it had in hand is taken again by the next.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait as wait_readable
from typing import Final

from django.db import DatabaseError, InterfaceError, connections

from ledger import conf
from ledger.alerts import channels, conditions, deliveries, retention, routing
from ledger.alerts.deliveries import Job, Outcome
from ledger.tallies import Tallying

AT_ONCE: Final = 16
"""Endpoints that are tried at the same time."""
LOOK_SECONDS: Final = 1.0
STEP_SECONDS: Final = 0.25
AFTER_ERROR_SECONDS: Final = 2.0
FORGET_SECONDS: Final = 3600.0
LEAVE_SECONDS: Final = 2.0
MARGIN_SECONDS: Final = 0.5
"""From the end of a channel's seconds, by which it ends itself, to that of its process."""
MEMORY: Final = 256 << 20
"""Bytes that one try may take beyond what it was forked with."""

log = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True)
class Try:
    """One try under way, in a process of its own."""

    job: Job
    pid: int
    pipe: int
    until: float
    said: bytes = b""


class Sender:
    """Routes, takes, sends and settles until told to stop. In a process without threads. One of
    the files `stops` can be read when it is told."""

    def __init__(self, stops: Sequence[int] = ()) -> None:
        self.tries: list[Try] = []
        self._stops = stops
        self._next_look = 0.0
        # Not at once: the workers of a cluster that starts have not signed on yet.
        self._next_conditions = time.monotonic() + conf.load().alert_look_seconds
        self._next_forget = time.monotonic() + FORGET_SECONDS
        self._collector = Collector()
        self._tallying = Tallying()

    def run(self, stop: Callable[[], bool]) -> None:
        """Until `stop` says so. Tries under way then have a moment; what is left is taken again
        when its hold is over."""
        while not stop():
            self._guard(self.step, stop)
        until = time.monotonic() + LEAVE_SECONDS
        while self.tries and time.monotonic() < until:
            self._guard(self.settle_ended, lambda: True)
            wait_readable([one.pipe for one in self.tries], STEP_SECONDS)
        for one in self.tries:
            _end_try(one)
        self._collector.end()

    def _guard(self, act: Callable[[], None], stop: Callable[[], bool]) -> None:
        try:
            act()
        except (DatabaseError, InterfaceError) as error:  # while it lasts: no traceback
            log.warning("alerts can't reach the database: %s", error)
            self._recover(stop)
        except Exception:
            log.exception("the sender of alerts failed; it goes on")
            self._recover(stop)

    def step(self) -> None:
        """One round: what ended is settled, what is due is begun, then a wait."""
        self.settle_ended()
        self._look_around()
        if time.monotonic() >= self._next_look:
            routed = 0
            if deliveries.has_work():  # one cheap statement a second while there is none
                routed = routing.route_outbox()
                for job in deliveries.take_due(AT_ONCE - len(self.tries)):
                    self.tries.append(_begin_try(job))
            self._next_look = time.monotonic() + (0.0 if routed else LOOK_SECONDS)
        wait_readable([*self._stops, *(one.pipe for one in self.tries)], self._choose_wait())

    def _look_around(self) -> None:
        """At what is so for a while, and now and then at what is old; and what came is counted."""
        now = time.monotonic()
        if now >= self._next_conditions:
            self._next_conditions = now + conf.load().alert_look_seconds
            conditions.tell_conditions()
        if now >= self._next_forget:
            self._next_forget = now + FORGET_SECONDS
            retention.forget_old()
        self._collector.look()
        self._tallying.tick()

    def settle_ended(self) -> None:
        """Store what came of the tries that ended."""
        for one in list(self.tries):
            if self._has_ended(one):
                self.tries.remove(one)
                deliveries.settle_delivery(one.job, _read_outcome(one))
                self._next_look = 0.0

    def _choose_wait(self) -> float:
        ends = [self._next_look, *(one.until for one in self.tries)]
        return max(0.0, min(ends) - time.monotonic())

    def _has_ended(self, one: Try) -> bool:
        """Whether it has said its outcome and closed its pipe, or is out of time and killed."""
        with contextlib.suppress(BlockingIOError):
            while part := os.read(one.pipe, 65_536):
                one.said += part
            _end_try(one)
            return True
        if time.monotonic() < one.until:
            return False
        _end_try(one)
        one.said = b""
        return True

    def _recover(self, stop: Callable[[], bool]) -> None:
        connections.close_all()
        until = time.monotonic() + AFTER_ERROR_SECONDS
        while not stop() and time.monotonic() < until:
            time.sleep(STEP_SECONDS)


class Collector:
    """`manage.py collect` every `collect_hours`, in a process of its own that gives way to all
    others. Of several clusters one collects; what is killed on the way is done the next time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        # Soon after a start, or a site that is deployed every day never would; not all at once.
        seconds = min(3600 * conf.load().collect_hours, FORGET_SECONDS)
        self._next = time.monotonic() + seconds * random.uniform(0.5, 1.5)

    def look(self) -> None:
        """Begin what is due."""
        if self._process is not None and self._process.poll() is not None:
            self._process = None
        hours, now = conf.load().collect_hours, time.monotonic()
        if hours <= 0 or self._process is not None or now < self._next:
            return
        self._next = now + 3600 * hours
        self._process = subprocess.Popen(
            [sys.executable, "-m", "django", "collect", "--verbosity=0"],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.DEVNULL,
            preexec_fn=lambda: os.nice(15),
        )

    def end(self) -> None:
        """At once: it may be ended at any instant."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def run_sender(stop: Callable[[], bool], stops: Sequence[int]) -> None:
    """The life of the sender's process, until `stop`; one of the files `stops` is readable then."""
    Sender(stops).run(stop)


def _begin_try(job: Job) -> Try:
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        _run_try(job, writing)
    os.close(writing)
    os.set_blocking(reading, False)
    return Try(job, pid, reading, time.monotonic() + job.seconds + 2 * MARGIN_SECONDS)


def _run_try(job: Job, pipe: int) -> None:
    """In the forked process: send, say what came of it, and leave without any clean-up, as all
    that could be cleaned up is the sender's."""
    try:
        # By the kernel, so that it ends when the sender is gone too; well within its hold.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, job.seconds + MARGIN_SECONDS)
        _limit_memory()
        outcome = channels.send_job(job)
        os.write(pipe, json.dumps(dataclasses.asdict(outcome)).encode())
    finally:
        os._exit(0)


def _read_outcome(one: Try) -> Outcome:
    try:
        return Outcome(**json.loads(one.said))
    except (TypeError, ValueError):
        return Outcome(f"no end within {one.job.seconds:g} s, or its process was killed")


def _end_try(one: Try) -> None:
    os.close(one.pipe)
    os.kill(one.pid, signal.SIGKILL)
    os.waitpid(one.pid, 0)


def _limit_memory() -> None:
    """What a service answers without end must not take the machine's memory."""
    import resource

    with contextlib.suppress(OSError, ValueError):
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, now + MEMORY))
