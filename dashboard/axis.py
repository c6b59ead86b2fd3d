"""Time from left to right in percent of the width, with long idle times squeezed."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
from collections.abc import Iterator, Sequence

from dashboard import times
from dashboard.templatetags.longwatch import duration
from ledger.queries.spans import WORK, Timeline

LEFT, RIGHT_OPEN, RIGHT = 1.0, 6.0, 1.5
"""Room before the first bar, and after the last: wide enough for the word "now"."""

SQUEEZED_WIDTH = 6.0
MAX_SQUEEZED = 6
IDLE_SECONDS, IDLE_SHARE = 60.0, 0.15
"""Idle time is squeezed from so many seconds on that are more than so much of all work."""

AHEAD = 0.35
"""The most of the room that what is expected takes, at a scale of its own then."""

LEAST_ZOOM = 1.0
"""Seconds: no nearer."""

OPEN_END = 10**15
"""Of a zoom that goes on until now: milliseconds that no time reaches."""

TICKS = [
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 21_600, 43_200,
    86_400, 172_800, 604_800, 2_592_000,
]  # fmt: skip
MAX_TICKS, TICK_WIDTH, EDGE = 7, 9.0, 4.0


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of time between two places on the axis; seconds since the epoch, percent."""

    start: float
    end: float
    x: float
    width: float
    squeezed: bool

    @property
    def label(self) -> str:
        """How long it truly is."""
        return duration(self.end - self.start)

    @property
    def centre(self) -> float:
        """Percent where its middle is."""
        return self.x + self.width / 2

    @property
    def middle(self) -> str:
        """Where its label stands."""
        return percent(self.centre)

    @property
    def left(self) -> str:
        """Where it begins, as an attribute."""
        return percent(self.x)

    @property
    def wide(self) -> str:
        """Its width, as an attribute."""
        return percent(self.width)


@dataclasses.dataclass(frozen=True, slots=True)
class Axis:
    """The pieces from left to right, without holes; then, `ahead`, what is expected."""

    pieces: list[Piece]
    ahead: Piece | None = None

    def shows(self, start: dt.datetime, end: dt.datetime) -> bool:
        """Whether anything of a time is drawn."""
        first, last = self.pieces[0].start, self.pieces[-1].end
        return end.timestamp() >= first and start.timestamp() <= last

    def find_moment(self, place: float) -> float:
        """The time at a place, in seconds since the epoch."""
        for piece in self.pieces:
            if place <= piece.x + piece.width:
                inside = (max(place, piece.x) - piece.x) / piece.width if piece.width else 0.0
                return piece.start + (piece.end - piece.start) * inside
        return self.pieces[-1].end

    def place_ahead(self, seconds: float) -> float:
        """Percent where so many seconds from now are."""
        if self.ahead is None:
            return self.place(dt.datetime.fromtimestamp(self.pieces[-1].end, dt.UTC))
        whole = self.ahead.end - self.ahead.start
        return self.ahead.x + self.ahead.width * min(1.0, seconds / whole)

    def place(self, moment: dt.datetime) -> float:
        """Percent of the width; what lies outside is at the nearer end."""
        at = moment.timestamp()
        for piece in self.pieces:
            if at <= piece.end:
                span = piece.end - piece.start
                inside = (max(at, piece.start) - piece.start) / span if span else 0.0
                return piece.x + piece.width * inside
        last = self.pieces[-1]
        return last.x + last.width

    @property
    def squeezed(self) -> list[Piece]:
        """The pieces that are narrower than they are long."""
        return [piece for piece in self.pieces if piece.squeezed]

    def list_ticks(self, keep_off: float | None) -> list[tuple[str, str]]:
        """(place, text) of round times, none too near to another or to `keep_off`."""
        plain = [piece for piece in self.pieces if not piece.squeezed]
        seconds = sum(piece.end - piece.start for piece in plain)
        step = next((one for one in TICKS if seconds / one <= MAX_TICKS), TICKS[-1])
        dated = self.pieces[-1].end - self.pieces[0].start > 86_400
        found: list[tuple[float, str]] = []
        for piece in plain:
            for at in itertools.takewhile(
                lambda at, end=piece.end: at <= end,  # type: ignore[misc]
                count_round_times(piece.start, step),
            ):
                x = self.place(dt.datetime.fromtimestamp(at, dt.UTC))
                near = [place for place, _ in found[-1:]]
                near += [] if keep_off is None else [keep_off]
                if EDGE < x < 100 - EDGE and all(abs(x - other) >= TICK_WIDTH for other in near):
                    found.append((x, say_tick(at, step, dated)))
        return [(percent(x), text) for x, text in found]


def percent(value: float) -> str:
    """A number for an SVG attribute."""
    return f"{value:.2f}%"


