"""What evaluators said, read from an output, a question or a repair, whatever stands there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dashboard import words

PASSED = words.Look("Passed", "ok", "is-ok")
FOUND = words.Look("Found wrong", "fail", "is-fail")
WARNED = words.Look("Passed, with a warning", "ok", "is-stall")

MAX_SECONDS = 10**9
"""What took longer is none: JSON has whole numbers that no float holds."""


def read_evaluation(value: Any) -> list[dict[str, Any]]:
    """The layers of `value["evaluation"]`: name, kind, look, seconds, findings, left_out; empty
    when an author keeps something else by that name, or nothing.
    """
    given = value.get("evaluation") if isinstance(value, dict) else None
    if not isinstance(given, list) or not all(_is_layer(one) for one in given):
        return []
    return [
        {
            "name": str(one["name"]),
            "kind": str(one["kind"]),
            "look": (WARNED if one["findings"] else PASSED) if one["passed"] else FOUND,
            "seconds": float(one["seconds"]),
            "findings": read_findings(one["findings"]),
            "left_out": one.get("left_out"),
        }
        for one in given
    ]


def read_findings(given: Any) -> list[dict[str, Any]]:
    """Findings as they are shown; empty when one of them is none."""
    if not isinstance(given, list) or not all(_is_finding(one) for one in given):
        return []
    return [
        {**{name: str(one.get(name, "")) for name in ("evaluator", "where", "message")},
         "look": WARNED if one.get("severity") == "warning" else FOUND}
        for one in given
    ]  # fmt: skip


def _is_layer(one: Any) -> bool:
    return (
        isinstance(one, Mapping)
        and one.keys() >= {"name", "kind", "passed", "findings", "seconds"}
        and isinstance(one["passed"], bool)
        and isinstance(one["seconds"], int | float)
        and 0 <= one["seconds"] < MAX_SECONDS
        and isinstance(one["findings"], list)
        and len(read_findings(one["findings"])) == len(one["findings"])
    )


def _is_finding(one: Any) -> bool:
    return isinstance(one, Mapping) and isinstance(one.get("message"), str)
