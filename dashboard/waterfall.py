"""A timeline as a table of steps with bars: geometry in attributes, a sentence for each row."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dashboard import words
from dashboard.axis import Axis, Piece, list_zooms, make_axis, percent
from dashboard.bars import LOOKS, NOTE_WIDTH, TURN, Ahead, Bar, Note, Row, fill_row
from dashboard.templatetags.longwatch import duration
from dashboard.tracks import Hold, Money, draw_holds, draw_money, say_holds
from dashboard.tries import MAX_ROWS, Cut, list_attempts, list_events, list_types, narrow_spans
from dashboard.wish import ATTEMPTS, EVENTS, Wish
from ledger import states
from ledger.queries import spans
from ledger.queries.spans import Span, Timeline

MAX_TICKS = 100
"""Units that are drawn one by one; of more, every second, third … has a tick."""

WORD, FIGURE = 16.0, 6.0
"""Percent that "round 1", or its number alone, takes on a bar: no word stands on the next one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Waterfall:
    """The whole picture."""

    rows: list[Row]
    axis: Axis
    ticks: list[tuple[str, str]]
    now: str
    rounds: list[tuple[int, Bar, str]]
    key: list[tuple[str, str, dt.timedelta]]
    older: int
    stride: int
    start: dt.datetime
    end: dt.datetime
    idle: float
    cut: Cut
    holds: list[Hold]
    money: Money | None
    zooms: dict[str, tuple[int, int] | None]
    kinds: list[tuple[str, str]]
    narrowed: bool
    judged: bool

    @property
    def held(self) -> str:
        """The sentence of the workers' track."""
        return say_holds(self.holds)

    @property
    def zoom_links(self) -> list[tuple[str, str, str, bool, tuple[int, int] | None]]:
        """(name, label, key, whether it leads anywhere, window), always at the same places."""
        links = (("in", "Zoom in", "+"), ("out", "Zoom out", "-"), ("fit", "All", "0"))
        found = [(*one, one[0] in self.zooms, self.zooms.get(one[0])) for one in links]
        more = (("earlier", "Earlier", ""), ("later", "Later", ""))
        if "fit" in self.zooms:
            found += [(*one, one[0] in self.zooms, self.zooms.get(one[0])) for one in more]
        return found

    @property
    def expects(self) -> bool:
        """True when something expected is drawn."""
        return any(row.expects and row.expects.width for row in self.rows)

    @property
    def ticked(self) -> bool:
        """True when some row has a tick for its units."""
        return any(row.ticks for row in self.rows)

    @property
    def pace(self) -> str:
        """Percent of the width that a second takes where the picture ends: now moves by it."""
        last = self.axis.pieces[-1]
        return f"{last.width / max(1.0, last.end - last.start):.6f}"

    @property
    def gaps(self) -> list[Piece]:
        """The squeezed times."""
        return self.axis.squeezed

    @property
    def told_gaps(self) -> list[Piece]:
        """Those with room for a word below them; how long all are in sum stands beside them."""
        told: list[Piece] = []
        for gap in self.gaps:
            if not told or gap.centre - told[-1].centre >= WORD:
                told.append(gap)
        return told


