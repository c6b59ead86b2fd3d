"""Async steps: how a deadline, a cancel and a lost lease reach a coroutine."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from typing import Any

import pytest

from ledger.asynchronous import call_step
from ledger.deadlines import UnitStopped, UnitTimeout, unit_deadline
from ledger.workflows import Step


class Ctx:
    """The one thing that is asked of a ctx here."""

    ended_by: str | None = None

    def check(self) -> None:
        if self.ended_by:
            raise UnitStopped(self.ended_by)


def call(fn: Any, ctx: Ctx | None = None) -> Any:
    return call_step(Step("sample", fn), ctx or Ctx())


def test_plain_and_async_functions_are_called_alike() -> None:
    async def add(ctx: Any) -> int:
        await asyncio.sleep(0)
        return 2

    assert call(lambda ctx: 1) == 1
    assert call(add) == 2


def test_what_a_coroutine_raises_comes_out_as_it_is() -> None:
    async def fail(ctx: Any) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit, match="3"):
        call(fail)


def test_a_coroutines_own_cancelled_error_is_its_failure() -> None:
    async def give_up(ctx: Any) -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        call(give_up)


def test_a_deadline_reaches_a_waiting_coroutine_as_cancelled_error() -> None:
    seen: list[str] = []

    async def wait(ctx: Any) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            await asyncio.sleep(0.01)
            seen.append("cleaned up")
            raise

    started = time.monotonic()
    with pytest.raises(UnitTimeout), unit_deadline(0.2, margin=30):
        call(wait)
    assert seen == ["cancelled", "cleaned up"]
    assert time.monotonic() - started < 10
    assert "take_alarm" not in str(signal.getsignal(signal.SIGALRM))


def test_a_coroutine_that_blocks_its_loop_or_ignores_its_cancel_ends_all_the_same() -> None:
    async def block(ctx: Any) -> None:
        while True:
            pass

    async def ignore(ctx: Any) -> None:
        for _ in range(2):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                pass

    for stubborn in (block, ignore):
        with pytest.raises(UnitTimeout), unit_deadline(0.1, margin=30):
            call(stubborn)


@pytest.mark.parametrize("reason", ["cancel", "lease_lost", "drain"])
def test_a_cancel_reaches_a_waiting_coroutine(reason: str) -> None:
    ctx, seen = Ctx(), []

    async def wait(_: Any) -> None:
        ctx.ended_by = reason
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError as error:
            seen.append(error)
            raise

    with pytest.raises(UnitStopped, match=reason):
        call(wait, ctx)
    assert len(seen) == 1


def test_a_value_in_spite_of_the_cancel_counts() -> None:
    ctx = Ctx()

    async def finish(_: Any) -> str:
        ctx.ended_by = "cancel"
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "done anyway"
        return "not cancelled"

    assert call(finish, ctx) == "done anyway"


def test_an_interrupt_from_another_thread_reaches_a_coroutine() -> None:
    seen: list[str] = []

    async def wait(ctx: Any) -> None:
        threading.Thread(target=deadline.interrupt, args=("lease_lost",)).start()
        try:
            await asyncio.sleep(60)
        finally:
            seen.append("left")

    with pytest.raises(UnitStopped, match="lease_lost"), unit_deadline(60, margin=30) as deadline:
        call(wait)
    assert seen == ["left"]


def test_nothing_of_a_step_goes_on_after_it() -> None:
    seen: list[str] = []

    async def linger(ctx: Any) -> None:
        async def background() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                seen.append("background ended")

        ctx.kept = asyncio.create_task(background())
        await asyncio.sleep(0)

    call(linger)
    assert seen == ["background ended"]
