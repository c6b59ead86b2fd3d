"""What a task did and when: its units and events, read within bounds and put in order of time.

`build_timeline` is pure. Every time is the database's, and still nothing is taken on trust: a clock
that stepped back gives an empty span, never a negative one.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from uuid import UUID

from django.db.models import (
    Case,
    Exists,
    F,
    Func,
    JSONField,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    TextField,
    When,
)

from ledger import states
from ledger.conf import format_money
from ledger.models import Event, Handoff, StepOutput, Task
from ledger.queries.editing import look_for_edit
from ledger.queries.history import show_event
from ledger.queries.seen import hide_text, hide_value
from ledger.queries.spans import (
    BACKOFF,
    DONE,
    FAILED,
    LOST,
    PAUSED,
    QUEUED,
    RELEASED,
    RUNNING,
    STALLED,
    SUPERSEDED,
    UNDONE,
    WAITING,
    WORK,
    Recovery,
    Restart,
    Span,
    Timeline,
)

MAX_UNITS = 1_000
"""The last units of a task that are drawn; older ones are told as a number."""

MAX_EVENTS = 500

LEAST_QUEUED = dt.timedelta(seconds=1)
"""A shorter wait for a worker is not drawn."""

ATTEMPTS = {"attempt_failed": FAILED, "released": RELEASED, "reclaimed": LOST}
SPENT = ATTEMPTS | {"compensated": UNDONE}
"""Events that tell of an attempt: of a unit without an output, or of a compensation."""

PARKS = {"scheduled": BACKOFF, "approval_requested": WAITING, "waiting": WAITING, "paused": PAUSED}
PARKED = {
    states.SCHEDULED: BACKOFF, states.WAITING: WAITING, states.PAUSED: PAUSED,
    states.QUEUED: QUEUED,
}  # fmt: skip
GOES_ON = frozenset(
    "promoted repaired retried cancelled completed failed dead approval_expired".split()
)
"""Events after which a task no longer waits for what it waited for."""


class _Lean(Func):
    """An event's data without the log and the traceback: up to 24 KB a row that no line shows."""

    output_field = JSONField()

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        """A function of SQLite's."""
        template = "json_remove(%(expressions)s, '$.log_tail', '$.error.traceback')"
        return self.as_sql(compiler, connection, template=template)

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        """An operator of PostgreSQL's."""
        template = "(%(expressions)s - 'log_tail' #- '{error,traceback}')"
        return self.as_sql(compiler, connection, template=template)


def list_units(task_id: UUID, *, step: str = "", seq: int = 0) -> list[dict[str, Any]]:
    """The last units, oldest first, without output and log but for the chosen one.

    That is the unit `seq`, or the last one of `step`, or the last one of all: with `chosen` true,
    `shown_output`, `shown_log`, in `told` the key of the hand-off that it was given, and what
    `look_for_edit` says. `sleeps` is alike in all: whether the task ever slept.
    """
    kept = StepOutput.objects.filter(task=task_id)
    wanted = kept.filter(seq=seq) if seq else kept.filter(step_name=step) if step else kept
    chosen = Q(seq=Subquery(wanted.order_by("-seq").values("seq")[:1]))
    sleeps = Event.objects.filter(task=task_id, kind="scheduled", data__reason=states.SLEEP)
    told = Handoff.objects.filter(task=task_id, fence=OuterRef("fence")).order_by("-id")
    columns = "seq round step_index step_name turn started_at finished_at worker fence tokens cost"
    looked = look_for_edit(task_id)
    found = kept.annotate(
        chosen=Case(When(chosen, then=True), default=False),
        shown_output=Case(When(chosen, then=F("output")), output_field=JSONField()),
        shown_log=Case(When(chosen, then=F("log_tail")), output_field=TextField()),
        told=Case(When(chosen, then=Subquery(told.values("id")[:1]))),
        sleeps=Exists(sleeps),
        **{name: Case(When(chosen, then=look)) for name, look in looked.items()},
    ).order_by("-seq")
    own = [*columns.split(), "copied_from", "superseded_in_round", "chosen"]
    own += ["shown_output", "shown_log", "told", "sleeps", *looked]
    return [
        row
        | {
            "cost": format_money(row["cost"]),
            "shown_output": hide_value(row["shown_output"]),
            "shown_log": hide_text(row["shown_log"] or ""),
        }
        for row in reversed(found.values(*own)[:MAX_UNITS])
    ]


