"""How a moment is written: in the zone and on the clock of the person whom the page is made for."""

from __future__ import annotations

import datetime as dt
from typing import Any

from dashboard.preferences import read_current

MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
DAYS = "Mon Tue Wed Thu Fri Sat Sun".split()
EARLY = dt.timedelta(hours=1)
"""A worker's clock may be ahead of the database's by so much before its lines are yesterday's."""

NAMED_DAYS = 6
"""So many days back a day is called by its name."""


def localize(moment: dt.datetime) -> dt.datetime:
    """The same moment in the person's zone."""
    return moment.astimezone(read_current().tzinfo)


def write_clock(moment: dt.datetime, *, seconds: bool = True) -> str:
    """'14:37:55', or '2:37:55 pm' for who likes that better."""
    local = localize(moment)
    end = f":{local.minute:02}" + (f":{local.second:02}" if seconds else "")
    if read_current().hours == 24:
        return f"{local.hour:02}{end}"
    return f"{local.hour % 12 or 12}{end} {'am' if local.hour < 12 else 'pm'}"


def write_log_clock(text: str, by: dt.datetime) -> str:
    """The time with which a line of a log begins, '14:37:55' in UTC, as the person's.

    `by` is when the log ended, at the latest: the zone's offset is that of the day.
    """
    try:
        moment = dt.datetime.combine(by.astimezone(dt.UTC), dt.time.fromisoformat(text), dt.UTC)
    except ValueError:
        return text
    return write_clock(moment if moment <= by + EARLY else moment - dt.timedelta(days=1))


def write_hour(moment: dt.datetime) -> str:
    """'14', '2 pm': a full hour on an axis."""
    local = localize(moment)
    if read_current().hours == 24:
        return f"{local.hour:02}"
    return f"{local.hour % 12 or 12} {'am' if local.hour < 12 else 'pm'}"


def write_moment(moment: dt.datetime, now: dt.datetime) -> str:
    """'14:37:55' today, 'Mon 14:37:55' in the last days, else with the date (and another year)."""
    local, today = localize(moment), localize(now)
    back = (today.date() - local.date()).days
    if back == 0:
        return write_clock(moment)
    if 0 < back <= NAMED_DAYS:
        return f"{DAYS[local.weekday()]} {write_clock(moment)}"
    year = f" {local.year}" if local.year != today.year else ""
    return f"{local.day} {MONTHS[local.month - 1]}{year}, {write_clock(moment)}"


def write_exact(moment: dt.datetime) -> str:
    """'Mon 30 Nov 2026, 14:37:55 Europe/Berlin (UTC+01:00)': leaves nothing open."""
    local = localize(moment)
    day = f"{DAYS[local.weekday()]} {local.day} {MONTHS[local.month - 1]} {local.year}"
    zone = read_current().zone_name
    offset = "" if zone == "UTC" else f" (UTC{local.isoformat()[-6:]})"
    return f"{day}, {write_clock(moment)} {zone}{offset}"


def write_iso(moment: dt.datetime) -> str:
    """'2026-11-30T14:37:55+01:00'."""
    return localize(moment).isoformat(timespec="seconds")


def read_typed(text: str) -> dt.datetime:
    """A moment as somebody types it, in their zone unless it names an offset.

    Of an hour that comes twice the first one is meant; one that is left out is the one after it.
    Raises ValueError for what is no time.
    """
    moment = dt.datetime.fromisoformat(text)
    # In UTC: Python holds a moment of an hour that comes twice to be equal to no other zone's.
    zone = moment.tzinfo or read_current().tzinfo
    return moment.replace(tzinfo=zone).astimezone(dt.UTC)


def tell_stored(value: Any) -> Any:
    """A stored time, a text with its offset, as people write it; anything else as it is."""
    try:
        moment = dt.datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return value
    return write_exact(moment) if moment.tzinfo else value
