"""Lines of a log, as a page shows them: by level, by text, what is bad in colour."""

from __future__ import annotations

import datetime as dt
import functools
import re
from collections.abc import Iterator
from typing import NamedTuple

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from dashboard import times
from dashboard.rich_text import reveal_controls

LEVELS = {
    "": "Everything",
    "info": "Without debug",
    "warning": "Warnings and errors",
    "error": "Errors",
    "printed": "What was printed",
}
"""What can be chosen, and what it is called."""

BAD = {"WARNING": "warnt", "ERROR": "badt", "CRITICAL": "badt"}
PRINTED = frozenset({"OUT", "CMD"})

_LINE = re.compile(r"\d\d:\d\d:\d\d (\S+)(?= |$)")
_LEFT_OUT = re.compile(r"… [\d,]+ bytes left out …$")


class Line(NamedTuple):
    """What one record or one printed line takes: its own line and those set in below it."""

    source: str
    text: str


def read_lines(text: str) -> Iterator[Line]:
    """The lines of a stored log (`ledger.unitlog`); what was left out has the source ""."""
    held: list[str] = []
    source = ""
    for one in text.removesuffix("\n").split("\n") if text else ():
        begins = _LINE.match(one)
        if (begins or _LEFT_OUT.match(one)) and held:
            yield Line(source, "\n".join(held))
            held = []
        if not held:
            source = begins[1] if begins else ""
        held.append(one)
    if held:
        yield Line(source, "\n".join(held))


def is_wanted(line: Line, level: str, words: str) -> bool:
    """Whether a line is of the level and has the text; a place where some are missing always is."""
    if not line.source:
        return True
    wanted = {
        "": True,
        "info": line.source != "DEBUG",
        "warning": line.source in BAD,
        "error": BAD.get(line.source) == "badt",
        "printed": line.source in PRINTED,
    }[level]
    return wanted and words.casefold() in line.text.casefold()


def cut_start(text: str, most: int) -> str:
    """The last whole lines of `text`, at most `most` characters."""
    return text if len(text) <= most else text[-most:].partition("\n")[2]


def colour_lines(text: str, by: dt.datetime) -> SafeString:
    """A log, escaped, hidden characters written out, the level of what is bad in its colour, each
    time as the person's; it ended `by` then."""
    parts: list[SafeString] = []
    plain: list[str] = []
    clock = functools.cache(lambda stored: times.write_log_clock(stored, by))
    at = len("00:00:00")
    for line in read_lines(reveal_controls(text)):
        when, rest = (clock(line.text[:at]), line.text[at:]) if line.source else ("", line.text)
        css = BAD.get(line.source)
        if not css:
            plain += [when, rest, "\n"]
            continue
        parts.append(format_html("{}{} ", "".join(plain), when))
        parts.append(format_html('<b class="{}">{}</b>', css, line.source))
        plain = [rest[1 + len(line.source) :], "\n"]
    parts.append(format_html("{}", "".join(plain)))
    return mark_safe(format_html_join("", "{}", ((part,) for part in parts)).removesuffix("\n"))
