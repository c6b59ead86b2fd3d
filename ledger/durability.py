"""Transactions that a step opens: its durable writes stay out of them, and none is left open.

What `ctx` writes (progress, money, artifacts) must last even when the step fails afterwards, so
inside a transaction of the step it is refused instead of being rolled back later. Transactions
that a test case wraps around a test don't count, as with Django's `atomic(durable=True)`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection, connections


def require_durable(what: str) -> None:
    """Raise RuntimeError, naming `what`, inside a transaction that the step opened."""
    if _is_open(connection):
        raise RuntimeError(
            f"{what} is a durable write, so it can't be part of a transaction; call it before or "
            "after the atomic block"
        )


def close_left_open() -> list[str]:
    """The aliases of connections on which a transaction is open; each is rolled back and closed."""
    left = [one for one in connections.all(initialized_only=True) if _is_open(one)]
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


def _is_open(one: Any) -> bool:
    if one.connection is None:
        return False
    if one.in_atomic_block:
        return any(not block._from_testcase for block in one.atomic_blocks)
    if not one.get_autocommit():
        return True
    # A bare BEGIN through a cursor, which Django does not see.
    if one.vendor == "sqlite":
        return bool(one.connection.in_transaction)
    if one.vendor == "postgresql":
        return bool(one.connection.info.transaction_status)
    return False
