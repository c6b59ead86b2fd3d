"""A timeline row by row: each attempt and wait below its step, or each event; what is narrowed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from dashboard import shown, words
from dashboard.axis import Axis, percent
from dashboard.bars import LOOKS, Row, describe_row, join_spans, show_kind
from dashboard.wish import EVENTS, Wish
from ledger.queries import spans
from ledger.queries.spans import WORK, Span

MAX_ROWS = 100
"""Rows of a timeline; of more the last ones, the others behind links."""

FAILURES = frozenset({spans.FAILED, spans.LOST, spans.STALLED})
BAD_EVENTS = frozenset(
    "attempt_failed reclaimed failed dead approval_expired stale_write_refused tool_denied "
    "circling limit_warned".split()
)
"""What "failed only" leaves in."""

SHORT = {
    spans.LOST: "Lost", spans.STALLED: "Stalled", spans.FAILED: "Failed", spans.UNDONE: "Undoing",
    spans.WAITING: "Waits for a person", spans.SIGNAL: "Waits for a signal",
    spans.CHILDREN: "Waits for children", spans.BUDGET: "Waits for budget",
}  # fmt: skip
"""Kinds that have no room for what the key calls them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Cut:
    """How many rows stand before and after those shown, and what to skip to see them."""

    earlier: int = 0
    before: int = 0
    later: int = 0
    after: int = 0


def cut_rows[T](items: Sequence[T], skip: int, size: int) -> tuple[Sequence[T], Cut]:
    """The last `size` of them, or those before the last `skip`."""
    end = len(items) - min(skip, max(0, len(items) - 1))
    start = max(0, end - size)
    return items[start:end], Cut(start, skip + size, len(items) - end, max(0, skip - size))


def narrow_spans(found: Sequence[Span], wish: Wish, record: Sequence[dict[str, Any]]) -> list[Span]:
    """Those that the filters leave in; all without one."""
    if not wish.narrows:
        return list(found)
    told = {one["seq"]: one for one in record} if wish.find else {}
    return [
        span for span in found
        if (not wish.failed or span.kind in FAILURES)
        and (not wish.kind or span.kind == wish.kind)
        and _holds(wish.find, span.step, f"turn {span.turn}", LOOKS[span.kind][1], span.worker,
                   _say_event(told.get(span.seq)))
    ]  # fmt: skip


def _holds(text: str, *parts: str) -> bool:
    return not text or text.casefold() in " ".join(parts).casefold()


def _say_event(event: Mapping[str, Any] | None) -> str:
    return shown.summarise_data(event["data"]) if event else ""


def list_attempts(
    rows: Sequence[Row], found: Mapping[str, Sequence[Span]], axis: Axis, wish: Wish, step: str
) -> tuple[list[Row], Cut]:
    """Each step with its attempts and waits below it; of too many those of one step."""
    visible = {
        row.name: [span for span in found[row.name] if axis.shows(span.start, span.end)]
        for row in rows
    }
    many = len(rows) + sum(map(len, visible.values())) > MAX_ROWS
    shown_rows: list[Row] = []
    cut = Cut()
    for row in rows:
        shown_rows.append(row)
        own: Sequence[Span] = visible[row.name]
        if many and row.name != (wish.open or step):
            row.closed = len(own)
            continue
        if many:
            own, cut = cut_rows(own, wish.skip, max(1, MAX_ROWS - len(rows)))
        shown_rows += [_list_span(row, span, axis) for span in own]
    return shown_rows, cut


def _list_span(head: Row, span: Span, axis: Axis) -> Row:
    """One attempt, or wait, as a row."""
    stored = span.kind in {spans.DONE, spans.SUPERSEDED}
    told = not (stored or span.open or span.kind == spans.QUEUED)
    look = show_kind(span.kind)
    look = dataclasses.replace(look, label=SHORT.get(span.kind, look.label))
    name = f"turn {span.turn}" if span.kind in WORK else ""
    if name and span.round:
        name += f", r{span.round}"  # the label of its bar has the whole word
    row = Row(head.index, name, look, span.open, False, sub=True, took=span.took,
              unit=span.seq if stored else 0, event=span.seq if told else 0,
              bars=join_spans([span], axis))  # fmt: skip
    row.label = describe_row(row)
    return row


def list_events(
    record: Sequence[dict[str, Any]],
    units: Sequence[dict[str, Any]],
    found: Sequence[Span],
    axis: Axis,
    wish: Wish,
) -> tuple[list[Row], Cut]:
    """Each event, and each output that was stored, in order."""
    work = {span.seq: span for span in found if span.kind in WORK or span.kind == spans.UNDONE}
    items = [*record]
    items += [
        {"seq": unit["seq"], "at": unit["finished_at"], "kind": "checkpoint", "turn": unit["turn"],
         "step": unit["step_name"], "data": {"worker": unit["worker"]}}
        for unit in units
    ]  # fmt: skip
    wanted = sorted(
        (one for one in items
         if axis.shows(one["at"], one["at"]) and _is_wanted(one["kind"], one, wish)),
        key=lambda one: int(one["seq"]),
    )  # fmt: skip
    kept, cut = cut_rows(wanted, wish.skip, MAX_ROWS)
    return [_list_event(one, work.get(one["seq"]), axis) for one in kept], cut


def _is_wanted(kind: str, event: Mapping[str, Any], wish: Wish) -> bool:
    look = words.EVENTS.get(kind)
    return (
        (not wish.failed or kind in BAD_EVENTS)
        and (not wish.kind or kind == wish.kind)
        and _holds(
            wish.find, event["step"], f"turn {event['turn']}", look.label if look else kind,
            str(event["data"].get("worker") or ""), _say_event(event),
        )
    )  # fmt: skip


def _list_event(event: Mapping[str, Any], span: Span | None, axis: Axis) -> Row:
    kind = event["kind"]
    look = words.EVENTS.get(kind) or words.Look(kind, "idle", "is-idle")
    name = str(event["step"]) + (f", turn {event['turn']}" if event["turn"] else "")
    stored = kind == "checkpoint"
    row = Row(0, name, look, False, False, sub=True, at=event["at"],
              unit=event["seq"] if stored else 0, event=0 if stored else event["seq"],
              dot=percent(axis.place(event["at"])))  # fmt: skip
    if span is not None:
        row.bars = join_spans([span], axis)
    said = "" if stored else _say_event(event)
    row.label = ". ".join(filter(None, (f"{look.label}{' in ' if name else ''}{name}", said)))
    return row


def list_types(
    mode: str, found: Sequence[Span], record: Sequence[dict[str, Any]]
) -> list[tuple[str, str]]:
    """(kind, what it is called) of what the timeline can be narrowed to."""
    if mode == EVENTS:
        there = {one["kind"] for one in record} | {"checkpoint"}
        return sorted(((k, look.label) for k, look in words.EVENTS.items() if k in there),
                      key=lambda one: one[1])  # fmt: skip
    kinds = {span.kind for span in found}
    return [(kind, LOOKS[kind][1]) for kind in LOOKS if kind in kinds]
