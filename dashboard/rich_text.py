"""Text that models and tools wrote, made safe to show: Markdown, diffs, hidden characters."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

import nh3
from markdown_it import MarkdownIt

TAGS = set(
    "a blockquote br code del em h1 h2 h3 h4 h5 h6 hr li ol p pre strong table tbody td th thead "
    "tr ul".split()
)
MAX_DIFF_LINES = 5_000
"""A file's diff is shown up to here; its rest is in the artifact."""

# Characters that change the direction or the look of what follows, without a shape of their own.
_HIDDEN = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]")
_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")

# No raw HTML and no images (an image is a request to somebody else's server).
_parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])


def render_markdown(text: str) -> str:
    """CommonMark with tables as HTML of the tags above, links opened by http, https or mailto."""
    return nh3.clean(
        _parser.render(reveal_controls(text)),
        tags=TAGS,
        attributes={"a": {"href", "title"}, "ol": {"start"}},
        url_schemes={"http", "https", "mailto"},
        link_rel="noopener noreferrer nofollow",
    )


def reveal_controls(text: str) -> str:
    """`text` with invisible and direction-changing characters as `[U+202E]`."""
    return _HIDDEN.sub(lambda found: f"[U+{ord(found.group()):04X}]", text)


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One line of a unified diff: kind `add`, `del`, `hunk`, `note` or empty for context."""

    kind: str
    old: int | None
    new: int | None
    text: str


def read_diff(diff: str) -> Iterator[Line]:
    """The lines of one file's unified diff with their numbers, without its header."""
    old = new = 0
    inside = False
    for count, raw in enumerate(diff.split("\n")):
        if count == MAX_DIFF_LINES:
            yield Line("note", None, None, f"Cut after {MAX_DIFF_LINES:,} lines.")
            return
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
