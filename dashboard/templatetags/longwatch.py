"""How times, amounts, statuses and untrusted text look: `{% load longwatch %}`."""

from __future__ import annotations

import datetime as dt
import json
import re
from typing import Any

from django import template
from django.conf import settings
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from dashboard import rich_text, times, words
from dashboard.preferences import THEMES, Preferences, read_current
from ledger import conf, queries
from ledger.calls import read_call
from ledger.queries import COUNT_CAP

register = template.Library()

MAX_JSON_SHOWN = 4_000
LINE = 40
"""Characters in which a list of plain values stands on one line."""
LIVE = frozenset({"production", "prod", "live"})
"""Names of an environment whose pages have a stripe."""
DASH = "\N{EN DASH}"


@register.simple_tag
def icon(name: str) -> SafeString:
    """A decorative glyph of `_icons.html`."""
    return format_html('<svg class="ic" aria-hidden="true"><use href="#i-{}"/></svg>', name)


@register.simple_tag
def glyph(name: str) -> SafeString:
    """The shape of a state; the state's class around it gives the colour."""
    return format_html(
        '<svg viewBox="0 0 16 16" aria-hidden="true"><use href="#s-{}"/></svg>', name
    )


@register.simple_tag
def status_tag(look: words.Look, pill: str = "") -> SafeString:
    """A status as shape, colour and word."""
    css = f"{look.css} {pill}".strip()
    return format_html('<span class="st {}">{}{}</span>', css, glyph(look.glyph), look.label)


@register.filter
def event_look(kind: str) -> words.Look:
    """How an event is shown."""
    return words.EVENTS.get(kind) or words.Look(kind, "idle", "is-idle")


@register.filter
def took(unit: dict[str, Any]) -> dt.timedelta:
    """How long a unit ran."""
    span: dt.timedelta = unit["finished_at"] - unit["started_at"]
    return span


@register.filter
def grouped(number: int) -> str:
    """'10,000'."""
    return f"{number:,}"


@register.filter
def answer_name(status: str) -> str:
    """What the status of an approval is called."""
    return words.ANSWERS.get(status, status)


@register.filter
def action_name(code: str) -> str:
    """What an action of the audit log is called."""
    return words.name_action(code)


@register.filter
def reason_text(reason: str) -> str:
    """A reason code in words."""
    return words.REASONS.get(reason, reason)


@register.simple_tag
def ago(moment: dt.datetime | str | None) -> SafeString | str:
    """'6 h 12 m ago' or 'in 9 m', ticked by the page's script: for lists."""
    if not isinstance(moment, dt.datetime):
        return ""
    return _write_time(moment, _say_distance(moment), "ago")


@register.simple_tag
def clock_time(moment: dt.datetime | str | None) -> SafeString | str:
    """'14:37:55' on the day itself, with day or date before it on others: for logs and events."""
    if not isinstance(moment, dt.datetime):
        return ""
    return _write_time(moment, times.write_moment(moment, read_server_time()), "")


@register.simple_tag
def elapsed(start: dt.datetime | str | None, end: dt.datetime | str | None) -> SafeString | str:
    """From `start` to `end`, or as long as it goes on by now, ticked by the page's script."""
    if not isinstance(start, dt.datetime):
        return DASH
    if isinstance(end, dt.datetime):
        return duration(end - start)
    return _write_time(start, say_span(max(0.0, _measure(start))), "for")


@register.filter
def plain_time(moment: dt.datetime) -> str:
    """'14:37:55', for a label."""
    return times.write_clock(moment)


@register.filter
def plain_day(moment: dt.datetime) -> str:
    """'2026-11-30', beside a time of a long table."""
    return times.localize(moment).date().isoformat()


@register.simple_tag
def zone_name() -> str:
    """The zone that times are written in."""
    return read_current().zone_name


@register.filter
def duration(value: float | dt.timedelta | str | None) -> str:
    """Two units at most: '3 h 28 m', '12.4 s', '840 ms'; never negative. Nothing is a dash."""
    if value is None or isinstance(value, str):
        return DASH
    seconds = max(0.0, value.total_seconds() if isinstance(value, dt.timedelta) else value)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    return say_span(seconds)


def say_span(seconds: float) -> str:
    """Whole seconds and more in two units; the page's script says it in the same way."""
    whole = int(seconds)
    days, hours, minutes = whole // 86_400, whole // 3_600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes:02} m"
    if minutes:
        return f"{minutes} m {whole % 60:02} s"
    return f"{whole} s"


@register.filter
def bound(value: float | dt.timedelta | None) -> str:
    """A bound as people set it: '7 d', '20 m', without the zeros of a second unit."""
    return re.sub(r" 0+ [hms]$", "", duration(value))


@register.filter
def money(amount: str) -> str:
    """A decimal amount to the cent, for figures above each other; a task's page has it exact."""
    return words.say_money(conf.parse_money(amount))


@register.filter
def short_id(value: object) -> str:
    """The first 8 and last 4 characters: UUIDs of one minute begin alike."""
    text = str(value)
    return f"{text[:8]}…{text[-4:]}" if len(text) > 14 else text


@register.filter
def short_key(key: str) -> str:
    """An idempotency key, the id of its task shortened."""
    task, colon, rest = key.partition(":")
    return f"{short_id(task)}{colon}{rest}"


@register.filter
def short_owner(owner: str) -> str:
    """`host:pid:boot-uuid` without the part that tells two boots apart."""
    return ":".join(owner.split(":")[:2])


@register.filter
def capped(count: int) -> str:
    """A count that is counted no further than its cap."""
    return f"{COUNT_CAP:,}+" if count >= COUNT_CAP else f"{count:,}"


