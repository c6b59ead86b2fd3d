"""How an idle worker waits, and how it is woken.

PostgreSQL: LISTEN on a connection of its own; `ledger.sql` sends the NOTIFY with the change itself.
SQLite: a datagram to a local socket after the commit, beside a look at `PRAGMA data_version` for
writers that can't send one (another container, another user). A wake-up is a hint: none is needed
for correctness, and a surplus one costs an empty claim.

The sockets are abstract ones (Linux): no file that can go stale, no folder to guard, and the name
dies with its last holder. One cluster binds one slot before it forks, so all its workers wait on
the same socket and a datagram wakes exactly one of them.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import wait as wait_readable
from typing import Any, Final

from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

CHANNEL: Final = "longwatch"
SLOTS: Final = 8
"""Clusters of one SQLite file on one host that are woken; any further one polls."""

STOP_SECONDS: Final = 0.25
"""How soon an idle worker sees that it must stop, where nothing tells it."""

POLL_SECONDS: Final = 0.1
POLL_ALONE_SECONDS: Final = 0.05
"""Between two looks at data_version: with a socket that wakes us, and without one."""

log = logging.getLogger(__name__)

_channel: socket.socket | None = None


def open_channel(using: str = DEFAULT_DB_ALIAS) -> None:
    """Bind this cluster's socket; call it before the fork. Without a free slot workers poll."""
    global _channel
    for address in _list_addresses(using):
        _channel = _make_socket()
        try:
            _channel.bind(address)
            return
        except OSError:
            close_channel()


def close_channel() -> None:
    """Let go of the slot. The end of the process does the same."""
    global _channel
    if _channel is not None:
        _channel.close()
    _channel = None


def nudge(using: str = DEFAULT_DB_ALIAS) -> None:
    """Wake one idle worker of each cluster on this database. Never blocks, never raises."""
    send(_list_addresses(using))


def send(addresses: Iterable[bytes]) -> None:
    """One datagram to each address, where anybody listens."""
    try:
        with _make_socket() as sender:
            for address in addresses:
                try:
                    sender.sendto(b"!", address)
                except OSError:
                    pass  # nobody there, or enough wake-ups wait there already
    except OSError:
        pass  # out of file descriptors: the poll finds the work


class Waiter:
    """One worker's idling. `stop` says that it must not wait any longer; where that has other
    causes than that one of the files `stops` can be read, it may be seen when the wait is over."""

    def __init__(
        self,
        stop: Callable[[], bool],
        stops: Sequence[int] = (),
        using: str = DEFAULT_DB_ALIAS,
    ) -> None:
        self._stop, self._stops = stop, list(stops)
        self._using = using
        self._listener: BaseDatabaseWrapper | None = None
        self._listens = False
        self._version: int | None = None

    def idle(self, seconds: float) -> bool:
        """Wait until woken, told to stop, or `seconds` are over; whether there may be something
        new. Trouble with the database is logged and waited out: the caller's next claim will meet
        it anyway."""
        until = time.monotonic() + seconds
        look = self._hear if connections[self._using].vendor == "postgresql" else self._poll
        try:
            while not self._stop() and (left := until - time.monotonic()) > 0:
                if look(left):
                    return True
        except (DatabaseError, OSError) as error:
            log.warning("can't wait for wake-ups: %s", error)
            self.close()
            while not self._stop() and (left := until - time.monotonic()) > 0:
                time.sleep(min(left, STOP_SECONDS))
            return True
        return False

    def turn_away(self) -> None:
        """Hear nothing until the next wait, which looks for what came meanwhile: a session that
        listens runs a transaction for each notification, also while its worker is busy."""
        if self._listener is not None and self._listens:
            self._listens = False
            try:
                with self._listener.cursor() as cursor:
                    cursor.execute(f"UNLISTEN {CHANNEL}")
            except DatabaseError as error:
                log.warning("can't wait for wake-ups: %s", error)
                self.close()

    def close(self) -> None:
        """Give up the listening connection; the next wait opens a new one."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _hear(self, seconds: float) -> bool:
        """PostgreSQL: True if notified, or if what came before LISTEN has to be looked for."""
        if self._listener is None or not self._listens:
            self._listener = self._listener or _copy_connection(self._using)
            with self._listener.cursor() as cursor:
                cursor.execute(f"LISTEN {CHANNEL}")
            self._listens = True
            return True
        raw: Any = self._listener.connection
        longest = seconds if self._stops else min(seconds, STOP_SECONDS)
        if raw.fileno() not in wait_readable([raw.fileno(), *self._stops], longest):
            return False
        with self._listener.wrap_database_errors:
            return bool(list(raw.notifies(timeout=0)))

    def _poll(self, seconds: float) -> bool:
        """SQLite: True if a datagram came or another connection has written."""
        with connections[self._using].cursor() as cursor:
            cursor.execute("PRAGMA data_version")
            (version,) = cursor.fetchone()
        if version != self._version:
            self._version = version
            return True
        if _channel is None:
            time.sleep(min(seconds, POLL_ALONE_SECONDS))
            return False
        if not wait_readable([_channel], min(seconds, POLL_SECONDS)):
            return False
        try:
            return bool(_channel.recv(1))
        except BlockingIOError:
            return False  # another worker took it


def _copy_connection(using: str) -> BaseDatabaseWrapper:
    wrapper: BaseDatabaseWrapper = connections[using].copy()
    options = wrapper.settings_dict["OPTIONS"]
    options.pop("pool", None)
    # A peer that vanished without a word is noticed in a minute, not in two hours.
    for name, value in (("idle", 30), ("interval", 10), ("count", 3)):
        options.setdefault(f"keepalives_{name}", value)
    return wrapper


def _make_socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made


def _list_addresses(using: str) -> tuple[bytes, ...]:
    connection = connections[using]
    if connection.vendor != "sqlite":
        return ()
    return derive_addresses(str(connection.settings_dict["NAME"]))


@functools.lru_cache(maxsize=16)
def derive_addresses(name: str) -> tuple[bytes, ...]:
    """Abstract addresses for one database file; none for a database in memory."""
    if not os.path.exists("/proc/net/unix") or ":memory:" in name or "mode=memory" in name:
        return ()
    key = hashlib.sha256(os.path.realpath(name).encode()).hexdigest()[:16]
    return tuple(f"\0{CHANNEL}-{key}-{slot}".encode() for slot in range(SLOTS))
