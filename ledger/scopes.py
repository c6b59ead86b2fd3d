"""What the steps of a workflow may use: secrets, tools, and lanes that they may submit to."""

from __future__ import annotations

import contextvars
import dataclasses
from collections.abc import Sequence
from typing import Any

from ledger.errors import OutOfScope

OWN_LANE = "(own)"
"""In `Scope(lanes=)`: whichever lane the task itself is in."""

KINDS = {"secrets": "secret", "tools": "tool", "lanes": "lane"}


@dataclasses.dataclass(frozen=True)
class Scope:
    """The names that a workflow's steps may use; what is not named is refused.

    Raises ValueError for what is no list of names.
    """

    secrets: Sequence[str] = ()
    tools: Sequence[str] = ()
    lanes: Sequence[str] = ()

    def __post_init__(self) -> None:
        for kind in KINDS:
            names = getattr(self, kind)
            if isinstance(names, str) or not isinstance(names, (list, tuple, set, frozenset)):
                raise ValueError(f"Scope({kind}=): takes a list of names, not {names!r}")
            for name in names:
                if not isinstance(name, str) or not 1 <= len(name) <= 100 or not name.isprintable():
                    raise ValueError(
                        f"Scope({kind}=): {name!r} is no name; it takes 1 to 100 printable letters"
                    )
            object.__setattr__(self, kind, tuple(sorted(set(names))))

    def describe(self) -> dict[str, list[str]]:
        """The names by kind, as the API shows them."""
        return {kind: list(getattr(self, kind)) for kind in KINDS}


@dataclasses.dataclass(frozen=True, slots=True)
class Grant:
    """What one task may use: its workflow's scope (None: anything) and its own lane."""

    scope: Scope | None
    workflow: str
    lane: str

    def require(self, kind: str, name: Any) -> None:
        """Raise OutOfScope unless the workflow names it. `kind` is a field of Scope."""
        if self.scope is None:
            return
        names = getattr(self.scope, kind)
        own = kind == "lanes" and name == self.lane and OWN_LANE in names
        if name not in names and not own:
            raise OutOfScope(KINDS[kind], name, self.workflow, kind)


_active: contextvars.ContextVar[Grant | None] = contextvars.ContextVar("grant", default=None)


class applying:  # reads as the statement that it is: with applying(grant): ...
    """The code inside runs under `grant`, so that what it submits is judged as well."""

    def __init__(self, grant: Grant) -> None:
        self._grant = grant

    def __enter__(self) -> None:
        self._token = _active.set(self._grant)

    def __exit__(self, *what: object) -> None:
        _active.reset(self._token)


def require_lane(lane: str) -> None:
    """Raise OutOfScope in a step whose workflow may not submit to `lane`; elsewhere nothing."""
    if (grant := _active.get()) is not None:
        grant.require("lanes", lane)
