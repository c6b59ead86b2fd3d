"""The main process: starts the pool, counts signals, times the stop, leaves no one behind.

It runs no unit and opens no database connection, and it has no thread, so that it can fork.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import signal
import threading
import time
import uuid
from collections.abc import Sequence
from multiprocessing.connection import wait as wait_readable
from typing import Any, Final

import psutil
from django.db import connections
from django_q.conf import Conf
from django_q.conf import logger as django_q_log

from ledger import conf, registry, wakeups
from ledger.cluster import runtime
from ledger.cluster.companions import Companion
from ledger.cluster.orphans import Orphans
from ledger.cluster.pipes import Flag
from ledger.cluster.pool import Pool
from ledger.cluster.runtime import BIRTH, Drain, Role
from ledger.cluster.sending import SenderProcess
from ledger.sql import turns

EXIT_DRAINED: Final = 0
EXIT_LOST_PART: Final = 69
"""The sentinel, or a companion, ended by itself."""
EXIT_KILLED: Final = 70
"""Something had to be killed."""

COPY_SECONDS: Final = 1.0
"""Signals within this time of the first are copies of it: from the terminal, make, a forwarder."""
LEAVE_SECONDS: Final = 2.0
"""The end of the grace, at most a quarter of it, in which leases are given back: so a cluster
whose units let go of the GIL is gone within the grace."""
LET_GO_SECONDS: Final = 2.0
"""From letting go to SIGKILL."""
LINGER_SECONDS: Final = 5.0
"""How long the sentinel, or what a step forked, may outlive the last worker in a stop."""
LOOK_SECONDS: Final = 0.25
"""Between two looks at a stop under way."""
WATCH_SECONDS: Final = 1.0
"""Between two while all runs: a signal, a birth and the sentinel's end are seen at once."""

log = logging.getLogger(__name__)


def supervise(workers: int | None = None, companions: Sequence[Companion] = ()) -> int:
    """Run the cluster until it has stopped; the exit code. Once per process, in its main thread.

    0 drained by a signal, 69 a part died by itself, 70 something had to be killed.
    """
    return Supervisor(workers, companions).run()