def list_record(
    task_id: UUID, *, before: int = 0, kind: str = "", limit: int = MAX_EVENTS
) -> list[dict[str, Any]]:
    """The last events, newest first, without what only says that a loop slept between its units."""
    rows: QuerySet[Event] = Event.objects.filter(task=task_id)
    rows = rows.filter(kind=kind) if kind else rows.exclude(
        Q(kind="scheduled", data__reason=states.SLEEP)
        | (Q(kind="promoted") & ~Q(data__reason=states.DECIDED))
    )  # fmt: skip
    if before:
        rows = rows.filter(seq__lt=before)
    found = rows.defer("data").annotate(lean=_Lean("data")).order_by("-seq")[:limit]
    for row in found:
        row.data = row.lean
    return [show_event(row) for row in found]


def list_kinds(task_id: UUID) -> set[str]:
    """The kinds of events that the task has."""
    return set(Event.objects.filter(task=task_id).values_list("kind", flat=True).distinct())


def build_timeline(
    task: Task,
    units: Sequence[dict[str, Any]],
    events: Sequence[dict[str, Any]],
    now: dt.datetime,
) -> Timeline:
    """Units and events (in any order) of `task`, as of `now`, as spans.

    Pure: `task` is only read. A parked span (backoff, waiting, paused) ends with the event that
    moved the task on, or when the next attempt began.
    """
    ordered = sorted(events, key=lambda event: event["seq"])
    attempts = sorted(
        [*_read_units(units), *_read_attempts(ordered)], key=lambda span: (span.start, span.seq)
    )
    end = task.finished_at or now
    current = _read_current(task, attempts, now)
    parked = list(_read_parked(task, ordered, [*attempts, *current], end))
    spans = sorted([*attempts, *parked, *current], key=lambda span: (span.start, span.seq))
    spans += _read_queued(task, units, ordered, spans)
    spans.sort(key=lambda span: (span.start, span.seq))
    starts = [span.start for span in spans]
    return Timeline(
        min(starts, default=task.created_at),
        max([end, task.created_at, *(span.end for span in spans)]),
        spans,
        [_read_restart(event) for event in ordered if _is_restart(event)],
        _read_recoveries(ordered, spans),
        [event["at"] for event in ordered if event["kind"] == "stale_write_refused"],
    )


def _read_units(units: Iterable[dict[str, Any]]) -> Iterator[Span]:
    for unit in units:
        yield Span(
            DONE if unit["superseded_in_round"] is None else SUPERSEDED,
            unit["step_name"], unit["started_at"], max(unit["started_at"], unit["finished_at"]),
            unit["turn"], unit["round"], unit["seq"], unit["worker"] if unit["fence"] else "",
        )  # fmt: skip


def _read_attempts(events: Iterable[dict[str, Any]]) -> Iterator[Span]:
    """Attempts without an output; and compensations, at the step where the task was to end.

    The round is not in an event; restarts before it count.
    """
    restarts, ends_at = 0, ""
    for event in events:
        data = event["data"]
        if _is_restart(event):
            restarts = int(data["round"])
        if event["kind"] == "compensating":
            ends_at = event["step"]
        if event["kind"] not in SPENT:
            continue
        start = _read_time(data.get("started_at")) or event["at"]
        step = ends_at if event["kind"] == "compensated" and ends_at else event["step"]
        worker = data.get("worker") or event["actor"]["id"]
        yield Span(
            SPENT[event["kind"]], step, min(start, event["at"]), event["at"],
            event["turn"], restarts, event["seq"], worker,
        )  # fmt: skip


def _read_current(task: Task, attempts: Sequence[Span], now: dt.datetime) -> list[Span]:
    """What is going on: the running unit, how long it stands still, or the wait for a worker."""
    if task.status == states.RUNNING:
        return list(_read_running(task, now))
    if task.status != states.QUEUED:
        return []
    last = max((span.end for span in attempts), default=task.created_at)
    start = min(max(last, task.available_at), now)
    return [
        Span(
            QUEUED, task.step_name, start, now, task.turn, task.round, task.event_seq + 1, open=True
        )
    ]


def _read_running(task: Task, now: dt.datetime) -> Iterator[Span]:
    """The running unit until now; of a stalled one (`find_task` says so) until it last moved."""
    start = min(task.claimed_at or task.updated_at, now)
    kind = RUNNING if task.ending is None else UNDONE
    span = Span(kind, task.step_name, start, now, task.turn, task.round,
                task.event_seq + 1, task.lease_owner, open=True)  # fmt: skip
    alive = task.lease_until is not None and task.lease_until >= now
    if not (alive and getattr(task, "stalled", False)):
        yield span
        return
    moved = min(max(start, task.last_progress_at or start), now)
    if moved > start:
        yield dataclasses.replace(span, end=moved, open=False)
    yield dataclasses.replace(span, kind=STALLED, start=moved)


