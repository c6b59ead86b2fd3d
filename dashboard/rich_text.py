"""Text that models and tools wrote, made safe to show: Markdown and hidden characters."""

from __future__ import annotations

import html
import re

import nh3
from markdown_it import MarkdownIt

TAGS = set(
    "a blockquote br code del em h1 h2 h3 h4 h5 h6 hr li ol p pre strong table tbody td th thead "
    "tr ul".split()
)
MAX_PROSE = 64 * 1024
"""Characters of Markdown that are set: 64 KB of brackets take seconds."""

# Characters that change the direction or the look of what follows, without a shape of their own.
_HIDDEN = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]")

# No raw HTML and no images (an image is a request to somebody else's server).
_parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])


def render_markdown(text: str) -> str:
    """CommonMark with tables as HTML of the tags above, links opened by http, https or mailto; a
    text over MAX_PROSE as it is written.

    Headings go below a page's own, and no level is left out, whatever was.
    """
    if len(text) > MAX_PROSE:
        return f"<pre>{html.escape(reveal_controls(text))}</pre>"
    tokens = _parser.parse(reveal_controls(text))
    level = 1
    for token in tokens:
        if token.type == "heading_open":
            level = min(int(token.tag[1:]) + 1, level + 1, 6)
        if token.type in {"heading_open", "heading_close"}:
            token.tag = f"h{level}"
    return nh3.clean(
        _parser.renderer.render(tokens, _parser.options, {}),
        tags=TAGS,
        attributes={"a": {"href", "title"}, "ol": {"start"}},
        url_schemes={"http", "https", "mailto"},
        link_rel="noopener noreferrer nofollow",
    )


def reveal_controls(text: str) -> str:
    """`text` with invisible and direction-changing characters as `[U+202E]`."""
    return _HIDDEN.sub(lambda found: f"[U+{ord(found.group()):04X}]", text)
