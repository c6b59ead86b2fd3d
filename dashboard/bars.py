"""What a row of a timeline holds: bars, marks, words; geometry in attributes, and a sentence."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence

from dashboard import words
from dashboard.axis import Axis, percent
from dashboard.templatetags.longwatch import duration
from dashboard.times import write_clock
from ledger.queries import spans
from ledger.queries.spans import Span

JOIN, NARROW = 1.6, 0.9
"""Percent: bars nearer than this are one, and no bar is narrower."""

TURN = 78.0
"""Percent: what stands further right has its word to the left."""

NOTE_WIDTH = 22.0
"""Percent that a word beside a mark may take; where a bar begins within, the mark stands alone."""

GLYPHS = {
    spans.DONE: "ok", spans.RUNNING: "run", spans.STALLED: "stall", spans.SUPERSEDED: "ok",
    spans.FAILED: "fail", spans.LOST: "lost", spans.RELEASED: "idle", spans.UNDONE: "fix",
    spans.BACKOFF: "sched", spans.PAUSED: "pause", spans.QUEUED: "idle",
}  # fmt: skip
"""The shape of each kind; of all that waits another."""

COLOURS = {
    spans.DONE: "is-ok", spans.RUNNING: "is-run", spans.STALLED: "is-stall",
    spans.FAILED: "is-fail", spans.LOST: "is-stall", spans.UNDONE: "is-fix",
}  # fmt: skip

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


@dataclasses.dataclass(frozen=True, slots=True)
class Ahead:
    """How long a step, or what is left of it, takes as a rule; drawn where it has a `width`."""

    typical: float
    x: str = ""
    width: str = ""


@dataclasses.dataclass(slots=True)
class Row:
    """One step; `sub` what was tried at it, or what happened: of the unit, or the event, `seq`.

    `closed` is the number of attempts that are not listed below it.
    """

    index: int
    name: str
    look: words.Look
    current: bool
    later: bool
    sub: bool = False
    unit: int = 0
    event: int = 0
    closed: int = 0
    at: dt.datetime | None = None
    dot: str = ""
    expects: Ahead | None = None
    extra: str = ""
    took: dt.timedelta | None = None
    bars: list[Bar] = dataclasses.field(default_factory=list)
    ticks: list[str] = dataclasses.field(default_factory=list)
    notes: list[Note] = dataclasses.field(default_factory=list)
    label: str = ""


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
        if not axis.shows(span.start, span.end):
            continue
        left, right = axis.place(span.start), axis.place(span.end)
        last = bars[-1] if bars else None
        if last and (last.kind, last.round) == (span.kind, span.round) and left - last.right < JOIN:
            last.end, last.right = max(last.end, span.end), max(last.right, right)
            last.count, last.open = last.count + 1, span.open
        else:
            bars.append(Bar(span.kind, span.start, span.end, span.round, left, right, 1, span.open))
    return bars


def show_kind(kind: str) -> words.Look:
    """How an attempt, or a wait, of a kind is shown in words and by a shape."""
    waits = "is-wait" if LOOKS[kind][0] == "b-wait" else "is-idle"
    return words.Look(LOOKS[kind][1], GLYPHS.get(kind, "wait"), COLOURS.get(kind, waits))


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
