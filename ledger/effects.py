"""Actions on the outside world: what `ctx.once` does.

The intent is on record before the action, its result after it. So an attempt that comes after a
lost one finds the result and calls nothing, or it finds that nobody knows: then `verify` is asked,
and without one the action is called again under the same idempotency key.
"""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from ledger.compensations import UndoFunction
from ledger.errors import EffectConflict
from ledger.models.effects import DONE
from ledger.queries.effects import UNKNOWN

if TYPE_CHECKING:
    from ledger.workflows import Workflow

type Call = Callable[..., Any]
type Undo = str | UndoFunction

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")

_under_way: set[str] = set()
"""Keys of the effects that this process is at."""

_lock = threading.Lock()


class Desk(Protocol):
    """The part of `ctx` that is needed here, in the worker and in an isolated step's process."""

    _workflow: Workflow

    def idempotency_key(self, name: str) -> str: ...
    def _begin_effect(self, name: str, args: Any, compensation: str) -> dict[str, Any]: ...
    def _finish_effect(self, name: str, result: Any) -> Any: ...


def do_once(
    desk: Desk, name: str, fn: Call, verify: Call | None, compensate: Undo | None, args: Any
) -> Any:
    """See `Context.once`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"once(): {name!r} is no name of an effect: ASCII letters, digits, _ . -")
    key = desk.idempotency_key(name)
    undo = "" if compensate is None else desk._workflow.find_compensation(compensate).name
    if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(verify):
        return _do_once_async(desk, name, key, fn, verify, undo, args)
    with _being_alone(name, key):
        begun = desk._begin_effect(name, args, undo)
        if begun["state"] == DONE:
            return begun["result"]
        found = None
        if begun["state"] == UNKNOWN and verify is not None:
            found = _refuse_coroutine(name, _call(verify, key))
        if found is None or found is False:
            found = _refuse_coroutine(name, _call(fn, key))
        return desk._finish_effect(name, found)


async def _do_once_async(
    desk: Desk, name: str, key: str, fn: Call, verify: Call | None, undo: str, args: Any
) -> Any:
    with _being_alone(name, key):
        begun = desk._begin_effect(name, args, undo)
        if begun["state"] == DONE:
            return begun["result"]
        found = None
        if begun["state"] == UNKNOWN and verify is not None:
            found = await _settle(_call(verify, key))
        if found is None or found is False:
            found = await _settle(_call(fn, key))
        return desk._finish_effect(name, found)


@contextmanager
def _being_alone(name: str, key: str) -> Iterator[None]:
    """`verify` knows nothing yet of what another thread, or a call around this one, is at."""
    with _lock:
        if key in _under_way:
            raise EffectConflict(name, "is under way in this unit; give each action its own name")
        _under_way.add(key)
    try:
        yield
    finally:
        with _lock:
            _under_way.discard(key)


def _call(fn: Call, key: str) -> Any:
    """Call it with the key, if it has a parameter of that name."""
    try:
        wants = "key" in inspect.signature(fn).parameters
    except (TypeError, ValueError):  # a builtin may have no signature
        wants = False
    return fn(key=key) if wants else fn()


async def _settle(value: Any | Awaitable[Any]) -> Any:
    return await value if inspect.isawaitable(value) else value


def _refuse_coroutine(name: str, value: Any) -> Any:
    if inspect.iscoroutine(value):
        value.close()
        raise TypeError(f"effect {name}: make the function async itself, and await ctx.once()")
    return value
