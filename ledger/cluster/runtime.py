"""What the processes of one cluster share, handed on by fork alone: a little memory, and a role.

A slot of the memory is eight aligned bytes, so a store can't be seen half done. No locks: a
process that is killed while it holds one stops all others for ever.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import mmap
import os
import signal
import socket
import struct
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final

from django.db import connections

from ledger.cluster.pipes import Flag


class Role(enum.IntEnum):
    """What a process is in its cluster."""

    MAIN = 0
    SENTINEL = 1
    PUSHER = 2
    MONITOR = 3
    WORKER = 4
    SENDER = 5
    STRAY = 6
    """Forked by a step, or no part of a cluster."""


class Drain(enum.IntEnum):
    """How far the stop has gone."""

    RUN = 0
    DRAIN = 1
    """Finish the unit in hand, start nothing."""
    LET_GO = 2
    """Give the lease back and leave at once."""


BIRTH: Final = struct.Struct("=ii")
"""What a new process writes to the parent: pid and role. Small, so pipes carry it whole."""

_DRAIN, _BEAT, _STARVED = range(3)
_memory = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("d")
_draining: Flag | None = None
_libc: Any = None
_births: tuple[int, int] | None = None
_inherited: list[Any] = []
_next_role = Role.STRAY
_pid = os.getpid()
_parent = os.getppid()
role = Role.STRAY
cluster = ""
"""Name of this cluster: host, pid of its main process, and what tells it from others of the two."""


def get_drain() -> Drain:
    """The shared stop flag."""
    return Drain(int(_memory[_DRAIN]))


def raise_drain(to: Drain) -> None:
    """Set the stop flag; it never goes back. In the main process."""
    if to > get_drain():
        _memory[_DRAIN] = float(to)
        if _draining is not None:
            _draining.set()


def list_stops() -> list[int]:
    """Files that can be read once the stop flag is raised, for who waits for more than that."""
    return [] if _draining is None else [_draining.fileno()]


def beat() -> None:
    """The sentinel did one round."""
    _memory[_BEAT] = time.monotonic()


def read_beat() -> float:
    """When the sentinel did its last round, by the host's monotonic clock; 0 before the first."""
    return _memory[_BEAT]


def report_starved() -> None:
    """A worker gets no ticket; only the main process can do something about it."""
    _memory[_STARVED] = 1.0


def is_starved() -> bool:
    """A worker asked for help."""
    return bool(_memory[_STARVED])


def is_orphan() -> bool:
    """The process that made this one is gone."""
    return os.getppid() != _parent


def arm() -> int:
    """Make this process the main one of a cluster; the read end of the pipe of births."""
    global role, cluster, _births, _libc, _draining
    if _births is not None:
        raise RuntimeError("this process has run a cluster before; start another process")
    role = Role.MAIN
    cluster = f"{socket.gethostname()[:80]}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
    _libc = ctypes.CDLL(None)
    _draining = Flag()
    _births = os.pipe()
    for end in _births:
        os.set_blocking(end, False)
    os.register_at_fork(after_in_child=_enter_child)
    return _births[0]


def close_births() -> None:
    """Close the main process's own end, so that the pipe ends when the last descendant does."""
    global _births
    assert _births is not None
    os.close(_births[1])
    _births = (_births[0], -1)  # that number may soon be another file's


@contextlib.contextmanager
def forking(as_role: Role) -> Iterator[None]:
    """The next fork in this block makes a process of that role."""
    global _next_role
    _next_role = as_role
    try:
        yield
    finally:
        _next_role = Role.STRAY


def die_with_parent(signum: int = signal.SIGKILL) -> None:
    """Ask the kernel for a signal when the thread that forked this process ends. Linux; elsewhere
    nothing happens, and what polls `is_orphan` has to notice."""
    with contextlib.suppress(AttributeError):
        (_libc or ctypes.CDLL(None)).prctl(1, int(signum), 0, 0, 0)


def _enter_child() -> None:
    """Runs first in every process that is forked below the main one."""
    global role, _pid, _parent, _next_role
    role, _next_role = _next_role, Role.STRAY
    _pid, _parent = os.getpid(), _pid
    if role is Role.STRAY:
        for signum in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGUSR2})
        _leave_connections()
    else:
        # A worker may finish its unit, everything else has nothing to lose.
        die_with_parent(signal.SIGUSR2 if role is Role.WORKER else signal.SIGKILL)
        if is_orphan():
            os._exit(0)  # it died between the fork and the line above
        # Stopping is the main process's business: a signal to the whole group must not kill the
        # others. Blocked rather than ignored, so that django-q2 can't undo it; a worker opens up
        # once it has handlers of its own.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR2})
        for signum in (signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
    if _births is not None:
        with contextlib.suppress(OSError):
            os.write(_births[1], BIRTH.pack(_pid, role))


def _leave_connections() -> None:
    """In what a step forked: use none of the worker's sessions, whose answers would mix.

    Kept rather than closed, which would end them for the worker too.
    """
    for one in connections.all(initialized_only=True):
        _inherited.append(one.connection)
        one.connection = None


def open_signals(handler: Callable[[int, Any], None]) -> None:
    """In a worker: have its own SIGTERM, and its parent's death, call `handler`."""
    for signum in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(signum, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGUSR2})
