"""Running a step's function, also when it is a coroutine function."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ledger.workflows import Step

LOOK_SECONDS = 0.1
"""How often a coroutine's cancel is looked for."""

GRACE_SECONDS = 1.0
"""From the CancelledError to the same exception that a plain step gets."""


class Checked(Protocol):
    """The part of `ctx` that is needed here."""

    def check(self) -> None: ...


def call_step(step: Step, ctx: Checked) -> Any:
    """Call the step's function with `ctx` and return what it returns, awaited if need be.

    An async step has an event loop of its own, which is closed with everything that runs in it.
    A cancel, a deadline and the loss of the lease reach it as CancelledError; it may clean up for
    a second and then ends as a plain step would: by what `ctx.check()` or the deadline raises. A
    value that it returns in spite of the CancelledError counts.
    """
    if not step.is_async:
        return step.fn(ctx)
    return _Run(step.fn, ctx).run()


class _Run:
    """One coroutine in a loop of its own, and whatever asked for its end."""

    def __init__(self, fn: Callable[[Any], Awaitable[Any]], ctx: Checked) -> None:
        self.fn = fn
        self.ctx = ctx
        self.task: asyncio.Task[Any] | None = None
        self.asked: BaseException | None = None
        self.value: Any = None
        self.error: BaseException | None = None

    def run(self) -> Any:
        """The coroutine's value. Raises what it raises, or what asked for its end."""
        soft_stop = signal.getsignal(signal.SIGALRM)
        mine = threading.current_thread() is threading.main_thread() and callable(soft_stop)

        def take_alarm(number: int, frame: FrameType | None) -> None:
            # An exception raised here would land in the loop's own code more often than in the
            # coroutine, and may lose a wake-up there; so it is kept, and the task is cancelled.
            # A coroutine that blocks its loop gets it at the second alarm.
            if self.asked is not None:
                raise self.asked
            assert callable(soft_stop)
            try:
                soft_stop(number, frame)
            except BaseException as error:
                self.ask_end(error)
                signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)

        if mine:
            signal.signal(signal.SIGALRM, take_alarm)
        try:
            asyncio.run(self.watch())
            return self.value
        except BaseException as error:
            if self.asked is not None and self.asked is not error:
                raise self.asked from error
            raise
        finally:
            if mine:
                if self.asked is not None:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, soft_stop)

    async def watch(self) -> None:
        """Run the coroutine as a task, looking for a cancel beside it."""
        self.task = asyncio.create_task(self.call())
        if self.asked is not None:  # by an alarm between the loop's start and here
            self.task.cancel()
        while not self.task.done():
            await asyncio.wait({self.task}, timeout=LOOK_SECONDS)
            if self.asked is None and not self.task.done():
                try:
                    self.ctx.check()
                except BaseException as error:
                    self.ask_end(error)
        if self.error is not None:
            raise self.error

    async def call(self) -> None:
        """Await the coroutine and keep what comes of it.

        Kept, not raised: a SystemExit that leaves a task ends the whole loop, with a complaint.
        """
        try:
            self.value = await self.fn(self.ctx)
        except BaseException as error:
            self.error = error

    def ask_end(self, error: BaseException) -> None:
        """Cancel the task; `error` is what the step then ends by. Also from a signal handler."""
        self.asked = error
        if self.task is not None:
            self.task.cancel()
            self.task.get_loop().call_soon_threadsafe(lambda: None)  # wake the loop
