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


# The same and what a terminal obeys, in UTF-8; and where a person goes on writing.
_OBEYED = (
    rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\x8b-\x8f\xaa-\xae]"
    rb"|\xe2\x81[\xa0-\xa4\xa6-\xa9]|\xef\xbb\xbf|\xf3\xa0[\x80\x81][\x80-\xbf]"
)
_HAS_OBEYED = re.compile(_OBEYED)
_PLAIN = bytes(range(0x20, 0x7F)) + b"\t\n\r"
_FIELD_OR_OBEYED = re.compile(rb'<textarea\b.*?</textarea>| value="[^"]*"|' + _OBEYED, re.DOTALL)


def reveal_page(content: bytes) -> bytes:
    """A page in which such characters are written out, wherever they came from; what stands in a
    field is left, as it is sent back."""
    # Most of a page is plain: without that, the search takes a hundredth of the time.
    if not _HAS_OBEYED.search(content.translate(None, _PLAIN)):
        return content
    return _FIELD_OR_OBEYED.sub(_reveal_bytes, content)


def _reveal_bytes(found: re.Match[bytes]) -> bytes:
    text = found.group()
    return text if text[:1] in b"< " else b"[U+%04X]" % ord(text.decode())
