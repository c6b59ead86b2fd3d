"""Pipes in place of multiprocessing's event and queue, which keep the lock of whoever is killed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from multiprocessing.connection import wait as wait_readable


class Flag:
    """Stands in for multiprocessing.Event: a pipe that holds a byte once the flag is up."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def set(self) -> None:
        os.write(self._write, b"!")

    def fileno(self) -> int:
        """Of a file that is readable once the flag is up, for who waits for more than that."""
        return self._read

    def is_set(self) -> bool:
        return self.wait(0)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the flag is up or `timeout` seconds are over; whether it is up."""
        return bool(wait_readable([self._read], timeout))


class Pipe:
    """A pipe of single bytes with any number of writers and readers, none of which ever blocks."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def put(self, byte: bytes) -> None:
        """Add one byte; nothing if 64 KiB of them wait already."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, byte)

    def take(self, timeout: float, limit: int = 1, unless: Collection[int] = ()) -> bytes:
        """Up to `limit` bytes, empty if none came within `timeout` seconds, or before one of the
        files `unless` could be read."""
        if self._read in wait_readable([self._read, *unless], timeout):
            with contextlib.suppress(BlockingIOError):  # another reader was faster
                return os.read(self._read, limit)
        return b""
