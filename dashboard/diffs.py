"""Unified diffs as lines with numbers, and inside changed pairs of lines the words that changed."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
from collections.abc import Iterator
from difflib import SequenceMatcher

from dashboard.rich_text import reveal_controls

MAX_LINES = 5_000
MAX_CHARACTERS = 512 * 1024
"""A file's diff is shown up to here; all of it is a download."""

MAX_PAIR = 400
"""Characters up to which a pair of lines is compared word by word."""

ALIKE = 0.4
"""The least share of equal text for words to be marked; below, the marks would be noise."""

MAX_WORDS = 120
MAX_WORK = 400_000
"""Words of a line, and pairs of words in a diff, that are compared at most. Lines of brackets alone
are cubic: without these a page of 5,000 such lines took 11 s, with them 0.3 s."""

_HUNK = re.compile(r"@@ -(\d{1,9})(?:,\d+)? \+(\d{1,9})(?:,\d+)? @@", re.ASCII)
_WORDS = re.compile(r"\w+|\s+|.")

CONTEXT = 2
"""Lines around a change."""

type Part = tuple[bool, str]


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One line of a unified diff: kind `add`, `del`, `hunk`, `note` or empty for context.

    `parts` is its text again as (changed, text), where the line has a partner to compare with.
    """

    kind: str
    old: int | None
    new: int | None
    text: str
    parts: tuple[Part, ...] = ()


def is_cut(diff: str) -> bool:
    """True for a diff that `read_diff` does not show to its end."""
    return len(diff) > MAX_CHARACTERS or diff.count("\n") > MAX_LINES


def read_diff(diff: str) -> Iterator[Line]:
    """The lines of one file's unified diff with their numbers, without its header."""
    old = new = 0
    inside = False
    for raw in diff[:MAX_CHARACTERS].split("\n")[:MAX_LINES]:
        sign, text = raw[:1], reveal_controls(raw[1:].replace("\r", "␍"))
        if hunk := _HUNK.match(raw):
            old, new, inside = int(hunk[1]), int(hunk[2]), True
            yield Line("hunk", None, None, reveal_controls(raw))
        elif not inside or not raw:
            continue
        elif sign == "+":
            yield Line("add", None, new, text)
            new += 1
        elif sign == "-":
            yield Line("del", old, None, text)
            old += 1
        elif sign == "\\":
            yield Line("note", None, None, text.strip())
        else:
            yield Line("", old, new, text)
            old, new = old + 1, new + 1


@functools.lru_cache(maxsize=256)
def mark_diff(diff: str) -> tuple[Line, ...]:
    """The lines of a diff, with the changed words marked where a line was replaced by another.

    Kept, as comparing costs a third of a millisecond a pair and a page is looked at many times.
    """
    lines = list(read_diff(diff))
    at, room = 0, MAX_WORK
    while at < len(lines) and room > 0:
        removed = _measure_run(lines, at, "del")
        added = _measure_run(lines, at + removed, "add")
        # Runs of one length only: a list that was rewrapped has no line for a line.
        for pair in range(removed if removed == added else 0):
            old, new = at + pair, at + removed + pair
            before, after = (_WORDS.findall(lines[one].text[:MAX_PAIR]) for one in (old, new))
            room -= min(len(before), MAX_WORDS) * min(len(after), MAX_WORDS)
            if room > 0:
                lines[old], lines[new] = mark_pair(lines[old], lines[new], before, after)
        at += max(1, removed + added)
    return tuple(lines)


def _measure_run(lines: list[Line], start: int, kind: str) -> int:
    end = start
    while end < len(lines) and lines[end].kind == kind:
        end += 1
    return end - start


def mark_pair(old: Line, new: Line, before: list[str], after: list[str]) -> tuple[Line, Line]:
    """A removed line and the one in its place, of these words, with what differs as parts."""
    if max(len(old.text), len(new.text)) >= MAX_PAIR or max(len(before), len(after)) > MAX_WORDS:
        return old, new
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    if matcher.ratio() < ALIKE:
        return old, new
    gone: list[Part] = []
    come: list[Part] = []
    for kind, a, b, c, d in matcher.get_opcodes():
        if a < b:
            gone.append((kind != "equal", "".join(before[a:b])))
        if c < d:
            come.append((kind != "equal", "".join(after[c:d])))
    return (
        dataclasses.replace(old, parts=tuple(gone)),
        dataclasses.replace(new, parts=tuple(come)),
    )


def compare_texts(before: str, after: str) -> tuple[Line, ...]:
    """The lines of the change, with some around it; none if there is none."""
    old, new = before.splitlines(), after.splitlines()
    lines = list(difflib.unified_diff(old, new, lineterm="", n=CONTEXT))
    return mark_diff("\n".join(lines[2:])) if lines else ()
