"""What a step leaves running: found, ended and reaped, wherever it has gone.

On Linux a process that loses its parent becomes the child of its nearest ancestor that adopts
orphans. Each worker does, so all that its steps started, in a session of its own or not, is below
it; the main process does too, and finds what a killed worker left. Elsewhere only what has not lost
its parent is found.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Collection, Iterable
from typing import Any, Final

import psutil

GRACE_SECONDS: Final = 1.0
"""From SIGTERM to SIGKILL: a browser removes its profile, a sandbox its folder."""

GIVE_UP_SECONDS: Final = 4.0
"""After this a process that even SIGKILL does not end is left: it hangs in the kernel."""

LOOK_SECONDS: Final = 0.005
PR_SET_CHILD_SUBREAPER: Final = 36


_worker: int | None = None
"""The pid of this process once it said that all below it is its units'. Elsewhere (an author's
tests, a script) there may be children that nobody's step began."""


def adopt_orphans() -> bool:
    """Have what loses its parent below this process become its child; False where that can't be."""
    global _worker
    _worker = os.getpid()
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def has_children() -> bool:
    """Whether this process has any child, dead or alive. One system call: it is asked each unit."""
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        return True
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def end_children() -> list[str]:
    """End and reap all that runs below this process; what it was, as `pid command`.

    SIGTERM, then SIGKILL. Multiprocessing's own helpers, which serve the whole life of a process
    and end with it, are spared. Only in a process that called `adopt_orphans`; none elsewhere.
    """
    if _worker != os.getpid():
        return []
    ended: dict[int, str] = {}
    begun = time.monotonic()
    while has_children():
        _reap_children()
        waited = time.monotonic() - begun
        helpers = _find_helpers()
        strangers = [p for p in walk_below(list_children(os.getpid())) if p not in helpers]
        if not strangers or waited > GIVE_UP_SECONDS:
            break
        for pid in strangers:
            with contextlib.suppress(OSError):
                if waited > GRACE_SECONDS:
                    os.kill(pid, signal.SIGKILL)
                elif pid not in ended:
                    ended[pid] = describe_process(pid)
                    os.kill(pid, signal.SIGTERM)
        time.sleep(LOOK_SECONDS)
    return list(ended.values())


def list_children(pid: int) -> list[int]:
    """The children of a process, zombies too; none if it is gone."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    except OSError:  # another system, a thread that ended meanwhile, or no descriptor left
        with contextlib.suppress(psutil.Error, OSError):
            return [child.pid for child in psutil.Process(pid).children()]
    return found


def walk_below(pids: Iterable[int]) -> list[int]:
    """These processes and all below them."""
    todo, found = list(pids), []
    while todo:
        found.append(todo.pop())
        todo += list_children(found[-1])
    return found


def describe_process(pid: int) -> str:
    """`pid command`, for a line of the log."""
    command: list[str] = []
    with contextlib.suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        command = process.cmdline() or [process.name()]
    return f"{pid} {' '.join(command)[:100]}"


def describe_exit(code: int) -> str:
    """How a process ended, by its exit code (negative: by a signal), as half a sentence."""
    if code >= 0:
        return f"it ended itself with exit status {code}, as by os._exit()"
    try:
        number = signal.Signals(-code)
    except ValueError:
        return f"it was ended by signal {-code}"
    if number is signal.SIGKILL:
        return "it was killed (SIGKILL): by the kernel for want of memory, or by hand"
    if number is signal.SIGXCPU:
        return "its processor time was used up (SIGXCPU)"
    return f"it crashed, or was ended by a signal ({number.name})"


def _find_helpers() -> Collection[int | None]:
    modules: Any = sys.modules
    helpers = set()
    if tracker := modules.get("multiprocessing.resource_tracker"):
        helpers.add(tracker._resource_tracker._pid)
    if server := modules.get("multiprocessing.forkserver"):
        helpers.add(server._forkserver._forkserver_pid)
    return helpers


def _reap_children() -> None:
    # Multiprocessing reaps its own here. Were they reaped below, it would take them for living
    # ones for ever, and at its exit signal whoever has their numbers then.
    known = {process.pid for process in multiprocessing.active_children()}
    for pid in list_children(os.getpid()):
        if pid not in known:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