def count_round_times(start: float, step: int) -> Iterator[float]:
    """The moments from `start` on at which a clock on the person's wall shows a multiple of `step`.

    The wall's own arithmetic, so that the ticks stay at 06:00 and 12:00 when the clocks change.
    """
    local = times.localize(dt.datetime.fromtimestamp(start, dt.UTC))
    wall = local.replace(tzinfo=dt.UTC).timestamp()
    for shown in itertools.count(int(-(-wall // step)) * step, step):
        at = dt.datetime.fromtimestamp(shown, dt.UTC).replace(tzinfo=local.tzinfo).timestamp()
        if at >= start:  # not the first of an hour that comes twice, when the second one began
            yield at


def say_tick(at: float, step: float, dated: bool) -> str:
    """'14:32', '14:32:10' where seconds matter, '29 Nov 14:00' where days do."""
    moment = dt.datetime.fromtimestamp(at, dt.UTC)
    local = times.localize(moment)
    day = f"{local.day} {times.MONTHS[local.month - 1]}"
    if step >= 86_400:
        return day
    if dated:
        return f"{day} {times.write_clock(moment, seconds=False)}"
    return times.write_clock(moment, seconds=step < 60)


def make_axis(
    timeline: Timeline,
    squeeze: bool,
    zoom: tuple[int, int] | None = None,
    ahead: float = 0.0,
) -> Axis:
    """From the timeline's start to its end, or what `zoom` (milliseconds) shows of it.

    With `squeeze` long idle times take little room; `ahead` seconds are expected to follow.
    """
    start, end = timeline.start.timestamp(), timeline.end.timestamp()
    end = max(end, start + 1.0)
    if zoom and max(start, zoom[0] / 1000) + LEAST_ZOOM <= min(end, zoom[1] / 1000):
        whole, (start, end) = end, (max(start, zoom[0] / 1000), min(end, zoom[1] / 1000))
        ahead = 0.0 if end < whole else ahead
    going = any(span.open and span.end.timestamp() <= end for span in timeline.spans)
    room = 100.0 - LEFT - (RIGHT_OPEN if going else RIGHT)
    idle = choose_squeezed(list_idle(timeline, start, end), end - start) if squeeze else []
    plain = (end - start) - sum(until - since for since, until in idle)
    later = room * min(AHEAD, ahead / (ahead + plain)) if ahead else 0.0
    left_over = room - later - SQUEEZED_WIDTH * len(idle)
    pieces, at, x = [], start, LEFT
    for since, until in [*idle, (end, end)]:
        width = left_over * (since - at) / plain if plain else 0.0
        if since > at:
            pieces.append(Piece(at, since, x, width, False))
        x += width
        if until > since:
            pieces.append(Piece(since, until, x, SQUEEZED_WIDTH, True))
            x += SQUEEZED_WIDTH
        at = until
    return Axis(pieces, Piece(end, end + ahead, x, later, False) if ahead else None)


def list_zooms(axis: Axis, timeline: Timeline, centre: float) -> dict[str, tuple[int, int] | None]:
    """What of the time each link shows; None for all of it, and no key for what leads nowhere.

    `centre` is the place that comes nearer.
    """
    first, last = timeline.start.timestamp(), max(
        timeline.end.timestamp(), timeline.start.timestamp() + 1.0
    )  # fmt: skip
    start, end = axis.pieces[0].start, axis.pieces[-1].end
    right = axis.pieces[-1].x + axis.pieces[-1].width
    half = (right - LEFT) / 4
    middle = min(max(centre, LEFT + half), right - half)
    near = axis.find_moment(middle - half), axis.find_moment(middle + half)
    found: dict[str, tuple[int, int] | None] = {}
    if near[1] - near[0] >= LEAST_ZOOM:
        found["in"] = _say_window(*near, last)
    span = end - start
    if (start, end) == (first, last):
        return found
    wide = max(first, start - span / 2), min(last, end + span / 2)
    nearly = wide[1] - wide[0] > 0.98 * (last - first)
    found["out"] = None if nearly else _say_window(*wide, last)
    found["fit"] = None
    if start > first:
        since = max(first, start - span / 2)
        found["earlier"] = _say_window(since, since + span, last)
    if end < last:
        until = min(last, end + span / 2)
        found["later"] = _say_window(until - span, until, last)
    return found


def _say_window(start: float, end: float, last: float) -> tuple[int, int]:
    return int(start * 1000), OPEN_END if end >= last else int(end * 1000)


def list_idle(timeline: Timeline, start: float, end: float) -> list[tuple[float, float]]:
    """The times in which no worker was busy with the task."""
    busy = sorted(
        (max(start, span.start.timestamp()), min(end, span.end.timestamp()))
        for span in timeline.spans
        if span.kind in WORK and span.start.timestamp() <= end and span.end.timestamp() >= start
    )
    found, at = [], start
    for since, until in [*busy, (end, end)]:
        if since > at:
            found.append((at, since))
        at = max(at, until)
    return found


def choose_squeezed(
    idle: Sequence[tuple[float, float]], seconds: float
) -> list[tuple[float, float]]:
    """The longest of those that are long beside the work, in order of time; none without work."""
    work = seconds - sum(until - since for since, until in idle)
    bound = max(IDLE_SECONDS, IDLE_SHARE * work)
    long = sorted((one for one in idle if one[1] - one[0] > bound), key=lambda one: one[0] - one[1])
    return sorted(long[:MAX_SQUEEZED]) if work > 0 else []
