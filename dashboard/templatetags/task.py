"""What only a task's page says: `{% load task %}`."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from typing import Any

from django import template
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from dashboard import times
from dashboard.loglines import colour_lines
from dashboard.rich_text import reveal_controls
from dashboard.templatetags.longwatch import DASH, duration, read_server_time, say_span, write_json
from dashboard.wish import Wish

register = template.Library()

MAX_OUTPUT = 65_536
"""Characters of an output in the step panel; the rest is a page away."""

MAX_COLOURED = 8_000
"""Colours are three times the text, in every poll that changes something."""

TOKEN = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?|-?\d[\d.eE+-]*|\b(?:true|false|null)\b')


@register.simple_tag
def choose(task: Mapping[str, Any], wish: Wish, **changes: Any) -> SafeString:
    """The attributes of a link that shows the same task otherwise: a page, or its parts in place.

    `changes` are fields of a Wish.
    """
    path = reverse("dashboard:task", args=[task["id"]]) + wish.write(**changes)
    return format_html(
        'href="{0}" hx-get="{0}" hx-target="#task-vitals" hx-swap="outerMorph" data-place', path
    )


@register.simple_tag
def toggle(task: Mapping[str, Any], wish: Wish, name: str) -> SafeString:
    """The same for a link that switches a field over."""
    return choose(task, wish, **{name: not getattr(wish, name), "skip": 0})


@register.simple_tag
def output_json(value: Any) -> dict[str, Any]:
    """`text`: an output as indented JSON with exact numbers; `cut`: characters left out of it."""
    text = reveal_controls(write_json(value))
    shown = colour_json(text) if len(text) <= MAX_COLOURED else text[:MAX_OUTPUT]
    return {"text": shown, "cut": max(0, len(text) - MAX_OUTPUT)}


def colour_json(text: str) -> SafeString:
    """Keys, strings and other values in spans of their own; everything escaped."""
    parts, at = [], 0
    for found in TOKEN.finditer(text):
        css = "v" if found[1] is None else "s" if found[2] is None else "k"
        parts += [("", text[at : found.start()]), (css, found[1] or found[0])]
        at = found.start() + len(found[1] or found[0])
    parts.append(("", text[at:]))
    return format_html_join("", "{}", ((_colour(css, part),) for css, part in parts if part))


def _colour(css: str, text: str) -> str:
    return format_html('<span class="{}">{}</span>', css, text) if css else text


@register.simple_tag
def countdown(until: dt.datetime) -> SafeString:
    """'12 s left' of a lease, ticked by the page's script."""
    left = (until - read_server_time()).total_seconds()
    text = f"{say_span(left)} left" if left > 0 else "expired, checking"
    return format_html(
        '<time datetime="{}" title="{}" data-time="left">{}</time>',
        times.localize(until).isoformat(timespec="milliseconds"), times.write_exact(until), text,
    )  # fmt: skip


@register.filter
def since(moment: dt.datetime | None) -> str:
    """How long ago, in words: '8.2 s'."""
    return duration(read_server_time() - moment) if moment else DASH


@register.filter
def log_lines(text: str, ended: dt.datetime) -> SafeString:
    """The end of a log that ended then, as people read it."""
    return colour_lines(text, ended)


@register.filter
def unit_took(unit: Mapping[str, Any]) -> dt.timedelta:
    """How long a unit ran."""
    span: dt.timedelta = unit["finished_at"] - unit["started_at"]
    return span


@register.filter
def short_number(number: int) -> str:
    """'1,284', '12.4 k', '10 M': a figure that is read at a glance; never rounded up."""
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (100_000, "k")):
        if number >= size:
            scale = 1_000 if unit == "k" else size
            return f"{number * 10 // scale / 10:,.10g} {unit}"
    return f"{number:,}"
