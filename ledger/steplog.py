"""What a step logs, by `ctx.log` or any other logger, and what it and its processes print.

All of it goes into the log of its attempt (`unitlog`), and on to the worker's own log: of each
attempt so many lines and bytes, so a step that logs ten million lines costs the time of logging
them, no memory and no disk. What is printed is caught in workers only (`capture`). Secrets are
masked.
"""

from __future__ import annotations

import logging
import multiprocessing.util
import os
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from ledger import secrets
from ledger.capture import Capture
from ledger.conf import load
from ledger.unitlog import UnitLog, clean_line, lead_output, shorten_line, write_output

if TYPE_CHECKING:
    from ledger.sql import Claimed, Lease

__all__ = ["StepLog", "begin_unit", "catch_output", "end_unit", "write_output"]

MAX_PASSED = 10_000
"""Lines of one attempt that the worker's log takes."""

PASSED_BYTES = 1_048_576
"""Printed bytes of one attempt that it takes."""

SOME = 262_144
"""Bytes that are looked at once a log is full: its end changes, and no more of it is kept."""

OWN = ("ledger", "longwatch", "django_q", "django-q")
"""Loggers of the engine, whose records are no step's."""

site_log = logging.getLogger("longwatch.step")
"""Where records go on to; its level decides which."""

_traces = logging.Formatter()


def write_line(record: logging.LogRecord) -> str:
    """The record's text with its traceback, secrets masked, at most about MAX_LINE characters."""
    try:
        text = record.getMessage()
    except Exception as error:
        text = f"{record.msg!r} (its arguments do not fit: {error})"
    if record.exc_info:
        text += "\n" + _traces.formatException(record.exc_info)
    return shorten_line(secrets.mask_text(text))