def _read_queued(
    task: Task,
    units: Sequence[dict[str, Any]],
    events: Sequence[dict[str, Any]],
    spans: Sequence[Span],
) -> Iterator[Span]:
    """The waits for a worker before attempts, where nothing else can have held the task.

    After a unit of a workflow that sleeps nobody knows: the sleeps are not read.
    """
    sleeps = any(unit.get("sleeps") for unit in units)
    told = next((event["data"] for event in events if event["kind"] == "submitted"), None)
    ready: dt.datetime | None = None
    if told is not None and len(units) < MAX_UNITS:
        ready = _read_time(told.get("until")) or task.created_at
    for span in spans:
        by_worker = span.kind in WORK and bool(span.worker)
        if ready is not None and by_worker and span.start - ready >= LEAST_QUEUED:
            yield dataclasses.replace(span, kind=QUEUED, start=ready, end=span.start, open=False)
        stored = span.kind in {DONE, SUPERSEDED}
        ready = None if sleeps and stored else max(span.end, ready or span.end)


def _read_parked(
    task: Task, events: Sequence[dict[str, Any]], attempts: Sequence[Span], end: dt.datetime
) -> Iterator[Span]:
    """The times in which nobody was to work on the task, each until what ended it."""
    starts = sorted(span.start for span in attempts)
    held: dict[str, Any] | None = None
    for event in events:
        if held is not None and _moves_on(held, event):
            yield _park(held, _find_end(held, event["at"], starts))
            held = None
        if event["kind"] in PARKS:
            held = event
    if held is None:
        return
    stays = PARKED.get(task.status) == PARKS[held["kind"]]
    over = _find_end(held, end, [] if stays else starts)
    yield dataclasses.replace(_park(held, over), open=stays)


def _moves_on(held: dict[str, Any], event: dict[str, Any]) -> bool:
    """True when `event` ends what `held` began."""
    kind = event["kind"]
    if kind == "resumed":
        return bool(held["kind"] == "paused")
    if kind == "approval_decided":
        return not event["data"].get("until")  # otherwise it acts when its undo window is over
    if kind == "edited":
        before, after = (event["data"].get(name) or {} for name in ("before", "after"))
        return bool(before.get("status") != after.get("status"))
    # Or what can only begin when it is no longer parked.
    return kind in GOES_ON or kind in PARKS or kind in ATTEMPTS


def _find_end(held: dict[str, Any], at: dt.datetime, starts: Sequence[dt.datetime]) -> dt.datetime:
    """Not after the next attempt began, and no backoff after the time it was due."""
    later = [start for start in starts if start >= held["at"]]
    due = _read_time(held["data"].get("until")) if held["kind"] == "scheduled" else None
    began: dt.datetime = held["at"]
    return max(began, min([at, *later[:1], *([due] if due else [])]))


def _park(held: dict[str, Any], end: dt.datetime) -> Span:
    kind = PARKS[held["kind"]]
    if held["kind"] == "waiting":
        kind = str(held["data"].get("reason") or kind)
    return Span(kind, held["step"], held["at"], end, held["turn"], seq=held["seq"])


def _is_restart(event: dict[str, Any]) -> bool:
    """A new round: a repair, a person's restart, or an output that a person edited."""
    return event["kind"] == "repaired" or (event["kind"] == "edited" and "round" in event["data"])


def _read_restart(event: dict[str, Any]) -> Restart:
    data, actor = event["data"], event["actor"]
    by = f"{actor['kind']}:{actor['id']}" if actor["id"] else actor["kind"]
    feedback = data.get("feedback", data.get("reason"))
    if isinstance(feedback, dict) and feedback.get("by"):  # sent back: a person's, by a sweep
        by = str(feedback["by"])
    return Restart(
        event["seq"], event["at"], event["step"], str(data.get("to", "")), int(data["round"]), by,
        bool(data.get("by_workflow")), feedback, event["kind"] == "edited",
    )  # fmt: skip


def _read_recoveries(events: Iterable[dict[str, Any]], spans: Sequence[Span]) -> list[Recovery]:
    found = []
    for event in events:
        if event["kind"] != "reclaimed":
            continue
        lost = next(span for span in spans if span.seq == event["seq"])
        again = (
            span for span in spans
            if span.kind in WORK and span.start >= lost.end and span.seq > lost.seq
            and (span.step, span.turn) == (lost.step, lost.turn)
        )  # fmt: skip
        number = int(event["data"].get("reclaims") or 0)
        found.append(Recovery(event["seq"], lost, event["fence"], number, next(again, None)))
    return found


def _read_time(text: Any) -> dt.datetime | None:
    try:
        return dt.datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