class Supervisor:
    """One run of the cluster."""

    def __init__(self, workers: int | None, companions: Sequence[Companion]) -> None:
        self._tunables = conf.load()
        self._workers = workers or self._tunables.workers
        self._companions = companions
        self._exit_code = EXIT_DRAINED
        self._family: dict[int, tuple[Role, psutil.Process]] = {}
        self._stop = Flag()
        self._first_signal: float | None = None
        self._drain_until: float | None = None
        self._kill_at: float | None = None
        self._last_beat = 0.0
        self._silent_looks = 0
        self._alone_since: float | None = None
        self._orphans = Orphans()
        self._sender = SenderProcess()

    def run(self) -> int:
        """Start, watch, stop."""
        self._births: int | None = runtime.arm()
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(signum) is not signal.SIG_IGN or signum == signal.SIGTERM:
                signal.signal(signum, self._take_signal)
        _prepare_fork(self._workers, self._tunables)
        self._orphans.adopt()
        self._sentinel = multiprocessing.get_context("fork").Process(
            target=Pool, args=(self._stop, Flag(), uuid.uuid4()), name="sentinel"
        )
        with runtime.forking(Role.SENTINEL):
            self._sentinel.start()
        runtime.close_births()
        self._sender.start()
        log.info("%d workers start", self._workers)
        while self._has_living():
            whole = self._wait()
            if runtime.get_drain() is Drain.RUN:
                self._check_health(whole)
            if runtime.get_drain() is not Drain.RUN:
                self._advance_stop(time.monotonic())
        log.info("stopped, exit code %d", self._exit_code)
        return self._exit_code

    def _take_signal(self, signum: int, frame: Any) -> None:
        """Only flags: a handler runs anywhere."""
        now = time.monotonic()
        if self._first_signal is None:
            self._first_signal = now
            runtime.raise_drain(Drain.DRAIN)
        elif now > self._first_signal + COPY_SECONDS:
            runtime.raise_drain(Drain.LET_GO)

    def _wait(self) -> bool:
        """Until something happened, or for one look; takes in who was born. Whether the look was a
        whole one: the births of many workers cut many short."""
        runs = runtime.get_drain() is Drain.RUN
        news: list[Any] = [self._sentinel.sentinel] if self._sentinel.is_alive() else []
        if self._births is not None:
            news.append(self._births)
        if not news:  # only companions are left
            time.sleep(LOOK_SECONDS)
        elif self._births in wait_readable(
            [*news, *runtime.list_stops()] if runs else news,
            WATCH_SECONDS if runs else LOOK_SECONDS,
        ):
            self._take_births()
            return False
        return True

    def _take_births(self) -> None:
        assert self._births is not None
        births = os.read(self._births, BIRTH.size * 256)
        if not births:
            os.close(self._births)
            self._births = None  # the last descendant is gone
        for pid, role in BIRTH.iter_unpack(births):
            log.info("%s %d started", Role(role).name.lower(), pid)
            try:
                # Knows its birthday, so a pid that comes again is never mistaken for it.
                self._family[pid] = (Role(role), psutil.Process(pid))
            except psutil.NoSuchProcess:
                continue
        self._family = {pid: who for pid, who in self._family.items() if _is_alive(who[1])}

    def _has_living(self) -> bool:
        living = (
            self._births is not None
            or self._sentinel.is_alive()
            or self._sender.is_alive()
            or any(companion.process.poll() is None for companion in self._companions)
        )
        ours = {pid for pid, (role, _) in self._family.items() if role is not Role.STRAY}
        ours |= {
            self._sentinel.pid or 0,
            self._sender.pid,
            *(one.process.pid for one in self._companions),
        }
        return self._orphans.end(ours) or living

    def _check_health(self, whole: bool) -> None:
        """While all should run: notice what doesn't, and stop the rest in good order."""
        self._sender.keep()
        silent = runtime.read_beat() == self._last_beat
        self._silent_looks = self._silent_looks + whole if silent else 0
        self._last_beat = runtime.read_beat()
        if not self._sentinel.is_alive():
            self._fail(EXIT_LOST_PART, "the sentinel died")
        # In looks of our own, not by the clock: after a stop of all of us nobody is late.
        elif self._silent_looks * WATCH_SECONDS > self._tunables.wedge_seconds:
            self._fail(EXIT_KILLED, "the sentinel is stuck")
        elif runtime.is_starved():
            self._fail(EXIT_KILLED, "a worker waited in vain for a ticket")
        for companion in self._companions:
            if companion.process.poll() is not None:
                self._fail(EXIT_LOST_PART, f"{companion.name} ended by itself")

    def _fail(self, exit_code: int, why: str) -> None:
        log.critical("%s; the cluster stops", why)
        self._exit_code = exit_code
        runtime.raise_drain(Drain.DRAIN)

    def _advance_stop(self, now: float) -> None:
        if self._drain_until is None:
            grace = self._tunables.drain_seconds
            grace -= min(LEAVE_SECONDS, grace / 4)
            log.info("units in hand may finish within %g s", grace)
            self._drain_until = now + grace
            self._stop.set()
            self._signal_companions(signal.SIGTERM)
        if self._births is None and not self._sentinel.is_alive():
            self._sender.stop()  # last of all: nobody has anything to tell any more
        if now > self._drain_until:
            runtime.raise_drain(Drain.LET_GO)
        if runtime.get_drain() is Drain.LET_GO and self._kill_at is None:
            log.warning("leases are given back now")
            self._kill_at = now + LET_GO_SECONDS
            self._signal_companions(signal.SIGINT)
        if self._kill_at is not None and now > self._kill_at:
            self._kill(with_companions=True)
        elif self._is_stop_stuck(now):
            self._kill(with_companions=False)

    def _is_stop_stuck(self, now: float) -> bool:
        """The workers are gone and the rest does not follow: why wait for the end of the grace?"""
        if any(
            role is Role.WORKER and _is_alive(process) for role, process in self._family.values()
        ):
            self._alone_since = None
            return False
        self._alone_since = self._alone_since or now
        return now > self._alone_since + LINGER_SECONDS

    def _signal_companions(self, signum: signal.Signals) -> None:
        for companion in self._companions:
            companion.process.send_signal(signum)

    def _kill(self, *, with_companions: bool) -> None:
        living = [process for _, process in self._family.values() if _is_alive(process)]
        if living:
            log.error("killing %s", [process.pid for process in living])
            self._exit_code = EXIT_KILLED
        for process in living:
            process.kill()
        self._sender.kill()  # at any instant, without harm
        if with_companions:
            self._signal_companions(signal.SIGKILL)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _prepare_fork(workers: int, tunables: conf.Tunables) -> None:
    """Set django-q2 up for this process and its children, whatever the project's own Q_CLUSTER
    says, and leave nothing open that a fork would share."""
    Conf.WORKERS = workers
    Conf.RECYCLE = tunables.recycle_tickets
    Conf.MAX_RSS = tunables.recycle_mb * 1024 or None
    Conf.GUARD_CYCLE = 1.0  # a child's end begins a round at once
    Conf.SCHEDULER = Conf.SYNC = False
    Conf.DAEMONIZE_WORKERS = False  # a daemon may not use multiprocessing, and steps may
    Conf.SAVE_LIMIT = -1
    Conf.CPU_AFFINITY = 0
    if django_q_log.level == logging.NOTSET:
        django_q_log.setLevel(logging.WARNING)  # else two lines for each ticket
    registry.load_all()  # once for all workers: what is imported here, they share
    gc.freeze()  # no collection touches it again: its pages stay shared, and an exit is short
    wakeups.open_channel()
    turns.share_turns()
    for connection in connections.all():
        # A pool would be copied with its sockets, and two processes talk on one of them.
        connection.close()
        if connection.settings_dict["OPTIONS"].pop("pool", None):
            connection.close_pool()  # type: ignore[attr-defined]  # where there are pools
        connection.settings_dict["CONN_MAX_AGE"] = None
        connection.settings_dict["CONN_HEALTH_CHECKS"] = True
    if threads := [t.name for t in threading.enumerate() if t is not threading.main_thread()]:
        log.warning("threads run while the cluster forks, which can hang it: %s", threads)