class _Keeper(logging.Handler):
    """Keeps records in the log of the attempt and passes them on."""

    def __init__(self, unit: UnitLog) -> None:
        super().__init__()
        self.unit = unit
        self.passed = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record as a line. Never raises: a step must not fail at its own log line."""
        text = keep_record(self.unit, record, record.levelname)
        if self.passed <= MAX_PASSED and site_log.isEnabledFor(record.levelno):
            self.passed += 1
            if self.passed > MAX_PASSED:
                text = f"more than {MAX_PASSED} lines of one attempt: the rest is not passed on"
            record.msg, record.args, record.exc_info, record.exc_text = text, (), None, None
            site_log.handle(record)


def keep_record(unit: UnitLog, record: logging.LogRecord, source: str) -> str:
    """Append a record, after what was printed before it; its text."""
    text = write_line(record)
    _running.drain_for(unit)
    unit.add(record.created, source, ["\n".join(map(clean_line, text.splitlines())) or ""])
    return text


class StepLog(logging.Logger):
    """A logger of one attempt: an ordinary Logger, outside the tree of named loggers."""

    def __init__(self, unit: UnitLog | None = None) -> None:
        super().__init__("longwatch.step", logging.DEBUG)
        self.propagate = False
        self.unit = unit or UnitLog()
        self.addHandler(_Keeper(self.unit))

    def read_tail(self) -> str:
        """See `read_tail`."""
        return read_tail(self.unit)


def read_tail(unit: UnitLog) -> str:
    """The last lines, as text that can be stored; all of them only in the main thread."""
    _running.drain_for(unit, last=threading.current_thread() is threading.main_thread())
    return unit.read_tail()


class _Library(logging.Handler):
    """On the root logger of a worker: what libraries log while a step runs is the step's."""

    def __init__(self) -> None:
        super().__init__()
        self.others = {thread.ident for thread in threading.enumerate()}
        self.others.discard(threading.main_thread().ident)
        self._count = threading.active_count()

    def begin(self) -> None:
        """Threads that an earlier step has left belong to no later one."""
        if threading.active_count() != self._count:
            self.others |= {thread.ident for thread in threading.enumerate()}
            self.others.discard(threading.main_thread().ident)
            self._count = threading.active_count()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what the step's threads log by loggers that are not the engine's."""
        here = _running.attempt
        if here is None or record.thread in self.others or record.name.split(".")[0] in OWN:
            return
        keep_record(here.log, record, f"{record.levelname} {clean_line(record.name)[:100]}:")


class Running(NamedTuple):
    """An attempt whose step runs in this process. What it was claimed as moves on with the task."""

    lease: Lease
    step: str
    step_index: int
    turn: int
    log: UnitLog
    began: float
    """By the monotonic clock."""


class _Running:
    """The attempt whose step runs in this process, and in a worker what catches its output."""

    def __init__(self) -> None:
        self.attempt: Running | None = None
        self.capture: Capture | None = None
        self.library: _Library | None = None
        self.passed = 0
        self.lock = threading.RLock()

    def drain_for(self, unit: UnitLog, *, last: bool = False) -> None:
        """Take in what was printed before now, if this is the attempt in hand."""
        if self.capture is not None and self.attempt is not None and unit is self.attempt.log:
            with self.lock:
                self.drain(last=last)

    def drain(self, *, last: bool = False) -> int:
        """Take in what was printed and pass it on; how many bytes that was. Under the lock."""
        assert self.capture is not None
        capture, unit = self.capture, self.attempt and self.attempt.log
        try:
            if last:
                capture.flush()
            if not (new := capture.count()):
                return 0
            texts: list[str] = []
            if unit is None:
                texts = [secrets.mask_text(capture.take(min(new, SOME)).decode(errors="replace"))]
            else:
                texts = self._take(capture, unit, new)
                if last:
                    texts += unit.end_output()
        except OSError:  # the step has closed it; `Fitness` ends a worker for that
            return 0
        self._pass_on(capture, texts)
        return new

    def take_output(self, data: bytes) -> None:
        """What a command printed, after what was printed before it."""
        if (attempt := self.attempt) is not None:
            self.drain_for(attempt.log)
            attempt.log.add_output(data, "CMD")

    def _take(self, capture: Capture, unit: UnitLog, new: int) -> list[str]:
        most = load().log_bytes
        first = 0 if unit.overflows else most // 4
        most = SOME if unit.overflows else most
        if new <= most:
            return unit.add_output(capture.take(new))
        texts = unit.add_output(capture.take(first))
        capture.leave_out(new - most)
        unit.skip_output(new - most)
        return texts + unit.add_output(capture.take(most - first))

    def _pass_on(self, capture: Capture, texts: list[str]) -> None:
        """While the attempt has a share left."""
        if self.passed >= PASSED_BYTES or not texts:
            return
        told = "\n".join(texts).encode("utf-8", "backslashreplace")[: PASSED_BYTES - self.passed]
        self.passed += len(told) + 1
        if self.passed >= PASSED_BYTES:
            told += b"\n(what else the attempt prints is not passed on)"
        if not capture.pass_on(told + b"\n"):
            self.passed = PASSED_BYTES  # whoever reads it is behind, and is not waited for


_running = _Running()
lead_output(_running.take_output)


def catch_output() -> None:
    """In a worker, once: what its steps and their processes print belongs to their logs."""
    _running.capture, _running.library = Capture(), _Library()
    root = logging.getLogger()
    if not root.handlers and logging.lastResort is not None:  # which serves nobody from here on
        root.addHandler(logging.lastResort)
    root.addHandler(_running.library)
    multiprocessing.util.Finalize(None, _stop_catching, exitpriority=-100)
    os.register_at_fork(after_in_child=_running.__init__)  # type: ignore[misc]  # it takes nothing


def _stop_catching() -> None:
    drain_output(1.0)
    if _running.capture is not None:
        _running.capture.release()


def begin_unit(lease: Lease, held: Claimed, unit: UnitLog) -> Running:
    """From here on what is printed and logged is this attempt's."""
    if _running.library is not None:
        _running.library.begin()
    _running.passed = 0
    _running.attempt = Running(
        lease, held.step_name, held.step_index, held.turn, unit, time.monotonic()
    )
    return _running.attempt


def end_unit() -> None:
    """The attempt is over; files 1 and 2 are as they were, whatever it did to them."""
    if (capture := _running.capture) is not None:
        capture.flush()
        if not capture.is_untouched():
            with _running.lock:
                _running.drain()
                _running.attempt = None
                capture.restore()
    _running.attempt = None


def find_running() -> Running | None:
    """The attempt whose step runs in this process."""
    return _running.attempt


def drain_output(wait: float) -> int:
    """Take in what was printed, unless another thread is at it for `wait` seconds; its bytes."""
    if _running.capture is None or not _running.lock.acquire(timeout=wait):
        return 0
    try:
        return _running.drain()
    finally:
        _running.lock.release()


def can_tell() -> bool:
    """False when a step has closed the worker's own way to its log."""
    return _running.capture is None or _running.capture.is_sound()
