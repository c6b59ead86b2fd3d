"""How a change is shown to people: words in Markdown, diffs within bounds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, BinaryIO

from harness_site.workflows.shared.tree import FileDiff, show_path

MAX_DIFF = 64 * 1024
MAX_DIFFS = 512 * 1024
"""Characters of a file's diff and of all: the question is a row in a table. The patch is whole."""


def count(number: int, what: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def code(text: str) -> str:
    """Text as Markdown code, whatever is in it."""
    # A backtick would end it and a bar would end a table's cell.
    return f"`{text.replace('`', chr(0x2CB)).replace('|', chr(0x2223))}`"


def escape(text: str) -> str:
    """Text as plain Markdown text."""
    return "".join(f"\\{char}" if char in "\\`*_{}[]<>#|~" else char for char in text)


def describe_hold(held: frozenset[str], who: str = "the tests") -> str:
    """What `who` (more than one) were cut off from while it ran, in Markdown."""
    what = {
        "network": "the network",
        "processes": "the site's processes",
        "files": "its keys, database and artifacts",
    }
    cut = [text for name, text in what.items() if name in held]
    left = [text for name, text in what.items() if name not in held]
    lines = []
    if cut:
        lines.append(f"While {who} ran, they were cut off from {join(cut)}.")
    if left:
        lines.append(f"**Not cut off** from {join(left)}: this machine does not allow it.")
    return " ".join(lines)


def join(words: list[str]) -> str:
    """`a, b and c`."""
    return " and ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


def write_changes(diffs: Iterable[FileDiff], out: BinaryIO) -> None:
    """All of every diff: what a person opens where the question shows a part."""
    for diff in diffs:
        out.write(f"=== {show_path(diff.path)} +{diff.added} -{diff.removed}\n".encode())
        out.writelines(diff.lines)


def describe_diffs(diffs: list[FileDiff]) -> Iterable[dict[str, Any]]:
    """The files of a question's payload, each diff as far as there is room for it."""
    room = MAX_DIFFS
    for diff in diffs:
        text = b"".join(diff.lines).decode("utf-8", "backslashreplace").replace("\0", "\\x00")
        shown = text[: min(MAX_DIFF, room)]
        room -= len(shown)
        yield {
            "path": show_path(diff.path),
            "added": diff.added,
            "removed": diff.removed,
            "diff": shown if len(shown) == len(text) else shown[: shown.rfind("\n") + 1],
            "cut": len(shown) < len(text),
        }