def draw_waterfall(
    timeline: Timeline,
    task: Mapping[str, Any],
    names: Sequence[str],
    units: Sequence[dict[str, Any]],
    record: Sequence[dict[str, Any]] = (),
    wish: Wish = Wish(),  # noqa: B008  frozen
    typical: Mapping[str, float] | None = None,
) -> Waterfall:
    """Rows, axis and key of a task's `timeline`; `task` is what the page shows of it.

    `typical` is how many seconds each step took in past runs, by its name; None if nobody asked.
    """
    rows = list_rows(task, names, units)
    rest = measure_rest(rows, task, units, timeline, typical or {})
    goes = task["status"] == states.RUNNING and not wish.narrows
    axis = make_axis(timeline, wish.squeeze, wish.zoom, sum(rest.values()) if goes else 0.0)
    whole = axis.pieces[-1].end >= timeline.end.timestamp()
    now = axis.place(timeline.end) if whole and task["status"] not in states.FINISHED else None
    kept = narrow_spans(timeline.spans, wish, record)
    stride = max(1, -(-len(units) // MAX_TICKS))
    found: dict[str, list[Span]] = collections.defaultdict(list)
    for span in kept:
        found[span.step].append(span)
    for row in rows:
        fill_row(row, found[row.name], axis, stride)
    mark_restarts(rows, timeline, axis)
    expect_rows(rows, rest, typical or {}, axis)
    if wish.narrows:
        rows = [row for row in rows if found[row.name]]
    here = next((row for row in rows if row.current), None)
    step = wish.step or (here.name if here else "")
    rows, cut = cut_steps(rows, wish.open or step)
    if wish.mode == ATTEMPTS:
        rows, cut = list_attempts(rows, found, axis, wish, step)
    elif wish.mode == EVENTS:
        rows, cut = list_events(record, units, timeline.spans, axis, wish)
    return Waterfall(
        rows, axis, axis.list_ticks(now), "" if now is None else percent(now),
        draw_rounds(timeline, axis), list_key(timeline),
        max(0, int(task["used"]["units"]) - len(units)), stride,
        read_moment(axis.pieces[0].start), read_moment(axis.pieces[-1].end),
        sum(piece.end - piece.start for piece in axis.squeezed), cut,
        draw_holds(timeline, axis), draw_money(task, units, record, axis),
        list_zooms(axis, timeline, 50.0 if now is None or wish.zoom else now),
        list_types(wish.mode, timeline.spans, record), wish.narrows and not rows,
        typical is not None,
    )  # fmt: skip


def read_moment(seconds: float) -> dt.datetime:
    """A time of the axis."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC)


def list_key(timeline: Timeline) -> list[tuple[str, str, dt.timedelta]]:
    """(css class, word, how long in all) of each kind that there is."""
    sums: collections.defaultdict[str, dt.timedelta] = collections.defaultdict(dt.timedelta)
    for span in timeline.spans:
        sums[span.kind] += span.took
    return [(*LOOKS[kind], sums[kind]) for kind in LOOKS if kind in sums]


def cut_steps(rows: Sequence[Row], step: str) -> tuple[list[Row], Cut]:
    """All of them, or so many around `step`."""
    if len(rows) <= MAX_ROWS:
        return list(rows), Cut()
    at = next((n for n, row in enumerate(rows) if row.name == step), 0)
    first = min(max(0, at - MAX_ROWS // 2), len(rows) - MAX_ROWS)
    return list(rows[first : first + MAX_ROWS]), Cut()


def measure_rest(
    rows: Sequence[Row],
    task: Mapping[str, Any],
    units: Sequence[dict[str, Any]],
    timeline: Timeline,
    typical: Mapping[str, float],
) -> dict[str, float]:
    """Seconds that each step from the present one on still takes, as far as past runs tell."""
    if task["status"] in states.FINISHED:
        return {}
    worked: collections.defaultdict[str, float] = collections.defaultdict(float)
    for span in timeline.spans:
        if span.open and span.kind in {spans.RUNNING, spans.STALLED}:
            worked[span.step] += span.took.total_seconds()
    for unit in units:
        if unit["superseded_in_round"] is None:
            took = unit["finished_at"] - unit["started_at"]
            worked[unit["step_name"]] += max(0.0, took.total_seconds())
    first = task["step"]["index"]
    return {
        row.name: left
        for row in rows
        if row.index >= first and (left := typical.get(row.name, 0.0) - worked[row.name]) > 0
    }


def expect_rows(
    rows: Sequence[Row], rest: Mapping[str, float], typical: Mapping[str, float], axis: Axis
) -> None:
    """One after the other behind now, where they are drawn; else the figure alone."""
    at = 0.0
    for row in rows:
        if row.name not in rest:
            continue
        left, right = axis.place_ahead(at), axis.place_ahead(at + rest[row.name])
        at += rest[row.name]
        drawn = axis.ahead is not None
        row.expects = Ahead(
            typical[row.name], percent(left) if drawn else "",
            percent(max(right - left, 0.5)) if drawn else "",
        )  # fmt: skip
        row.label += f". About {duration(rest[row.name])} are expected, by past runs"


def list_rows(
    task: Mapping[str, Any], names: Sequence[str], units: Iterable[dict[str, Any]]
) -> list[Row]:
    """Every step in order, also one that only outputs know: the workflow has changed since."""
    here = (task["step"]["index"], task["step"]["name"])
    live: collections.Counter[tuple[int, str]] = collections.Counter()
    seen: collections.Counter[tuple[int, str]] = collections.Counter()
    for unit in units:
        place = (unit["step_index"], unit["step_name"])
        seen[place] += 1
        live[place] += unit["superseded_in_round"] is None
    rows = []
    for place in sorted({*enumerate(names), *seen, here}):
        current = place == here and task["status"] != states.COMPLETED
        done = bool(live[place]) or (task["status"] == states.COMPLETED and place == here)
        look = task["look"] if current else words.LOOKS[states.COMPLETED] if done else None
        row = Row(*place, look or words.NOT_STARTED, current, look is None)
        report = task["progress_report"]
        if current and report["total"]:
            row.extra = f"{report['done'] or 0:,.10g} of {report['total']:,.10g}"
        elif seen[place] > 1:
            row.extra = f"{seen[place]:,} units"
        rows.append(row)
    return rows


def mark_restarts(rows: Sequence[Row], timeline: Timeline, axis: Axis) -> None:
    """A diamond where work was found wrong, in the row of the step that found it."""
    by_name = {row.name: row for row in rows}
    for one in timeline.restarts:
        row = by_name.get(one.step)
        if row is not None and axis.shows(one.at, one.at):
            word = "repair" if one.by_workflow else "edit" if one.edited else "restart"
            at = axis.place(one.at)
            before = at > TURN
            # To the left lies the bar that ends here; to the right may begin the next one.
            crowded = any(
                bar.left < at and bar.right > at - NOTE_WIDTH
                if before
                else at < bar.left < at + NOTE_WIDTH
                for bar in row.bars
            )
            text = "" if crowded else f"{word}, round {one.round}"
            row.notes.append(Note(at, text, mark=True, before=before))
            row.label += f". Then a {word} from {one.to}, round {one.round}"


def draw_rounds(timeline: Timeline, axis: Axis) -> list[tuple[int, Bar, str]]:
    """(round, bar, what stands on it), when there is more than one."""
    if not timeline.restarts:
        return []
    found = []
    for number, start, end in timeline.rounds:
        if not axis.shows(start, end):
            continue
        bar = Bar(spans.DONE, start, end, number, axis.place(start), axis.place(end))
        wide = bar.right - bar.left
        text = f"round {number}" if wide >= WORD else str(number) if wide >= FIGURE else ""
        found.append((number, bar, text))
    return found
