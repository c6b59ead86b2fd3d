"""A reservation in the hands of a step: what `ctx.reserve()` gives, here and in a process apart."""

from __future__ import annotations

from decimal import Decimal
from types import TracebackType
from typing import Any, Protocol, Self


class Bank(Protocol):
    """What a hold asks of its `ctx`."""

    def _settle_hold(self, hold: str, given: dict[str, Any]) -> None: ...

    def _release_hold(self, hold: str) -> None: ...


class Hold:
    """An amount that is reserved for one call, to be settled with what it cost.

    As a context manager it is released if its block ends without settling it. If the block raises,
    nobody knows what the call cost: the amount stays reserved, and counts.
    """

    def __init__(self, bank: Bank, key: str) -> None:
        self._bank = bank
        self.key = key
        self._open = True

    def settle(
        self,
        tokens_in: int = 0,
        tokens_out: int = 0,
        cost: Decimal | str | int = 0,
        note: str = "",
        key: str | None = None,
    ) -> None:
        """Record what the call cost, once, as `ctx.spend` does; nothing is reserved any more."""
        self._open = False
        told = cost if isinstance(cost, float) else str(cost)
        given = {"tokens_in": tokens_in, "tokens_out": tokens_out, "cost": told, "note": note}
        self._bank._settle_hold(
            self.key, given | {"key": f"hold:{self.key}" if key is None else key}
        )

    def release(self) -> None:
        """The call was not made."""
        self._open = False
        self._bank._release_hold(self.key)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._open and kind is None:
            self.release()