@register.filter
def pretty_json(value: Any) -> str:
    """Indented JSON with exact numbers, cut after some 4,000 characters."""
    text = write_json(value)
    if len(text) <= MAX_JSON_SHOWN:
        return text
    return f"{text[:MAX_JSON_SHOWN]}\n… {len(text) - MAX_JSON_SHOWN:,} more characters"


@register.filter
def whole_json(value: Any) -> str:
    """Indented JSON, all of it."""
    return write_json(value)


_PLAIN_LIST = re.compile(r"\[\n( +)([^\[\]{}]*?)\n( *)\]")


def write_json(value: Any) -> str:
    """Indented JSON with exact numbers; a list of plain values in as few lines as it needs."""
    return _PLAIN_LIST.sub(_fill_list, json.dumps(value, indent=2, ensure_ascii=False))


def _fill_list(found: re.Match[str]) -> str:
    items = re.split(r",\n +", found[2])  # JSON writes a line break in a string as \\n
    before = found.start() - found.string.rfind("\n", 0, found.start())
    if before + len(", ".join(items)) <= LINE:
        return f"[{', '.join(items)}]"
    lines = [""]
    for item in items:
        if lines[-1] and len(lines[-1]) + len(item) > LINE:
            lines.append("")
        lines[-1] += f" {item}," if lines[-1] else f"{item},"
    body = f"\n{found[1]}".join(lines).removesuffix(",")
    return f"[\n{found[1]}{body}\n{found[3]}]"


@register.filter
def in_words(value: Any) -> str:
    """A value of a workflow in one line: `ran: 283, failed: 0`."""
    if isinstance(value, dict):
        return ", ".join(f"{key}: {part}" for key, part in value.items())
    if isinstance(value, list):
        return ", ".join(str(part) for part in value)
    return DASH if value is None else str(value)


@register.filter
def is_long(value: Any) -> bool:
    """True for text that needs lines of its own."""
    return isinstance(value, str) and ("\n" in value or len(value) > 200)


@register.filter
def markdown(text: str) -> SafeString:
    """Untrusted Markdown as HTML that can't do harm."""
    return mark_safe(rich_text.render_markdown(text))


@register.filter
def revealed(text: Any) -> str:
    """Untrusted text with its direction marks written out, so that what is read is what is run."""
    return rich_text.reveal_controls(str(text))


@register.filter
def file_size(size: int) -> str:
    """'21 KB'."""
    amount = float(size)
    for unit in ("B", "KB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} GB"


@register.simple_tag
def bar(percent: float, label: str, css: str = "") -> SafeString:
    """A bar whose geometry is in attributes: no inline style."""
    return format_html(
        '<svg class="bar {}" role="img" aria-label="{}"><rect width="{}%" height="6"/></svg>',
        css,
        label,
        f"{min(100.0, max(0.0, percent)):.4g}",
    )


def _say_distance(moment: dt.datetime) -> str:
    seconds = _measure(moment)
    # What the database's clock has just written may lie a moment ahead of this one's.
    return f"{say_span(max(0.0, seconds))} ago" if seconds > -1 else f"in {say_span(-seconds)}"


def _measure(moment: dt.datetime) -> float:
    return (read_server_time() - moment).total_seconds()


def _write_time(moment: dt.datetime, text: str, mode: str) -> SafeString:
    return format_html(
        '<time datetime="{}" title="{}"{}>{}</time>',
        times.write_iso(moment),
        times.write_exact(moment),
        mark_safe(f' data-time="{mode}"') if mode else "",
        text,
    )


def read_server_time() -> dt.datetime:
    """This process's time: for ages on a page, never for anything stored."""
    return dt.datetime.now(dt.UTC)


@register.simple_tag
def server_now() -> str:
    """The server's time for the page's script, which corrects the browser's clock by it."""
    return read_server_time().isoformat(timespec="milliseconds")


@register.simple_tag(takes_context=True)
def count_waiting(context: template.Context) -> int:
    """How many approvals wait: the badge in the navigation, counted once a request."""
    request = context["request"]
    if not hasattr(request, "waiting_count"):
        request.waiting_count = queries.count_waiting()
    return int(request.waiting_count)


@register.simple_tag
def environment() -> str:
    """What this installation is called, so that nobody acts on another one; empty for no name."""
    return str(getattr(settings, "LONGWATCH_ENVIRONMENT", "") or "")[:40]


@register.simple_tag(name="request_id")
def read_request_id() -> str:
    """The name of the request that is answered, as in the audit log; empty where it has none."""
    return read_call().request_id


@register.simple_tag(takes_context=True)
def root_attributes(context: template.Context) -> SafeString:
    """What the stylesheet and the script know of the person: attributes of <html>.

    An error page may have no request, and then the defaults.
    """
    request = context.get("request")
    likes = getattr(request, "preferences", None) or Preferences()
    return format_html(
        'data-theme="{}" data-density="{}" data-keys="{}" data-zone="{}" data-hours="{}"{}{}',
        likes.theme, likes.density, "on" if likes.keys else "off", likes.zone, likes.hours,
        mark_safe(" data-live") if environment().casefold() in LIVE else "",
        format_html(' data-user="{}"', user) if (user := _name_user(request)) else "",
    )  # fmt: skip


def _name_user(request: Any) -> str:
    return str(request.user.pk) if getattr(request, "scopes", None) else ""


@register.simple_tag
def next_theme(theme: str) -> tuple[str, str]:
    """The theme after this one, and what it is called."""
    names = list(THEMES)
    other = names[(names.index(theme) + 1) % len(names)] if theme in names else names[0]
    return other, THEMES[other]
