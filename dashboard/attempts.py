"""Two attempts at a unit side by side: what came of each, what it took, what it said."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from dashboard import loglines
from dashboard.diffs import MAX_CHARACTERS, compare_texts
from dashboard.templatetags.longwatch import write_json
from dashboard.transcript import tell_turn
from dashboard.words import Look
from ledger.queries.spans import DONE, FAILED, LOST, RELEASED, SUPERSEDED

LOOKS = {
    DONE: Look("Output stored", "ok", "is-ok"),
    SUPERSEDED: Look("Superseded", "cancel", "is-idle"),
    FAILED: Look("Failed", "fail", "is-fail"),
    LOST: Look("Worker lost", "lost", "is-stall"),
    RELEASED: Look("Given back", "idle", "is-idle"),
}
MAX_COMPARED = 2_000
"""Lines of each output; a longer one is shown, not compared."""

LOG_SHOWN = 16_384


def choose_pair(tries: Sequence[Mapping[str, Any]], left: int, right: int) -> tuple[int, int]:
    """The numbers of the two to compare: those wanted, else the last one and the one before it."""
    known = [int(one["seq"]) for one in tries]
    right = right if right in known else next((one for one in known[::-1] if one != left), 0)
    left = left if left in known else next((one for one in known[::-1] if one != right), 0)
    return left, right


def show_try(one: Mapping[str, Any], number: int, called: Mapping[str, str]) -> dict[str, Any]:
    """An attempt with its `look`, its `number` among all, how long it `took` and who made it."""
    start = _read_time(one["started_at"])
    edited = not one["fence"] and not one["copied_from"]
    return {
        **one,
        "number": number,
        "look": LOOKS[one["end"]],
        "took": max(dt.timedelta(), one["finished_at"] - start) if start and one["fence"] else None,
        "start": start,
        "by": called.get(one["worker"], one["worker"]) if edited else "",
    }


def open_try(one: dict[str, Any]) -> dict[str, Any]:
    """The same with the `turn` of an agent in few words, and the end of its log in `lines`."""
    stored = one["output"] is not None
    text = loglines.cut_start(one["log"], LOG_SHOWN)
    return one | {
        "stored": stored,
        "turn": tell_turn(one["output"]) if stored else None,
        "lines": loglines.colour_lines(text, one["finished_at"]) if text else "",
        "cut": len(text) < len(one["log"]),
    }


def compare_outputs(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the right output has otherwise, line by line; None where one of them left none."""
    if left["output"] is None or right["output"] is None:
        return None
    before, after = write_json(left["output"]), write_json(right["output"])
    if before == after:
        return {"same": True, "lines": ()}
    long = max(before.count("\n"), after.count("\n")) > MAX_COMPARED
    if long or len(before) + len(after) > MAX_CHARACTERS:
        return {"long": True, "lines": ()}
    return {"path": "the output", "lines": compare_texts(before, after)}


def _read_time(value: Any) -> dt.datetime | None:
    return dt.datetime.fromisoformat(value) if isinstance(value, str) else value
