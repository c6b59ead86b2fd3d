"""The rules of retention, applied: one walk over what is over, the oldest first, in short steps.

Everything may be killed at any instant, and run again: what is done is not done twice, and what was
begun is finished by the next pass. Nothing here is in a hurry: after each transaction it sleeps for
as long as that took, and nine times as long beside busy workers.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from django.db.models import Max, Q

from ledger import clock, states
from ledger.collecting import being_alone
from ledger.events import Actor
from ledger.keeping import Rule, find_rule, read_rules
from ledger.models import AuditEntry, StepOutput, Task
from ledger.transitions import deleting, thinning

CONTENTS: Final = "contents"
TASKS: Final = "tasks"
"""What goes."""

UNSEEN: Final = "unseen"
NEEDED: Final = "needed"
"""Why a task stays: nobody has looked at it since it gave up; others need it, or it spent money
this month."""

PAGE: Final = 1_000
BATCH: Final = 50
"""Tasks of one look at the index, and of one transaction."""

UNITS: Final = 500
"""Of the tasks of one batch together; a larger task is a batch of its own."""


BUSY: Final = 100.0
LOOK_SECONDS: Final = 1.0
"""Units a second from which on retention takes a tenth of the time only; how often it looks."""


class Row(NamedTuple):
    """What is read of each task that is over."""

    id: UUID
    finished_at: dt.datetime
    lane: str
    workflow: str
    status: str
    used_units: int
    thinned_days: float | None
    seen_at: dt.datetime | None


class Batch(NamedTuple):
    """Tasks to which the same happens, and how many days after their end; for those that were to go
    and have to stay, also after how many their contents go."""

    what: str
    days: float
    payload: float
    ids: list[UUID]


class Forgotten(NamedTuple):
    """How many tasks lost their contents, went, or stay and why; and whether time was up."""

    numbers: Counter[str]
    more: bool


def forget(actor: Actor, *, seconds: float = float("inf"), dry: bool = False) -> Forgotten:
    """Apply the rules for at most `seconds`; `dry` only counts what would go.

    Raises NotCollectable beside another one, ImproperlyConfigured for rules that can't be read.
    """
    rules, until = read_rules(), time.monotonic() + seconds
    numbers: Counter[str] = Counter()
    if not rules:
        return Forgotten(numbers, False)
    now = clock.read()
    if dry:
        gone: set[UUID] = set()
        for batch in list_batches(rules, now, numbers):
            _count(batch, now, numbers, gone)
        return Forgotten(numbers, False)
    with being_alone():
        pace = _Pace()
        steps = (step for one in list_batches(rules, now, numbers)
                 for step in _take(one, now, numbers, actor, pace))  # fmt: skip
        more = any(time.monotonic() > until for _ in steps)
        thinning.strip_alerts()
    return Forgotten(numbers, more)


def describe(gone: Forgotten) -> str:
    """In one line, for people."""
    numbers = gone.numbers
    text = (
        f"contents of {numbers[CONTENTS]:,} tasks and {numbers[TASKS]:,} whole tasks; "
        f"{numbers[UNSEEN]:,} that gave up wait to be looked at, {numbers[NEEDED]:,} are needed by "
        "others, or spent money this month"
    )
    return f"{text}; time was up, the next run goes on" if gone.more else text


def list_batches(rules: Sequence[Rule], now: dt.datetime, numbers: Counter[str]) -> Iterator[Batch]:
    """What is due, in the order of the ends; what nobody has looked at is counted."""
    open_: dict[tuple[str, float, float], list[Row]] = {}
    for row in _list_over(rules, now):
        rule = find_rule(list(rules), row.lane, row.workflow, row.status)
        if rule is None or not (key := _choose(rule, row, now)):
            continue
        if row.status == states.DEAD and (row.seen_at is None or row.seen_at < row.finished_at):
            numbers[UNSEEN] += 1
            continue
        rows = open_.setdefault(key, [])
        rows.append(row)
        if len(rows) >= BATCH or sum(one.used_units for one in rows) >= UNITS:
            yield Batch(*key, [one.id for one in open_.pop(key)])
    for key, rows in open_.items():
        yield Batch(*key, [one.id for one in rows])


def _choose(rule: Rule, row: Row, now: dt.datetime) -> tuple[str, float, float] | None:
    """What is due for the task, and after how many days; the days of its contents."""
    payload, task = rule.days
    age = (now - row.finished_at).total_seconds() / 86_400
    if age > task:
        return TASKS, task, payload
    due = age > payload and row.thinned_days is None
    return (CONTENTS, payload, payload) if due else None


def _list_over(rules: Sequence[Rule], now: dt.datetime) -> Iterator[Row]:
    """What is old enough for any rule, over the index on the end."""
    contents = find_cutoff(now, min(min(rule.days) for rule in rules))
    tasks = find_cutoff(now, min(rule.days[1] for rule in rules))
    old = Task.objects.filter(finished_at__lt=contents)
    old = old.filter(Q(thinned_days=None) | Q(finished_at__lt=tasks))
    rows = old.order_by("finished_at", "id").values_list(*Row._fields)
    last: Row | None = None
    while True:
        after = Q()
        if last is not None:
            after = Q(finished_at__gt=last.finished_at) | Q(
                finished_at=last.finished_at, id__gt=last.id
            )
            after &= Q(finished_at__gte=last.finished_at)  # where the index is entered
        found = [Row(*row) for row in rows.filter(after)[:PAGE]]
        yield from found
        if len(found) < PAGE:
            return
        last = found[-1]


def find_cutoff(now: dt.datetime, days: float) -> dt.datetime:
    """So many days before `now`; the beginning of time for endless ones."""
    if days == float("inf"):
        return dt.datetime.min.replace(tzinfo=dt.UTC) + dt.timedelta(days=2)
    return now - dt.timedelta(days=days)


def _count(batch: Batch, now: dt.datetime, numbers: Counter[str], gone: set[UUID]) -> None:
    """As `_take`, and nothing is done; `gone` are tasks that would be, and name others."""
    tasks = list(Task.objects.filter(pk__in=batch.ids).only("id", "parent_id", "copied_from_id"))
    needed = thinning.find_needed(tasks, find_cutoff(now, batch.days))
    free = [key for key in batch.ids if key not in needed]
    if batch.what == TASKS:
        free = deleting.list_free(free, now, gone)
        naming = {task.pk for task in tasks if task.parent_id or task.copied_from_id}
        gone |= naming.intersection(free)
    numbers[batch.what] += len(free)
    if rest := _find_rest(batch, free, numbers):
        _count(rest, now, numbers, gone)


def _find_rest(batch: Batch, free: list[UUID], numbers: Counter[str]) -> Batch | None:
    """Those that were to go as a whole, have to stay, and have their contents still."""
    kept = set(batch.ids).difference(free)
    if batch.what == CONTENTS:
        numbers[NEEDED] += len(kept)
        return None
    whole = Task.objects.filter(pk__in=kept, thinned_days=None) if batch.payload < math.inf else ()
    due = [task.pk for task in whole]
    numbers[NEEDED] += len(kept) - len(due)
    return Batch(CONTENTS, batch.payload, batch.payload, due) if due else None


def _take(
    batch: Batch, now: dt.datetime, numbers: Counter[str], actor: Actor, pace: _Pace
) -> Iterator[None]:
    """Do it; yields, and sleeps, after each transaction."""
    free = deleting.list_free(batch.ids, now) if batch.what == TASKS else batch.ids
    free = thinning.mark_tasks(free, find_cutoff(now, batch.days))  # from here on nobody joins
    rest = _find_rest(batch, free, numbers)
    if free:
        pace.rest()
        yield
        yield from _strip_or_delete(batch, free, numbers, actor, pace)
    if rest:
        yield from _take(rest, now, numbers, actor, pace)


def _strip_or_delete(
    batch: Batch, free: list[UUID], numbers: Counter[str], actor: Actor, pace: _Pace
) -> Iterator[None]:
    if batch.what == TASKS:
        audits = thinning.strip_tasks(free, batch.days, [AuditEntry])
        rows: Iterator[int] = itertools.chain(audits, deleting.delete_rows(free))
    else:
        rows = thinning.strip_tasks(free, batch.days)
    for written in rows:
        if written:
            pace.rest()
            yield
    if batch.what == TASKS:
        numbers[TASKS] += deleting.delete_tasks(free, batch.days, actor)
    else:
        thinning.end_thinning(free, batch.days, actor)
        numbers[CONTENTS] += len(free)
    pace.rest()
    yield


class _Pace:
    """Sleeps for as long as was worked since the last time; while workers store many units, for
    nine times as long: half of a core is a third of what two workers do on two cores."""

    def __init__(self) -> None:
        self._since = self._looked = time.monotonic()
        self._last, self._times = _read_last_unit(), 1.0

    def rest(self) -> None:
        """Let others go first."""
        now = time.monotonic()
        if now - self._looked > LOOK_SECONDS:
            last = _read_last_unit()
            busy = (last - self._last) / (now - self._looked) > BUSY
            self._times, self._last, self._looked = (9.0 if busy else 1.0), last, now
        time.sleep(min(5.0, self._times * (now - self._since)))
        self._since = time.monotonic()


def _read_last_unit() -> int:
    """The number of the newest output: how far it rises tells how many were stored."""
    return int(StepOutput.objects.aggregate(last=Max("pk"))["last"] or 0)
