"""How a worker passes the time while nothing is queued.

Its guardian asks the database once a second anyway, so its main thread asks only when that saw
something, or a wake-up came. Now and then it does all the same: a session that says nothing for
hours is cut by some firewall, without a word.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ledger import sql

if TYPE_CHECKING:
    from ledger.runner import Engine

IDLE_SECONDS = (0.8, 1.2)
"""Between these, so that workers that were started together do not look together for ever."""

REST_SECONDS = 10.0
"""Longest time between two looks of the main thread."""

BUSY_SECONDS = 0.1
"""A worker with that much to do in one go wants no wake-ups until it is idle again."""


def rest(engine: Engine, idle: Callable[[float], bool | None], until: float) -> None:
    """After a look that found nothing: wait until there may be something, at most `until`
    (monotonic). `idle` waits so many seconds or for a wake-up, and says whether that came."""
    sql.warm_up()
    wait, longest = engine.picker.take_wait(), random.uniform(*IDLE_SECONDS)
    if wait is not None or engine.picker.has_rules:  # which may be no older than a second
        idle(longest if wait is None else min(wait, longest))
        return
    until = min(until, time.monotonic() + REST_SECONDS)
    while not idle(longest) and engine.may_claim and not engine.stop():
        if time.monotonic() > until or not engine.orders.none_queued:
            return
        engine.looked = time.monotonic()  # for it would have seen no more
        longest = random.uniform(*IDLE_SECONDS)
