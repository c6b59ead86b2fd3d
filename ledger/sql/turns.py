"""SQLite's one write lock: waited for in short looks, and handed on at once within a cluster.

SQLite's own waiting sleeps up to 100 ms between two looks at a lock that busy workers hold for half
a millisecond each time, so one of them has it nearly always and the others starve (seen: for
1.5 s; a late heartbeat loses its lease). Short looks share it evenly, and waste less.
"""

from __future__ import annotations

import multiprocessing
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import Any

from django.db import DEFAULT_DB_ALIAS, OperationalError, connection, connections, transaction

LOOK_SECONDS, LONGEST_LOOK_SECONDS = 0.00001, 0.005
"""Between two looks at a lock that another process holds, at first and after half a second. Linux
sleeps 50 microseconds longer."""

TOLD_LOOK_SECONDS = 0.0004
"""The same at first where those who hold it say when they let it go, as nearly always."""


class write_lock:  # reads as the statement that it is; a generator costs four times as much
    """The driver's connection inside BEGIN IMMEDIATE, or inside the caller's transaction."""

    def __enter__(self) -> sqlite3.Connection:
        self.database = connect()  # not the proxy, which looks itself up at each use
        raw: sqlite3.Connection = self.database.connection
        self.raw, self.own = raw, not self.database.in_atomic_block
        if self.own:
            with self.database.wrap_database_errors:
                begin(raw, _read_patience(self.database))
        return raw

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        wrap = self.database.wrap_database_errors
        if self.own:
            with wrap:
                try:
                    if error is None:
                        self.raw.execute("COMMIT")
                finally:
                    # Also when COMMIT itself failed (disk full): else the lock would stay.
                    if self.raw.in_transaction:
                        self.raw.execute("ROLLBACK")
                    end_turn(self.raw, _read_patience(self.database))
        wrap.__exit__(kind, error, trace)


def connect() -> Any:
    """Django's connection of this thread, open."""
    database = connections[DEFAULT_DB_ALIAS]
    database.ensure_connection()
    return database


@contextmanager
def atomic() -> Iterator[None]:
    """Django's transaction, begun in short looks as well, so that a person's click is not the one
    that starves beside busy workers."""
    if connection.in_atomic_block:
        with transaction.atomic():
            yield
        return
    database = connect()
    raw, patience = database.connection, _read_patience(database)
    with ExitStack() as stack:
        stack.callback(end_turn, raw, patience)
        _look_until(lambda: stack.enter_context(transaction.atomic()), raw, patience)
        yield


def probe_lock(patience: float) -> None:
    """Raise what keeps this process from writing for `patience` seconds; write nothing."""
    database = connect()
    raw: sqlite3.Connection = database.connection
    with database.wrap_database_errors:
        try:
            begin(raw, patience)
            raw.execute("ROLLBACK")
        finally:
            _wait_again(raw, _read_patience(database))


def _read_patience(database: Any) -> float:
    return float(database.settings_dict["OPTIONS"].get("timeout", 5.0))


def begin(raw: sqlite3.Connection, patience: float) -> None:
    """BEGIN IMMEDIATE within `patience` seconds; ended by `end_turn`. Raises OperationalError, as
    SQLite's waiting."""
    _look_until(lambda: raw.execute("BEGIN IMMEDIATE"), raw, patience)


def _look_until(begin: Callable[[], Any], raw: sqlite3.Connection, patience: float) -> None:
    """Try `begin` until the lock is free; after `patience` seconds raise what it raises. SQLite's
    own waiting is off until the turn ends, since whoever has the lock waits for nothing."""
    began = time.monotonic()
    raw.execute("PRAGMA busy_timeout = 0")
    try:
        while not _begins(begin, began + patience):
            pause = min((time.monotonic() - began) / 100, LONGEST_LOOK_SECONDS)
            if _freed is None:
                time.sleep(max(LOOK_SECONDS, pause))
            else:
                _freed.acquire(timeout=max(TOLD_LOOK_SECONDS, pause))
    except BaseException:
        _wait_again(raw, patience)
        raise
    if _freed is not None:
        _freed.acquire(False)  # what was said of the turn before this one


def _begins(begin: Callable[[], Any], until: float) -> bool:
    try:
        begin()
    except (sqlite3.OperationalError, OperationalError) as error:
        code = getattr(error.__cause__ or error, "sqlite_errorcode", 0)
        if code & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
            raise
        return False
    return True


def _wait_again(raw: sqlite3.Connection, patience: float) -> None:
    with suppress(sqlite3.ProgrammingError):  # closed, as by an error amid a rollback
        raw.execute(f"PRAGMA busy_timeout = {int(patience * 1000)}")


_freed: Any = None


def share_turns() -> None:
    """Before a cluster forks: its processes tell each other when they let the lock go.

    A hint that nothing depends on, as others write too; but between two busy workers a look that
    comes late leaves the lock idle, and each that comes early costs what a statement does.
    """
    global _freed
    _freed = multiprocessing.get_context("fork").BoundedSemaphore(1)


def end_turn(raw: sqlite3.Connection, patience: float) -> None:
    """The lock is free."""
    if _freed is not None:
        try:
            _freed.release()
        except ValueError:  # as it was the last time, and nobody has taken it
            pass
    _wait_again(raw, patience)
