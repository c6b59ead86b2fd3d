"""How a unit of work is ended from outside: softly by an exception, hard by the end of the process.

The soft stop is a SIGALRM whose handler raises in the main thread, wherever the step happens to be.
So it is asynchronous: whoever catches it rolls back and closes the database connections, because
nothing is known about the statement it may have cut in two. The hard stop is a timer thread in C
that needs no GIL, for a step that is stuck in C code or swallows the exception; it writes a
traceback and ends the process. Steps must not take SIGALRM.

That thread is started and joined for each timer, which took a sixth of a short unit's time. So
where units follow each other (`keep`) a hard stop that is far away serves the next one too.

Whoever had an alarm set around the block, as pytest-timeout has, gets it back, and gets it on time.
"""

from __future__ import annotations

import faulthandler
import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final

from ledger.capture import find_stderr

RETRY_SECONDS: Final = 0.01
"""How soon the soft stop tries again when it met this module instead of the step."""

REPEAT_SECONDS: Final = 0.25
"""The alarm rings again until the block ends: one that comes between Python's last look for signals
and a system call does not interrupt that call, and the step would sleep on. Seen under load."""

KEEP_SECONDS: Final = 300.0
"""A kept hard stop is this far away at least: time enough to store the unit and fetch another."""


class UnitTimeout(BaseException):
    """The unit passed its deadline. No Exception, so that `except Exception` can't swallow it."""


class UnitStopped(BaseException):
    """Someone ended the unit before its deadline; `reason` is what they gave."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class unit_deadline:  # reads as the statement that it is: with unit_deadline(900): ...
    """Bounds the block: UnitTimeout after `seconds`, the process's end `margin` seconds later.

    Outside the main thread there is no soft stop, since signals reach the main thread alone; the
    hard stop holds anywhere. One block at a time per process: faulthandler has a single timer.
    With `keep` the end comes up to two margins later, and the caller must `cancel_hard_stop` before
    it waits for anything but its next block.
    """

    def __init__(self, seconds: float, margin: float = 5.0, *, keep: bool = False) -> None:
        self.seconds = seconds
        self.margin = margin
        self.keep = keep
        self.reason: str | None = None
        self.ends = 0.0
        self._outer: Any = None
        self._outer_ends: float | None = math.inf  # None once it has its alarm back

    def __enter__(self) -> unit_deadline:
        global _armed
        if _armed is not None:
            raise RuntimeError("a unit's deadline is armed already in this process")
        self.ends = time.monotonic() + self.seconds
        _arm_hard_stop(self.ends + self.margin, self.margin if self.keep else 0.0)
        if threading.current_thread() is threading.main_thread():
            # Set anew for each unit: the step before may have taken the signal.
            self._outer = signal.signal(signal.SIGALRM, _raise_in_step)
            _armed = self
            left, _ = signal.setitimer(signal.ITIMER_REAL, self.seconds, REPEAT_SECONDS)
            if left:
                self._outer_ends = time.monotonic() + left
            if left or self.reason is not None:  # interrupted before it began
                signal.setitimer(signal.ITIMER_REAL, self._find_wait(), REPEAT_SECONDS)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        global _armed
        _armed = None
        self._give_alarm_back()
        if not self.keep or _hard_stop < time.monotonic() + KEEP_SECONDS:
            cancel_hard_stop()

    def _find_wait(self) -> float:
        """Seconds until the alarm has something to do; never 0, which would turn it off."""
        due = 0.0 if self.reason is not None else min(self.ends, self._outer_ends or math.inf)
        return max(due - time.monotonic(), RETRY_SECONDS)

    def _give_alarm_back(self) -> None:
        ends, self._outer_ends = self._outer_ends, None
        if ends is None or threading.current_thread() is not threading.main_thread():
            return
        left = 0 if ends == math.inf else max(ends - time.monotonic(), RETRY_SECONDS)
        signal.setitimer(signal.ITIMER_REAL, left)
        # Never back to the default action: a late `interrupt` would end the process.
        if callable(self._outer) and self._outer is not signal.getsignal(signal.SIGALRM):
            signal.signal(signal.SIGALRM, self._outer)

    def interrupt(self, reason: str) -> None:
        """Raise UnitStopped(reason) in the block, from any thread; nothing if it has ended."""
        self.reason = reason
        if _armed is self:
            signal.setitimer(signal.ITIMER_REAL, RETRY_SECONDS, REPEAT_SECONDS)


@contextmanager
def holding_soft_stop() -> Iterator[None]:
    """Within the block the soft stop waits for its end; the hard stop does not.

    For a write that counts whatever befell the unit: money that was spent.
    """
    global _holds
    held = threading.current_thread() is threading.main_thread()
    _holds += held
    try:
        yield
    finally:
        _holds -= held


_armed: unit_deadline | None = None
_holds = 0
_hard_stop = 0.0
"""When the hard stop ends the process; 0 while its timer does not run."""


def _arm_hard_stop(at: float, slack: float) -> None:
    """Have the process end at `at`, or at most `slack` seconds later."""
    global _hard_stop
    if not at <= _hard_stop <= at + slack:
        _hard_stop = at + slack
        left = _hard_stop - time.monotonic()
        faulthandler.dump_traceback_later(left, exit=True, file=find_stderr())


def cancel_hard_stop() -> None:
    """Stop the timer that a kept hard stop has left running."""
    global _hard_stop
    if _hard_stop:
        _hard_stop = 0.0
        faulthandler.cancel_dump_traceback_later()


def _raise_in_step(signum: int, frame: FrameType | None) -> None:
    """SIGALRM: end the armed block, once.

    Not while the frame is one of this module: an exception on the first line of `__exit__` would
    leave the hard stop ticking behind a unit that is over. It comes back in a moment instead.
    """
    global _armed
    unit = _armed
    if unit is None:
        return
    now = time.monotonic()
    early = unit.reason is None and now < min(unit.ends, unit._outer_ends or math.inf)
    if early or _holds or (frame is not None and frame.f_globals is globals()):
        signal.setitimer(signal.ITIMER_REAL, unit._find_wait(), REPEAT_SECONDS)
        return
    _armed = None
    if unit.reason is not None:
        raise UnitStopped(unit.reason)
    if now < unit.ends:
        unit._give_alarm_back()  # it rings at once, and finds its owner's handler
        return
    raise UnitTimeout(f"the unit ran longer than {unit.seconds:g} s")
