"""The sender of alerts as a child of the main process, begun again whenever it ends.

Outside of the pool: it can't be what a worker waits for, and its end is no reason to stop anything.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import time
from multiprocessing.context import ForkProcess
from typing import Final

from django.conf import settings
from django.db import connections
from django.utils.module_loading import import_string

from ledger.cluster import runtime
from ledger.cluster.pipes import Flag
from ledger.cluster.runtime import Role

SENDER: Final = "ledger.sender.run_sender"
AGAIN_SECONDS: Final = 1.0

log = logging.getLogger(__name__)


class SenderProcess:
    """At most one process. None where LONGWATCH_SENDER is empty."""

    def __init__(self) -> None:
        self._function = getattr(settings, "LONGWATCH_SENDER", SENDER)
        self._process: ForkProcess | None = None
        self._next_start = 0.0

    @property
    def pid(self) -> int:
        """Of the process that runs or ran last; 0 before the first."""
        return (self._process and self._process.pid) or 0

    def is_alive(self) -> bool:
        """Whether one runs."""
        return self._process is not None and self._process.is_alive()

    def start(self) -> None:
        """Fork one. It is not in the pipe of births, which must be closed by now."""
        if not self._function:
            return
        self._next_start = time.monotonic() + AGAIN_SECONDS
        self._process = multiprocessing.get_context("fork").Process(
            target=_run_sender, args=(self._function,), name="sender"
        )
        with runtime.forking(Role.SENDER):
            self._process.start()
        log.info("sender %d started", self.pid)

    def keep(self) -> None:
        """Start it again if it has ended, at most once a second."""
        if not self.is_alive() and time.monotonic() > self._next_start:
            self.start()

    def stop(self) -> None:
        """Ask it to leave; tries under way have a moment to end."""
        if self._process is not None and self._process.is_alive():
            self._process.terminate()

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()


def _run_sender(function: str) -> None:
    # It goes on while the cluster drains: the last units may have something to tell.
    told = Flag()
    runtime.open_signals(lambda signum, frame: told.set())
    try:
        import_string(function)(lambda: told.is_set() or runtime.is_orphan(), [told.fileno()])
    except BaseException:
        log.exception("the sender ended")
    finally:
        connections.close_all()
        # Not through multiprocessing's exit, which knows of more children than this one's.
        os._exit(0)
