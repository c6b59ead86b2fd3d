"""An agent that goes in circles: the same call that fails, or brings the same, again and again."""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from ledger.agents.history import Turn

TIMES = 3
WITHIN = 20
"""So often the same, within so many turns."""


def find_circle(turns: Sequence[Turn]) -> dict[str, Any] | None:
    """`{tool, call, times, failed}` of the call with which the last of these turns closes a circle;
    None also where an earlier one has closed it already."""
    calls: dict[str, tuple[str, str]] = {}
    made: defaultdict[Any, list[int]] = defaultdict(list)
    now: dict[Any, str] = {}
    for turn in turns:
        for part in (part for one in turn.messages for part in one["parts"]):
            key = str(part.get("tool_call_id"))
            if part.get("part_kind") == "tool-call":
                calls[key] = (part["tool_name"], _write(part.get("args")))
            elif part.get("part_kind") == "tool-return" and key in calls:
                failed = part.get("outcome") in {"failed", "retried"}
                # A failure is one whatever it says; what succeeds may be asked while it changes.
                same = (*calls[key], failed, "" if failed else _write(part.get("content")))
                made[same].append(turn.number)
                if turn is turns[-1]:
                    now[same] = key
    for same, key in now.items():
        times = _count(made[same])
        if times >= TIMES > _count([n for n in made[same] if n < turns[-1].number]):
            return {"tool": same[0], "call": key, "times": times, "failed": same[2]}
    return None


def _count(made: Sequence[int]) -> int:
    """Those that are not long before the last."""
    return sum(n > made[-1] - WITHIN for n in made)


def _write(value: Any) -> str:
    """Alike for what is the same; a model's arguments are text, well-formed or not."""
    with contextlib.suppress(ValueError, TypeError):
        value = json.loads(value)
    return json.dumps(value, sort_keys=True)
