"""An agent that goes in circles: the same call that fails, or brings the same, again and again.

Works on messages as they are stored, so that pages tell of it where no agent runs.
"""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

TIMES = 3
WITHIN = 20
"""So often the same, within so many turns."""


class Circle(NamedTuple):
    """A call that the last turn repeats, and how often it was made by then."""

    tool: str
    call: str
    args: Any
    failed: bool
    times: int
    before: int
    """The same before the last turn; TIMES or more: the circle had closed already."""


def find_circles(turns: Sequence[tuple[int, Sequence[Any]]]) -> list[Circle]:
    """The circles that the last of these turns closes, or goes on in; each turn is its number and
    its messages, as JSON, the first one first."""
    calls: dict[str, tuple[str, Any]] = {}
    made: defaultdict[Any, list[int]] = defaultdict(list)
    now: dict[Any, str] = {}
    for number, messages in turns:
        for part in _list_parts(messages):
            key = str(part.get("tool_call_id"))
            if part.get("part_kind") == "tool-call":
                calls[key] = (str(part.get("tool_name")), part.get("args"))
            elif part.get("part_kind") == "tool-return" and key in calls:
                tool, args = calls[key]
                failed = part.get("outcome") in {"failed", "retried"}
                # A failure is one whatever it says; what succeeds may be asked while it changes.
                same = (tool, _write(args), failed, "" if failed else _write(part.get("content")))
                made[same].append(number)
                if number == turns[-1][0]:
                    now[same] = key
    found = []
    for same, key in now.items():
        times = _count(made[same])
        before = _count([number for number in made[same] if number < turns[-1][0]])
        if times >= TIMES:
            found.append(Circle(same[0], key, calls[key][1], same[2], times, before))
    return found


def _list_parts(messages: Sequence[Any]) -> list[Mapping[str, Any]]:
    parts = (one.get("parts") for one in messages if isinstance(one, Mapping))
    return [part for some in parts if isinstance(some, list) for part in some
            if isinstance(part, Mapping)]  # fmt: skip


def _count(made: Sequence[int]) -> int:
    """Those that are not long before the last."""
    return sum(n > made[-1] - WITHIN for n in made)


def _write(value: Any) -> str:
    """Alike for what is the same; a model's arguments are text, well-formed or not."""
    with contextlib.suppress(ValueError, TypeError):
        value = json.loads(value)
    return json.dumps(value, sort_keys=True)
