"""What an evaluator finds: in a stated form, within a stated bound, secrets masked."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from ledger import canonical, secrets

MAX_READ = 1_000
"""Findings that are taken from one evaluator; whatever it has beyond is left."""

MAX_FINDINGS = 50
MAX_BYTES = 16_384
"""Of all findings of an evaluation together, as JSON."""

MAX_MESSAGE, MAX_WHERE = 2_000, 300
"""Characters of one finding."""

SHORT = 160
"""Characters of one where little room is."""

SEVERITIES = ("error", "warning")

CHANGING = re.compile(r"\d+(?:\.\d+)? ?(?:ms|s|seconds?)\b|0x[0-9a-f]+|/tmp/\S+")
"""What differs between two runs that find the same: times, addresses, temporary files."""


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: what, and where (`src/a.py:3`, or `$.items[0]` in JSON).

    A "warning" is shown and makes nothing fail. `evaluator` is filled in.
    """

    message: str
    where: str = ""
    severity: Literal["error", "warning"] = "error"
    evaluator: str = ""

    def __post_init__(self) -> None:
        if self.severity not in SEVERITIES:
            raise ValueError(f"Finding(severity=): {self.severity!r} is none of {SEVERITIES}")
        for name, most in (("message", MAX_MESSAGE), ("where", MAX_WHERE)):
            # Masked before it is cut: half of a secret would not be known for one.
            text = secrets.mask_text(canonical.clean_text(getattr(self, name), 16 * MAX_BYTES))
            object.__setattr__(self, name, canonical.clean_text(text, most))

    def describe(self) -> dict[str, str]:
        """As JSON."""
        return {name: getattr(self, name) for name in ("evaluator", "where", "message", "severity")}

    def is_same(self, told: Any) -> bool:
        """Whether `told`, a finding as JSON, says the same."""
        return isinstance(told, dict) and all(
            CHANGING.sub("#", str(told.get(name))) == CHANGING.sub("#", getattr(self, name))
            for name in ("evaluator", "where", "message")
        )


def read_findings(given: Iterable[Any], evaluator: str) -> list[Finding]:
    """What an evaluator gave (texts or Findings) as findings of its own. Raises TypeError."""
    found = []
    for one in itertools.islice(given, MAX_READ):
        if isinstance(one, str):
            one = Finding(one)
        if not isinstance(one, Finding):
            raise TypeError(f"a {canonical.name_type(one)} is no finding; give a text or a Finding")
        found.append(dataclasses.replace(one, evaluator=evaluator))
    return found


def choose_findings(found: Sequence[Finding]) -> list[Finding]:
    """As many as the bounds allow, the most useful: errors first, else as they were found."""
    kept: list[Finding] = []
    size = 0
    for one in sorted(found, key=lambda one: SEVERITIES.index(one.severity)):
        size += len(canonical.dump_json(one.describe())) + 1
        if len(kept) == MAX_FINDINGS or size > MAX_BYTES:
            break
        kept.append(one)
    return kept


def shorten_feedback(feedback: Any, most: int) -> Any:
    """Feedback of an evaluation with its findings as lines, whole ones, for about `most` characters
    and one at least; any other feedback as it is.
    """
    found = feedback.get("findings") if isinstance(feedback, dict) else None
    if not isinstance(found, list) or len(canonical.dump_json(feedback)) <= most:
        return feedback
    lines: list[str] = []
    room = most - 100
    for one in found:
        told = one if isinstance(one, dict) else {"message": one}
        line = canonical.clean_text(f"{told.get('where', '')} {told.get('message', '')}".strip())
        line = f"{line[:SHORT]}…" if len(line) > SHORT else line
        room -= len(line)
        if lines and room < 0:
            break
        lines.append(line)
    left = {"more": f"{len(found) - len(lines)} more findings"} if len(lines) < len(found) else {}
    return feedback | {"findings": lines} | left
