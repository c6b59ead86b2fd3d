"""A resident loop as small as can be, so that the kill matrix tests the cluster and nothing else.

A row of `toy` is one unit. Its `runs` counts how often it was begun; a unit that was let go is
`ready` again with `released` +1. Nothing reclaims a lost one: the row shows what happened.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from django.db import connection, connections

from ledger.deadlines import UnitStopped, UnitTimeout, unit_deadline
from ledger.guardian import Guardian


def run_resident(
    *,
    owner: str,
    stop: Callable[[], bool],
    until: float,
    guardian: Guardian,
    idle: Callable[[float], None],
    turn_away: Callable[[], None],
) -> None:
    """Claim, run, settle, until told to stop or the ticket is over."""
    guardian.let_go = lambda: release(owner)
    while not stop() and time.monotonic() < until:
        if (unit := claim(owner)) is None:
            idle(min(1.0, until - time.monotonic()))
            continue
        state = run_bounded(*unit[1:])
        turn_away()
        execute("UPDATE toy SET state = %s WHERE id = %s AND owner = %s", state, unit[0], owner)


def execute(statement: str, *values: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return cursor.fetchall() if cursor.description else []


def claim(owner: str) -> tuple[int, str, float, float] | None:
    rows = execute("SELECT id FROM toy WHERE state = 'ready' LIMIT 1")
    skip = "FOR UPDATE SKIP LOCKED" if connection.vendor == "postgresql" else ""
    rows = rows and execute(
        "UPDATE toy SET state = 'running', owner = %s, runs = runs + 1, begun = %s WHERE id = "
        f"(SELECT id FROM toy WHERE state = 'ready' ORDER BY id LIMIT 1 {skip}) "
        "RETURNING id, kind, seconds, deadline",
        owner,
        time.monotonic(),
    )
    return rows[0] if rows else None  # type: ignore[return-value]


def release(owner: str) -> None:
    execute(
        "UPDATE toy SET state = 'ready', owner = '', released = released + 1 "
        "WHERE owner = %s AND state = 'running'",
        owner,
    )


def run_bounded(kind: str, seconds: float, deadline: float) -> str:
    try:
        with unit_deadline(deadline, margin=1.0):
            run_unit(kind, seconds)
    except (UnitTimeout, UnitStopped) as error:
        connections.close_all()
        return type(error).__name__
    return "done"


def run_unit(kind: str, seconds: float) -> None:
    ends = time.monotonic() + seconds
    if kind == "sleep":
        time.sleep(seconds)
    elif kind == "deaf":  # swallows whatever ends it
        while time.monotonic() < ends:
            try:
                time.sleep(seconds)
            except BaseException:
                pass
    elif kind == "stuck":  # in C, with the GIL: no Python code runs in this process meanwhile
        while time.monotonic() < ends:
            sum(range(1_000_000_000))
    elif kind == "threads":  # leaves a thread behind that never ends
        import threading

        threading.Thread(target=time.sleep, args=(3600,)).start()
    elif kind == "forks":  # leaves a process behind that only SIGKILL ends
        if os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(3600)
            os._exit(0)
    elif kind == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
