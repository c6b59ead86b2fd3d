"""What is printed in a worker: its files 1 and 2, which a step's libraries and processes write to.

Both are one file without a name that only grows, in memory where the system has that, so that
whoever prints never waits: a pipe would stop a step that prints while it holds the interpreter's
lock, for nothing could read it then. What was read is given back by a hole in the file, so it takes
up what came since the last look and no more. The worker's own log goes on to the stderr that it
was started with.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import io
import logging
import os
import select
import sys
import tempfile
from typing import IO, Any, Final

HIGH: Final = 100
"""Where our own descriptors begin, out of the way of who closes or takes the low ones."""

PIECE: Final = 4_096
"""A pipe that can be written to at all takes so much at once."""

KEEP_SIZE_AND_PUNCH: Final = 0x01 | 0x02

_open: Capture | None = None


class Capture:
    """Files 1 and 2 of this process, from when it is made to its end."""

    def __init__(self) -> None:
        global _open
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        self.stderr = fcntl.fcntl(2, fcntl.F_DUPFD_CLOEXEC, HIGH)
        self._origin = _identify(self.stderr)
        self._libc = ctypes.PyDLL(None)
        self._taken = 0
        self._file = -1
        self._own = (0, 0)
        self._streams: list[IO[str]] = []
        _lead_handlers(_open_stream(self.stderr))
        self._change_file()
        self._make_streams()
        _open = self

    def count(self) -> int:
        """Bytes that were printed and not taken yet."""
        size = os.fstat(self._file).st_size
        if size < self._taken:  # somebody opened /dev/stdout anew, which empties it
            self._taken = 0
        return size - self._taken

    def take(self, count: int) -> bytes:
        """The next `count` of them."""
        data = os.pread(self._file, count, self._taken)
        self.leave_out(len(data))
        return data

    def leave_out(self, count: int) -> None:
        """Let the next `count` of them go unseen."""
        self._taken += count
        with contextlib.suppress(AttributeError):  # another system: it grows until the unit ends
            self._libc.fallocate(self._file, KEEP_SIZE_AND_PUNCH,
                                 ctypes.c_int64(0), ctypes.c_int64(self._taken))  # fmt: skip

    def flush(self) -> None:
        """Have in the file what Python and C keep of what was printed. In the main thread."""
        for stream in self._streams:
            try:
                stream.flush()
            except (ValueError, OSError):  # closed by the step
                continue
        self._libc.fflush(None)

    def is_untouched(self) -> bool:
        """Whether nothing was printed or changed since the last `restore`: two system calls."""
        try:
            out, err = os.fstat(1), os.fstat(2)
        except OSError:
            return False
        return (
            out.st_size == 0
            and (out.st_ino, out.st_dev) == (err.st_ino, err.st_dev) == self._own
            and self._has_streams()
        )

    def _has_streams(self) -> bool:
        out, err = self._streams
        return sys.stdout is out and sys.stderr is err and not (out.closed or err.closed)

    def pass_on(self, text: bytes) -> bool:
        """Write to the worker's own stderr; False where that would mean to wait for its reader."""
        ready = select.poll()
        ready.register(self.stderr, select.POLLOUT)
        for start in range(0, len(text), PIECE):
            if not ready.poll(0):
                return False
            try:
                os.write(self.stderr, text[start : start + PIECE])
            except OSError:
                return False
        return True

    def is_sound(self) -> bool:
        """False when a step has closed our way to the worker's own stderr."""
        return _identify(self.stderr) == self._origin

    def restore(self) -> None:
        """After a unit: files 1 and 2 are ours again, and new, so that what still holds the old
        ones writes into no other unit's log."""
        self._change_file()
        if not self._has_streams():
            self._make_streams()

    def _change_file(self) -> None:
        old = self._file
        try:
            self._file, self._taken = _make_file(), 0
        except OSError:  # no descriptor is left: the old one serves on
            if old < 0:
                raise
        for descriptor in (1, 2):
            os.dup2(self._file, descriptor)
        if old not in (-1, self._file):
            os.close(old)
        found = os.fstat(self._file)
        self._own = found.st_ino, found.st_dev

    def _make_streams(self) -> None:
        self._streams = [_open_stream(1), _open_stream(2)]
        sys.stdout, sys.stderr = self._streams

    def release(self) -> None:
        """Before the process ends: files 1 and 2 are the stderr that it was started with."""
        for descriptor in (1, 2):
            os.dup2(self.stderr, descriptor)


def find_stderr() -> int:
    """The descriptor of the stderr that this process was started with."""
    return 2 if _open is None else _open.stderr


def _open_stream(descriptor: int) -> IO[str]:
    raw = io.FileIO(descriptor, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), "utf-8", errors="backslashreplace", line_buffering=True
    )


def _make_file() -> int:
    if hasattr(os, "memfd_create"):
        made = os.memfd_create("printed")
    else:
        with tempfile.TemporaryFile() as file:
            made = os.dup(file.fileno())
    try:
        fcntl.fcntl(made, fcntl.F_SETFL, fcntl.fcntl(made, fcntl.F_GETFL) | os.O_APPEND)
        return fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, HIGH)
    finally:
        os.close(made)


def _identify(descriptor: int) -> tuple[int, int] | None:
    """What file it is; None when it is closed."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _lead_handlers(console: IO[str]) -> None:
    """Have the log handlers that write to file 1 or 2 write to `console`."""
    handlers: list[Any] = [ref() for ref in logging._handlerList]  # type: ignore[attr-defined]
    for handler in handlers:
        with contextlib.suppress(Exception):  # a stream that is none, or closed
            if type(handler).setStream and handler.stream.fileno() in {1, 2}:
                handler.setStream(console)
    last = logging.StreamHandler(console)
    last.setLevel(logging.WARNING)
    logging.lastResort = last
