"""How a unit of work is ended from outside: softly by an exception, hard by the end of the process.

The soft stop is a SIGALRM whose handler raises in the main thread, wherever the step happens to be.
So it is asynchronous: whoever catches it rolls back and closes the database connections, because
nothing is known about the statement it may have cut in two. The hard stop is a timer thread in C
that needs no GIL, for a step that is stuck in C code or swallows the exception; it writes a
traceback and ends the process. Steps must not take SIGALRM. Arming both costs 40 us a unit.
"""

from __future__ import annotations

import faulthandler
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Final

RETRY_SECONDS: Final = 0.01
"""How soon the soft stop tries again when it met this module instead of the step."""


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
    """

    def __init__(self, seconds: float, margin: float = 5.0) -> None:
        self.seconds = seconds
        self.margin = margin
        self.reason: str | None = None
        self.ends = 0.0

    def __enter__(self) -> unit_deadline:
        global _armed
        if _armed is not None:
            raise RuntimeError("a unit's deadline is armed already in this process")
        self.ends = time.monotonic() + self.seconds
        faulthandler.dump_traceback_later(self.seconds + self.margin, exit=True)
        if threading.current_thread() is threading.main_thread():
            # Set anew for each unit: the step before may have taken the signal.
            signal.signal(signal.SIGALRM, _raise_in_step)
            _armed = self
            signal.setitimer(signal.ITIMER_REAL, self.seconds)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        global _armed
        _armed = None
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()

    def interrupt(self, reason: str) -> None:
        """Raise UnitStopped(reason) in the block, from any thread; nothing if it has ended."""
        self.reason = reason
        if _armed is self:
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGALRM)


_armed: unit_deadline | None = None


def _raise_in_step(signum: int, frame: FrameType | None) -> None:
    """SIGALRM: end the armed block, once.

    Not while the frame is one of this module: an exception on the first line of `__exit__` would
    leave the hard stop ticking behind a unit that is over. It comes back in a moment instead.
    """
    global _armed
    unit = _armed
    if unit is None:
        return
    early = 0.0 if unit.reason is not None else unit.ends - time.monotonic()
    if early > 0 or (frame is not None and frame.f_globals is globals()):
        signal.setitimer(signal.ITIMER_REAL, max(early, RETRY_SECONDS))
        return
    _armed = None
    if unit.reason is None:
        raise UnitTimeout(f"the unit ran longer than {unit.seconds:g} s")
    raise UnitStopped(unit.reason)
