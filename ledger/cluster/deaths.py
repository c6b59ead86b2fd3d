"""How workers have ended: noted by the sentinel, read by whoever reclaims their tasks.

In memory that the processes of a cluster share; what a worker of another host made of it is not
known here.
"""

from __future__ import annotations

import mmap
import os
import socket
from typing import Final

from ledger.fitness import FILES_CLOSED, OVERDUE, SILENT
from ledger.processes import describe_exit

KEPT: Final = 128
"""The newest deaths; each is a pid and a status. One process writes, so no lock is needed."""

_memory = memoryview(mmap.mmap(-1, (1 + 2 * KEPT) * 8)).cast("q")

_STATUSES: Final = {
    1: "it ended itself (exit status 1): the unit was stuck in native code beyond its deadline, "
    "or called os._exit()",
    FILES_CLOSED: "the step had closed the worker's own files (os.closerange?), so it ended itself",
    SILENT: "the unit was stuck in native code that keeps the interpreter's lock, so it was killed "
    "when its lease was over",
    OVERDUE: "the unit would not end at its deadline, so it ended itself",
}


def note_death(pid: int, status: int | None) -> None:
    """In the sentinel: this child has ended, with that exit status (negative: by a signal)."""
    count = _memory[0]
    at = 1 + 2 * (count % KEPT)
    _memory[at], _memory[at + 1], _memory[0] = pid, status or 0, count + 1


def explain_death(owner: str) -> str:
    """How the worker with this name ended, as half a sentence; "" if it is not known here."""
    host, pid, _ = owner.rsplit(":", 2)
    if host != socket.gethostname():
        return ""
    for back in range(1, min(_memory[0], KEPT) + 1):
        at = 1 + 2 * ((_memory[0] - back) % KEPT)
        if _memory[at] == int(pid):
            return _STATUSES.get(_memory[at + 1]) or describe_exit(_memory[at + 1])
    try:
        os.kill(int(pid), 0)
    except OSError:
        return ""
    return (
        "its process lives and stopped beating: stuck in native code that keeps the interpreter's "
        "lock, or stopped"
    )
