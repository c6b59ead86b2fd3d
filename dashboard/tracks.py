"""Who held a task, and what it had cost by when: on the axis of its timeline."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from dashboard.axis import Axis
from dashboard.bars import JOIN, NARROW, Bar
from dashboard.templatetags.longwatch import short_owner
from dashboard.times import write_clock
from ledger.queries.spans import WORK, Timeline

SEVERAL = "several workers"
LETTER = 1.3
"""Percent of the width that a letter takes: no name stands where it has no room."""

TOP, BOTTOM = 4.0, 28.0
"""The edges of the money's line, in a track of 32 px."""

TOLD = 4
"""Amounts that the sentence of the money's line names."""


@dataclasses.dataclass(slots=True)
class Hold:
    """A stretch of time for which one worker held the task, again and again."""

    worker: str
    bar: Bar
    lost: bool = False
    css: str = "b-w1"

    @property
    def text(self) -> str:
        """Its name, where it has room."""
        return self.worker if self.bar.right - self.bar.left > LETTER * len(self.worker) else ""


@dataclasses.dataclass(frozen=True, slots=True)
class Money:
    """Amount over time as a line (`path`, in 100 by 32 units) with a sentence."""

    path: str
    total: str
    label: str


def draw_holds(timeline: Timeline, axis: Axis) -> list[Hold]:
    """The lease's holders from left to right; where they change too fast to be drawn, several."""
    found: list[Hold] = []
    for span in timeline.spans:
        if span.kind not in WORK or not span.worker or not axis.shows(span.start, span.end):
            continue
        worker, lost = short_owner(span.worker), span.kind == "lost"
        left, right = axis.place(span.start), axis.place(span.end)
        last = found[-1] if found else None
        near = last is not None and left - last.bar.right < JOIN
        if last and near and (worker, lost) == (last.worker, last.lost):
            pass
        elif last and near and not (lost or last.lost) and _is_narrow(last, left, right):
            last.worker = SEVERAL
        else:
            bar = Bar(span.kind, span.start, span.end, 0, left, right, open=span.open)
            found.append(Hold(worker, bar, lost))
            continue
        last.bar.end = max(last.bar.end, span.end)
        last.bar.right, last.bar.open = max(last.bar.right, right), span.open
    shades = {
        name: f"b-w{n % 2 + 1}" for n, name in enumerate(dict.fromkeys(h.worker for h in found))
    }
    for one in found:
        one.css = "b-stall" if one.lost else shades[one.worker]
    return found


def _is_narrow(last: Hold, left: float, right: float) -> bool:
    """True when neither is wide enough to be told apart; a long hold keeps its own name."""
    return right - left < NARROW and (
        last.worker == SEVERAL or last.bar.right - last.bar.left < NARROW
    )


def say_holds(holds: Sequence[Hold]) -> str:
    """The sentence of that track; of many the last ones."""
    parts = [
        f"{one.worker}{' (lost)' if one.lost else ''} from {write_clock(one.bar.start)} "
        f"{'until now' if one.bar.open else 'to ' + write_clock(one.bar.end)}"
        for one in holds[-12:]
    ]
    return f"Held by {'; '.join(parts)}" if parts else "Nobody held it"


def draw_money(
    task: Mapping[str, Any],
    units: Sequence[dict[str, Any]],
    record: Sequence[dict[str, Any]],
    axis: Axis,
) -> Money | None:
    """What units and failed attempts cost, added up where they ended; None for what cost nothing.

    What is not told of them (older units, a call under way) stands at the beginning, or at the end.
    """
    total = Decimal(task["used"]["cost"])
    if not total:
        return None
    told = [
        (unit["finished_at"], Decimal(unit["cost"])) for unit in units if not unit["copied_from"]
    ]
    told += [(one["at"], Decimal(one["data"]["cost"])) for one in record if one["data"].get("cost")]
    told = sorted((at, cost) for at, cost in told if cost)
    rest = max(Decimal(), total - sum((cost for _, cost in told), Decimal()))
    older = int(task["used"]["units"]) > len(units)
    by = rest if older else Decimal()
    sums: list[tuple[dt.datetime, Decimal]] = []
    for at, cost in told:
        by += cost
        sums.append((at, by))
    whole, top = max(total, by), axis.pieces[-1]
    path, last = f"M{axis.pieces[0].x:.2f} {_say_height(rest if older else Decimal(), whole)}", -1.0
    for at, amount in sums:
        x = axis.place(at)
        if x - last >= 0.2 or amount == by:
            path += f"H{x:.2f}V{_say_height(amount, whole)}"
            last = x
    path += f"H{top.x + top.width:.2f}V{_say_height(total, whole)}"
    some = sums[:: max(1, len(sums) // TOLD)][:TOLD]
    parts = [f"${amount:f} by {write_clock(at)}" for at, amount in some]
    return Money(path, task["used"]["cost"], ", ".join([*parts, f"${total:f} in all"]))


def _say_height(amount: Decimal, whole: Decimal) -> str:
    return f"{BOTTOM - (BOTTOM - TOP) * float(amount / whole):.1f}"
