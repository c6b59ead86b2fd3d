"""An agent's turn in few words, for what tells of a task and has no room for its messages."""

from __future__ import annotations

import json
from typing import Any

KEY = "transcript"
"""In the output of an agent's unit, and the last one's in progress."""


def shorten_turn(output: Any) -> Any:
    """A unit's output with what its agent called and said (and a summary that it made) in the place
    of the messages; any other as it is."""
    kept = output.get(KEY) if isinstance(output, dict) else None
    if not isinstance(kept, dict) or not isinstance(kept.get("messages"), list):
        return output
    parts = [
        part for message in kept["messages"] if isinstance(message, dict)
        for part in message.get("parts") or () if isinstance(part, dict)
    ]  # fmt: skip
    told = {
        "called": [_tell_call(part) for part in parts if part.get("part_kind") == "tool-call"],
        "said": [part.get("content") for part in parts if part.get("part_kind") == "text"],
        "summary": (kept.get("compaction") or {}).get("text"),
    }
    return {**output, KEY: {name: one for name, one in told.items() if one}}


def _tell_call(part: dict[str, Any]) -> str:
    args = part.get("args")
    text = args if isinstance(args, str) else json.dumps(args, ensure_ascii=False, sort_keys=True)
    return f"{part.get('tool_name')} {text}"
