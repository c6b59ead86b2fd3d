"""Whether a worker is still what it was after a step has run in it.

A step shares the process with us and may lower its limits, leave its folder or close its files.
Looked at after each unit, so it costs a few system calls.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import stat
from typing import Final

LIMITS: Final = {
    name: getattr(resource, f"RLIMIT_{name}")
    for name in ("NOFILE", "AS", "DATA", "FSIZE", "CPU")
    if hasattr(resource, f"RLIMIT_{name}")
}

BEYOND: Final = 200
"""More descriptors than a worker opens by itself."""

FILES_CLOSED: Final = 72
OVERDUE: Final = 73
"""Exit statuses of a worker whose unit had closed the worker's own files, or would not end."""
SILENT: Final = 74
"""Stands for the exit status of a worker that was killed because no Python ran in it any more."""


class Fitness:
    """What the process was before its first unit."""

    def __init__(self) -> None:
        self._limits = {kind: resource.getrlimit(kind) for kind in LIMITS.values()}
        self._folder = os.getcwd()
        # Pipes, whose inodes come once. Whoever closes by range meets one of the two: the lowest,
        # which our parent gave us, or one beyond all others.
        self._ends = os.pipe()
        high = fcntl.fcntl(self._ends[0], fcntl.F_DUPFD_CLOEXEC, BEYOND)
        low = next(end for end in range(3, BEYOND) if _is_pipe(end))
        self._files = {end: os.fstat(end).st_ino for end in (low, high)}

    def keeps_its_files(self) -> bool:
        """False when descriptors that the step did not open are closed or are other files."""
        try:
            for end, inode in self._files.items():
                if os.fstat(end).st_ino != inode:
                    return False
        except OSError:
            return False
        return True

    def restore(self) -> str:
        """Set back what the step changed; what can't be set back, by name, or ""."""
        changed = []
        for name, kind in LIMITS.items():
            if (now := resource.getrlimit(kind)) != self._limits[kind]:
                # A hard limit that was lowered comes back for root only.
                for limit in ((now[1], now[1]), self._limits[kind]):
                    with contextlib.suppress(ValueError, OSError):
                        resource.setrlimit(kind, limit)
                if resource.getrlimit(kind) != self._limits[kind]:
                    changed.append(f"RLIMIT_{name} to {now}")
        try:
            if os.getcwd() != self._folder:
                os.chdir(self._folder)
        except OSError:  # the step's folder is gone, and perhaps ours
            with contextlib.suppress(OSError):
                os.chdir(self._folder)
        return ", ".join(changed)


def _is_pipe(descriptor: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    except OSError:
        return False
