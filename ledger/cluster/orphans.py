"""What a killed worker's steps had started: adopted by the main process, which ends it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Collection
from typing import Final

from ledger import processes

GRACE_SECONDS: Final = 2.5
"""From SIGTERM to SIGKILL: whose worker was killed cleans up after itself, as a sandbox does."""

log = logging.getLogger(__name__)


class Orphans:
    """Children of the main process that it did not start itself. Never blocks."""

    def __init__(self) -> None:
        self._seen: dict[int, float] = {}
        self._spared: set[int] = set()

    def adopt(self) -> None:
        """From now on orphans come here. Those that this process has started by itself stay."""
        self._spared = set(processes.list_children(os.getpid()))
        if not processes.adopt_orphans():
            log.warning("what the steps of a killed worker started is not found on this system")

    def end(self, ours: Collection[int]) -> bool:
        """One look: ask all but `ours` to end, kill what was asked before; whether any is left."""
        now = time.monotonic()
        found = []
        for pid in processes.list_children(os.getpid()):
            if pid not in ours and pid not in self._spared and not _reap(pid):
                found += processes.walk_below([pid])
        for pid in found:
            with contextlib.suppress(OSError):
                if pid not in self._seen:
                    log.warning("ending what a step left: %s", processes.describe_process(pid))
                    os.kill(pid, signal.SIGTERM)
                elif now > self._seen[pid] + GRACE_SECONDS:
                    os.kill(pid, signal.SIGKILL)
        self._seen = {pid: self._seen.get(pid, now) for pid in found}
        return any(now < since + 2 * GRACE_SECONDS for since in self._seen.values())


def _reap(pid: int) -> bool:
    """Whether it has ended."""
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    return True
