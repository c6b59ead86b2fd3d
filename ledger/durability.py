"""Transactions that a step opens: its durable writes stay out of them, and none is left open.

What `ctx` writes (progress, money, artifacts) must last even when the step fails afterwards, so
inside a transaction of the step it is refused instead of being rolled back later. Transactions
that a test case wraps around a test don't count, as with Django's `atomic(durable=True)`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import DatabaseError, InterfaceError, connection, connections

from ledger.conf import load
from ledger.errors import StoreUnavailable
from ledger.sql import is_outage

log = logging.getLogger(__name__)

LONGEST_WAIT = 2.0
"""Seconds between two tries of a write of the step while the database is away."""


def require_durable(what: str) -> None:
    """Raise RuntimeError, naming `what`, inside a transaction that the step opened."""
    if _is_open(connection):
        raise RuntimeError(
            f"{what} is a durable write, so it can't be part of a transaction; call it before or "
            "after the atomic block"
        )


def insist_on[T](ask: Callable[[], T], check: Callable[[], None]) -> T:
    """Carry out a read or a write that may be repeated, however long the database is away: an
    outage is no failure of the step. One of the artifact store is, once it has lasted for
    `store_seconds`: nothing may be wrong with the rest of the product, and a person must look.
    `check` may end it between two tries. Not in a transaction of the step, which is gone with its
    connection.
    """
    waited, until = 0.05, 0.0
    while True:
        try:
            return ask()
        except (DatabaseError, InterfaceError) as error:
            if not is_outage(error) or _is_in_block(connection):
                raise
            log.warning("no answer to a step's statement, trying again: %s", error)
            forget_connections()
        except StoreUnavailable as error:
            until = until or time.monotonic() + load().store_seconds
            if time.monotonic() + waited > until or _is_in_block(connection):
                raise
            log.warning("trying again: %s", error)
        check()
        time.sleep(waited * random.uniform(0.5, 1.0))
        waited = min(LONGEST_WAIT, waited * 2)


def forget_connections() -> None:
    """Close what an asynchronous exception or an outage may have left in an unknown state."""
    for one in connections.all(initialized_only=True):
        if not one.in_atomic_block:
            one.close()


def close_left_open() -> list[str]:
    """The aliases of connections on which a transaction is open; each is rolled back and closed."""
    every = connections.all(initialized_only=True)
    for one in every:
        if one.connection is not None and _is_closed(one):  # by the step, behind Django's back
            one.in_atomic_block = False
            one.close()
    left = [one for one in every if _is_open(one)]
    for one in left:
        # In an atomic block close() would keep the broken state for the block's end, which never
        # comes; outside of one, the next use connects anew.
        one.in_atomic_block = False
        one.close()
    return [str(one.alias) for one in left]


@contextmanager
def write_blocking() -> Iterator[None]:
    """Let an async step use the database from its coroutine, blocking its loop for that moment.

    The worker runs this one unit, so there is nobody to be kept waiting, and the write stays on
    the unit's own connection. Django otherwise refuses database use where a loop runs.
    """
    loop = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)


def _is_closed(one: Any) -> bool:
    if one.vendor == "sqlite":
        try:
            return one.connection.in_transaction is None
        except one.Database.ProgrammingError:  # there is no other word for it
            return True
    return bool(getattr(one.connection, "closed", False))


def _is_open(one: Any) -> bool:
    if one.connection is None:
        return False
    if one.in_atomic_block:
        return _is_in_block(one)
    if not one.get_autocommit():
        return True
    # A bare BEGIN through a cursor, which Django does not see.
    if one.vendor == "sqlite":
        return bool(one.connection.in_transaction)
    if one.vendor == "postgresql":
        return bool(one.connection.info.transaction_status)
    return False


def _is_in_block(one: Any) -> bool:
    return bool(one.in_atomic_block) and any(
        not block._from_testcase for block in one.atomic_blocks
    )
