"""What is known of the request that is being answered: where it comes from, what it may see.

Set at the edges (API, pages, admin) for as long as one request is answered; a worker, a command and
code of the same process have the default, which narrows nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """Address and id of a request, who asks, and how far that one sees: `lanes` (None: all),
    contents."""

    address: str = ""
    request_id: str = ""
    actor: str = ""
    lanes: frozenset[str] | None = None
    payload: bool = True


_NONE = Call()
_current: ContextVar[Call] = ContextVar("longwatch_call", default=_NONE)


def read_call() -> Call:
    """The call that this thread answers."""
    return _current.get()


@contextmanager
def answer_call(call: Call) -> Iterator[Call]:
    """Everything inside is done for `call`, and for what `narrow_call` makes of it."""
    token = _current.set(call)
    try:
        yield call
    finally:
        _current.reset(token)


def narrow_call(actor: str, lanes: frozenset[str] | None, payload: bool) -> None:
    """Say who the caller is and how far it sees, once that is known; inside of `answer_call`."""
    call = dataclasses.replace(_current.get(), actor=actor, lanes=lanes, payload=payload)
    _current.set(call)


def sees_lane(lane: str) -> bool:
    """Whether tasks of `lane` exist for the caller."""
    lanes = _current.get().lanes
    return lanes is None or lane in lanes


def sees_payload() -> bool:
    """Whether the caller is shown contents, not only statuses, times and names."""
    return _current.get().payload
