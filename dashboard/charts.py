"""Figures over time as shapes: every number of their geometry is decided here, in Python."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
from collections.abc import Iterable, Sequence

from dashboard import times

TOP, BOTTOM = 8, 92
"""The plot's edges in a chart of 114 px; the axis stands below."""

SPARK_HEIGHT = 22
NICE = (1, 2, 3, 4, 5, 6, 8, 10)
NICE_SECONDS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 28_800)
DAY = 86_400


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """A range of the overview: `count` buckets of `size` seconds, the last one still filling.

    `now` is this process's time, for the axis alone.
    """

    name: str
    seconds: int
    size: int
    tick: int
    now: dt.datetime
    past: float = dataclasses.field(init=False)
    """How long the last bucket fills already, in seconds."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "past", self.now.timestamp() % self.size)

    @property
    def count(self) -> int:
        """Buckets begin at round times, so the first one is cut: one more than fits."""
        return self.seconds // self.size + 1

    def find_bucket(self, ago: float) -> int | None:
        """The bucket of what happened `ago` seconds before now; None before the range."""
        if ago >= self.seconds:
            return None
        back = math.floor((max(0.0, ago) - self.past) / self.size) + 1
        return self.seconds // self.size - max(0, back)

    def find_slot(self, slot: int, size: int, now: float) -> int | None:
        """The bucket of a slot of `size` seconds since 1970, `now` in seconds being in the last;
        None before the range."""
        bucket = self.count - 1 - int(now // self.size) + slot * size // self.size
        return min(bucket, self.count - 1) if bucket >= 0 else None

    def sum_up(self, points: Iterable[tuple[float | None, float]]) -> list[float]:
        """One sum for each bucket from (seconds ago, amount)."""
        sums = [0.0] * self.count
        for ago, amount in points:
            bucket = None if ago is None else self.find_bucket(ago)
            if bucket is not None:
                sums[bucket] += amount
        return sums

    def list_ticks(self) -> list[tuple[float, str]]:
        """(percent from the left, time) of the buckets that hold a round time of the person's."""
        first = self.now.timestamp() // self.size * self.size - (self.count - 1) * self.size
        ticks = []
        for bucket in range(self.count):
            moment = dt.datetime.fromtimestamp(first + bucket * self.size, dt.UTC)
            local = times.localize(moment)
            wall = local.hour * 3_600 + local.minute * 60
            left = -wall % self.tick  # until a round time, which may be within the bucket
            if left < self.size and 0 < bucket < self.count - 1:
                round_time = moment + dt.timedelta(seconds=left)
                ticks.append((100 * (bucket + 0.5) / self.count, self.say_tick(round_time)))
        return ticks

    def say_tick(self, moment: dt.datetime) -> str:
        """A day, an hour, or a time of day."""
        if self.tick >= DAY:
            return times.DAYS[times.localize(moment).weekday()]
        if self.size >= 3_600:
            return times.write_hour(moment)
        return times.write_clock(moment, seconds=False)


def make_span(name: str, now: dt.datetime) -> Span:
    """The range of that name; the day for an unknown one."""
    size = {"1h": (3_600, 300, 900), "7d": (7 * DAY, 21_600, DAY)}.get(name)
    return Span(name, *size, now) if size else Span("24h", DAY, 3_600, 10_800, now)


@dataclasses.dataclass(frozen=True, slots=True)
class Rect:
    """A bar: `x` and `width` in percent, `y` and `height` in pixels."""

    x: float
    y: float
    width: float
    height: float
    css: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """A piece of a curve: `x` in percent, `y` in pixels."""

    x1: float
    y1: float
    x2: float
    y2: float
    css: str

    @property
    def alone(self) -> bool:
        """A point without neighbours, which a line would leave too small to see."""
        return (self.x1, self.y1) == (self.x2, self.y2)


def find_top(highest: float, steps: Sequence[float] = ()) -> float:
    """The round number at the top of an axis that reaches `highest`."""
    if highest < 1e-9:  # less than a nano-unit of money is nothing
        return 1.0
    found = next((step for step in steps if step >= highest), None)
    if found is not None:
        return float(found)
    power = 10.0 ** math.floor(math.log10(highest))
    return next(nice * power for nice in NICE if nice * power >= highest * (1 - 1e-9))


def draw_spark(values: Sequence[float]) -> list[Rect]:
    """Bars from the bottom up, the highest in full; an empty bucket keeps a stub."""
    highest = max(values, default=0) or 1
    step = 100 / max(1, len(values))
    bars = []
    for place, value in enumerate(values):
        height = max(1.0, (SPARK_HEIGHT - 2) * value / highest)
        bars.append(Rect(place * step, SPARK_HEIGHT - height, step * 0.68, height))
    return bars


def draw_bars(stacks: Sequence[Sequence[float]], css: Sequence[str], top: float) -> list[Rect]:
    """Stacked bars: `stacks` holds one series each, the lowest first."""
    step = 100 / max(1, len(stacks[0]))
    bars = []
    for place in range(len(stacks[0])):
        base = float(BOTTOM)
        for series, name in zip(stacks, css, strict=True):
            height = (BOTTOM - TOP) * series[place] / top
            if height > 0:
                base -= height
                bars.append(Rect(place * step + step * 0.12, base, step * 0.76, height, name))
    return bars


def draw_curve(values: Sequence[float | None], css: str, top: float) -> list[Line]:
    """A curve through neighbours; a bucket without them is a dot, one without a value a gap."""
    step = 100 / max(1, len(values))
    points = [
        (step * (place + 0.5), BOTTOM - (BOTTOM - TOP) * value / top) if value is not None else None
        for place, value in enumerate(values)
    ]
    lines = []
    for place, here in enumerate(points):
        before = points[place - 1] if place else None
        if here and before:
            lines.append(Line(*before, *here, css))
        elif here and not any(points[place + 1 : place + 2]):
            lines.append(Line(*here, *here, css))
    return lines


def find_quantile(values: Sequence[float], share: float) -> float | None:
    """The value below which `share` of the values lie (nearest rank); None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]
