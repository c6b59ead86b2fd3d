"""Waiting for a task to change, without holding a transaction or all of the web's threads."""

from __future__ import annotations

import threading
import time
from uuid import UUID

from django.http import HttpRequest

from ledger import queries

MAX_WAIT = 60.0
FIRST_LOOK, LAST_LOOK, GROWTH = 0.05, 1.0, 1.5
"""Seconds between looks: quick at first, when a change is most likely, then once a second."""

UNKNOWN_SERVER = 4
"""Waiters per process where the server's threads are not known."""

closing = threading.Event()
"""Set when this process is to end: whoever waits is answered at once."""

_seats = threading.BoundedSemaphore(UNKNOWN_SERVER)


def set_threads(threads: int) -> None:
    """Allow half of the server's threads to wait; gunicorn.conf.py tells how many there are."""
    global _seats
    _seats = threading.BoundedSemaphore(max(1, threads // 2))


def wait_for_change(request: HttpRequest, task_id: UUID, revision: int, seconds: float) -> None:
    """Return when the task's revision differs from `revision`, at the latest after `seconds`.

    Returns at once when as many wait as may, or where a waiting request would block all others
    (a server with one thread). Raises TaskNotFound.
    """
    if not request.META.get("wsgi.multithread", False):
        return
    seats = _seats  # the one that is released, should the number of threads be told meanwhile
    if not seats.acquire(blocking=False):
        return
    try:
        _look_until_changed(task_id, revision, time.monotonic() + min(seconds, MAX_WAIT))
    finally:
        seats.release()


def _look_until_changed(task_id: UUID, revision: int, deadline: float) -> None:
    pause = FIRST_LOOK
    while queries.read_revision(task_id) == revision:
        left = deadline - time.monotonic()
        if left <= 0 or closing.wait(min(pause, left)):
            return
        pause = min(pause * GROWTH, LAST_LOOK)
