"""What undoes an effect: a function of the workflow, registered by name, and what it is handed.

It runs in another process than the step that did the thing, perhaps days later, so it can't be a
closure of that step: the effect's row keeps its name.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

from ledger import bounds
from ledger.errors import UnknownCompensation

type UndoFunction = Callable[[Any, PastEffect], Any]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")


@dataclasses.dataclass(frozen=True, slots=True)
class PastEffect:
    """What is to be undone: the effect as it is on record.

    `known` is False where an attempt was lost on the way: it may have been done or not, and there
    is no `result`. `key` is the key that it was done under, `undo_key` the compensation's own.
    """

    name: str
    key: str
    undo_key: str
    args: Any
    result: Any
    known: bool
    step: str
    turn: int
    round: int


@dataclasses.dataclass(frozen=True)
class Compensation:
    """A function `(ctx, effect)` that undoes an effect, and `verify`, which says if it was undone.

    `timeout` (seconds) and `retries` are the site's defaults where they are None.
    """

    name: str
    fn: UndoFunction
    verify: UndoFunction | None = None
    timeout: float | None = None
    retries: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is no name of a compensation; give name=")
        for what, fn in ((self.name, self.fn), (f"verify= of {self.name}", self.verify)):
            if fn is not None:
                _check_call(what, fn)
        if self.timeout is not None:
            bounds.check_seconds(self.timeout, f"timeout of {self.name}", least=0.001)
        if self.retries is not None:
            bounds.check_count(self.retries, f"retries of {self.name}")

    @property
    def is_async(self) -> bool:
        """True when either function is a coroutine function."""
        return any(inspect.iscoroutinefunction(fn) for fn in (self.fn, self.verify))


def _check_call(what: str, fn: Any) -> None:
    try:
        inspect.signature(fn).bind(None, None)
    except TypeError:
        raise ValueError(f"{what} takes (ctx, effect), and nothing more") from None
    except ValueError:  # a builtin may have no signature
        return


class Compensates:
    """The part of a Workflow that knows its compensations."""

    name: str
    compensations: dict[str, Compensation]
    _digest: str | None

    def compensation(
        self,
        fn: UndoFunction | None = None,
        *,
        name: str | None = None,
        verify: UndoFunction | None = None,
        timeout: float | None = None,
        retries: int | None = None,
    ) -> Any:
        """Register what undoes an effect: `@wf.compensation`, bare or called.

        It takes `(ctx, effect)` and is named in `ctx.once(compensate=)`. `verify` takes the same:
        what came of the undoing where an attempt at it was lost, None or False for not done.
        Returns the function itself, unchanged.
        """
        if fn is None:
            return functools.partial(
                self.compensation, name=name, verify=verify, timeout=timeout, retries=retries
            )
        named = getattr(fn, "__name__", "") if name is None else name
        made = Compensation(named, fn, verify, timeout, retries)
        if made.name in self.compensations:
            raise ValueError(f"workflow {self.name} has two compensations named {made.name}")
        self.compensations[made.name] = made
        self._digest = None
        return fn

    def find_compensation(self, ref: str | UndoFunction) -> Compensation:
        """The compensation of that name, or whose function it is. Raises UnknownCompensation."""
        for one in self.compensations.values():
            if ref == one.name or ref is one.fn:
                return one
        known = ", ".join(self.compensations)
        raise UnknownCompensation(getattr(ref, "__name__", ref), self.name, known)
