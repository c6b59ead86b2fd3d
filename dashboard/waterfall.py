"""A timeline as a table of steps with bars: geometry in attributes, a sentence for each row."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dashboard import words
from dashboard.axis import Axis, Piece, make_axis, percent
from dashboard.templatetags.longwatch import duration
from dashboard.times import write_clock
from ledger import states
from ledger.queries import timeline as spans
from ledger.queries.timeline import Span, Timeline

MAX_TICKS = 100
"""Units that are drawn one by one; of more, every second, third … has a tick."""

JOIN, NARROW = 1.6, 0.9
"""Percent: bars nearer than this are one, and no bar is narrower."""

TURN = 78.0
"""Percent: what stands further right has its word to the left."""

NOTE_WIDTH = 22.0
"""Percent that a word beside a mark may take; where a bar begins within, the mark stands alone."""

WORD, FIGURE = 16.0, 6.0
"""Percent that "round 1", or its number alone, takes on a bar: no word stands on the next one."""

LOOKS = {
    spans.DONE: ("b-ok", "Completed"),
    spans.RUNNING: ("b-run", "Running"),
    spans.STALLED: ("b-still", "Stalled, no progress"),
    spans.SUPERSEDED: ("b-old", "Superseded"),
    spans.FAILED: ("b-failh", "Failed attempt"),
    spans.LOST: ("b-stall", "Lost, lease running out"),
    spans.RELEASED: ("b-free", "Given back"),
    spans.UNDONE: ("b-undo", "Undoing an effect"),
    spans.BACKOFF: ("b-wire", "Backing off"),
    spans.WAITING: ("b-wait", "Waiting for a person"),
    spans.SIGNAL: ("b-wait", "Waiting for a signal"),
    spans.CHILDREN: ("b-wait", "Waiting for its children"),
    spans.BUDGET: ("b-wait", "Waiting for its parent's budget"),
    spans.PAUSED: ("b-pause", "Paused"),
    spans.QUEUED: ("b-queue", "Queued"),
}
"""kind: (css class, what the key calls it)."""

HELD = frozenset({spans.WAITING, spans.SIGNAL, spans.CHILDREN, spans.BUDGET, spans.PAUSED})
"""Where a long time is written beside its bar."""


@dataclasses.dataclass(slots=True)
class Bar:
    """One or more spans of a kind that touch."""

    kind: str
    start: dt.datetime
    end: dt.datetime
    round: int
    left: float
    right: float
    count: int = 1
    open: bool = False

    @property
    def css(self) -> str:
        """The class that gives texture and colour."""
        return LOOKS[self.kind][0]

    @property
    def x(self) -> str:
        """Where it begins, as an attribute."""
        return percent(self.left)

    @property
    def x2(self) -> str:
        """Where it ends, as an attribute."""
        return percent(max(self.right, self.left + NARROW))

    @property
    def width(self) -> str:
        """Its width, as an attribute."""
        return percent(max(self.right - self.left, NARROW))


@dataclasses.dataclass(frozen=True, slots=True)
class Note:
    """A word or a mark in a row, the word after its place or `before` it."""

    at: float
    text: str
    mark: bool = False
    before: bool = False

    @property
    def x(self) -> str:
        """Where it stands."""
        return percent(self.at)


@dataclasses.dataclass(slots=True)
class Row:
    """One step."""

    index: int
    name: str
    look: words.Look
    current: bool
    later: bool
    extra: str = ""
    took: dt.timedelta | None = None
    bars: list[Bar] = dataclasses.field(default_factory=list)
    ticks: list[str] = dataclasses.field(default_factory=list)
    notes: list[Note] = dataclasses.field(default_factory=list)
    label: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Waterfall:
    """The whole picture."""

    rows: list[Row]
    axis: Axis
    ticks: list[tuple[str, str]]
    now: str
    rounds: list[tuple[int, Bar, str]]
    key: list[tuple[str, str]]
    older: int
    stride: int
    start: dt.datetime
    end: dt.datetime
    idle: float

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
    squeeze: bool = True,
) -> Waterfall:
    """Rows, axis and key of a task's `timeline`; `task` is what the page shows of it."""
    axis = make_axis(timeline, squeeze)
    ended = task["status"] in states.FINISHED
    now = None if ended else axis.place(timeline.end)
    rows = list_rows(task, names, units)
    stride = max(1, -(-len(units) // MAX_TICKS))
    found: dict[str, list[Span]] = collections.defaultdict(list)
    for span in timeline.spans:
        found[span.step].append(span)
    for row in rows:
        fill_row(row, found[row.name], axis, stride)
    mark_restarts(rows, timeline, axis)
    kinds = [kind for kind in LOOKS if any(span.kind == kind for span in timeline.spans)]
    return Waterfall(
        rows, axis, axis.list_ticks(now), "" if now is None else percent(now),
        draw_rounds(timeline, axis), [LOOKS[kind] for kind in kinds],
        max(0, int(task["used"]["units"]) - len(units)), stride, timeline.start, timeline.end,
        sum(piece.end - piece.start for piece in axis.squeezed),
    )  # fmt: skip


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


def fill_row(row: Row, found: Sequence[Span], axis: Axis, stride: int) -> None:
    """Put the bars, ticks, notes and the sentence of one step into its row."""
    work = [span for span in found if span.kind in spans.WORK]
    took = [span.took for span in work if span.worker]  # a copy and an edit took nobody any time
    row.took = sum(took, dt.timedelta()) if took else None
    row.bars = join_spans(found, axis)
    units = [span for span in work if span.kind in {spans.DONE, spans.SUPERSEDED}]
    if len(units) > 1:
        row.ticks = [percent(axis.place(span.start)) for span in units[::stride]]
    ends = 0.0
    for bar in row.bars:
        before = bar.right > TURN
        hides = before and ends > bar.left - NOTE_WIDTH  # no word on the bar that ends there
        ends = bar.right
        if bar.kind in HELD and not hides and bar.end - bar.start > dt.timedelta(0, 60):
            at = bar.left if before else max(bar.right, bar.left + NARROW)
            row.notes.append(Note(at, duration(bar.end - bar.start), before=before))
    row.label = describe_row(row)


def join_spans(found: Sequence[Span], axis: Axis) -> list[Bar]:
    """Neighbours of one kind and round as one bar; what lies between two of them keeps its own."""
    bars: list[Bar] = []
    for span in found:
        left, right = axis.place(span.start), axis.place(span.end)
        last = bars[-1] if bars else None
        if last and (last.kind, last.round) == (span.kind, span.round) and left - last.right < JOIN:
            last.end, last.right = max(last.end, span.end), max(last.right, right)
            last.count, last.open = last.count + 1, span.open
        else:
            bars.append(Bar(span.kind, span.start, span.end, span.round, left, right, 1, span.open))
    return bars


def describe_row(row: Row) -> str:
    """What the bars show, for who does not see them; of many bars the last ones."""
    if not row.bars:
        return f"{row.look.label}, nothing yet" if row.current else row.look.label
    parts = []
    for bar in row.bars[-12:]:
        what = LOOKS[bar.kind][1].lower()
        times = f"{bar.count:,} times " if bar.count > 1 else ""
        until = "until now" if bar.open else f"to {write_clock(bar.end)}"
        since = f"{write_clock(bar.start)} {until}, {duration(bar.end - bar.start)}"
        inside = f" in round {bar.round}" if bar.round else ""
        parts.append(f"{what}{inside} {times}{since}")
    text = "; ".join(parts)
    return text[0].upper() + text[1:]


def mark_restarts(rows: Sequence[Row], timeline: Timeline, axis: Axis) -> None:
    """A diamond where work was found wrong, in the row of the step that found it."""
    by_name = {row.name: row for row in rows}
    for one in timeline.restarts:
        row = by_name.get(one.step)
        if row is not None:
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
        bar = Bar(spans.DONE, start, end, number, axis.place(start), axis.place(end))
        wide = bar.right - bar.left
        text = f"round {number}" if wide >= WORD else str(number) if wide >= FIGURE else ""
        found.append((number, bar, text))
    return found
