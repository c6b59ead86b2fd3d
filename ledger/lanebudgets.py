"""Money and tokens of a lane per day and per month (UTC): sums over what was spent, no counter.

A process keeps the sums for `SUMS_SECONDS` and adds what it spends itself. So a lane passes its
budget by no more than what the calls that were under way cost, and those that other processes
began within that time. Of the month only what is young is read again and again.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import time
from collections.abc import Iterable

from django.db.models import Case, F, QuerySet, Sum, When

from ledger import clock
from ledger.models import Lane, Spend
from ledger.models.lane import BUDGETS
from ledger.outcomes import RetryLater

SUMS_SECONDS = 2.0
"""How old the sums may be that a claim or a reservation goes by."""

YOUNG_SECONDS = 300.0
"""No transaction that records an amount is open for so long: what is older is summed once."""

type Used = dict[str, int]
"""What was spent, by the names of `BUDGETS`."""


@dataclasses.dataclass(slots=True)
class _Kept:
    """The sums of some lanes: of this month up to `upto`, and in all as of `read_at`."""

    day: dt.datetime
    upto: dt.datetime
    old: dict[str, Used]
    all: dict[str, Used]
    read_at: float


_kept: _Kept | None = None
_met_at = float("-inf")


def read_used(lanes: Iterable[str]) -> dict[str, Used]:
    """What each lane has spent this day and this month; up to `SUMS_SECONDS` ago."""
    global _kept
    names, kept = set(lanes), _kept
    if not names:
        return {}
    fresh = kept is not None and time.monotonic() - kept.read_at <= SUMS_SECONDS
    if kept is None or not names <= kept.all.keys() or not fresh:
        kept = _kept = _sum_up(names, kept)
    return {lane: kept.all[lane] for lane in names}


def _sum_up(names: set[str], kept: _Kept | None) -> _Kept:
    read_at, now = time.monotonic(), clock.read()
    day = now.replace(hour=0, minute=0, second=0, microsecond=0)
    young = max(day.replace(day=1), now - dt.timedelta(seconds=YOUNG_SECONDS))
    if kept is None or kept.day != day or not names <= kept.old.keys() or kept.upto > now:
        old, upto = _sum_spends(names, day, day.replace(day=1), young), young
    else:
        names, old, upto = set(kept.old), kept.old, kept.upto
        if (young - upto).total_seconds() > YOUNG_SECONDS:
            old, upto = _add(old, _sum_spends(names, day, upto, young)), young
    return _Kept(day, upto, old, _add(old, _sum_spends(names, day, upto)), read_at)


def _sum_spends(
    names: set[str], day: dt.datetime, since: dt.datetime, until: dt.datetime | None = None
) -> dict[str, Used]:
    # `lane` not empty is what the index says of its rows; SQLite wants to read it here too.
    rows: QuerySet[Spend] = Spend.objects.exclude(lane="").filter(lane__in=names, at__gte=since)
    if until is not None:
        rows = rows.filter(at__lt=until)
    sums = {"cost": F("cost"), "tokens": F("tokens_in") + F("tokens_out")}
    asked = {f"{name}_month": Sum(what) for name, what in sums.items()}
    asked |= {f"{name}_day": Sum(Case(When(at__gte=day, then=what))) for name, what in sums.items()}
    used = {name: dict.fromkeys(BUDGETS, 0) for name in names}
    for lane, *found in rows.order_by().values_list("lane").annotate(**asked):
        used[lane] = {one: int(sum_ or 0) for one, sum_ in zip(asked, found, strict=True)}
    return used


def _add(some: dict[str, Used], more: dict[str, Used]) -> dict[str, Used]:
    return {lane: {one: some[lane][one] + more[lane][one] for one in BUDGETS} for lane in some}


def was_met_since(at: float) -> bool:
    """Whether a step here met a lane over its budget after `at` (monotonic): what was read of the
    lanes until then is old, and who goes by it would claim that task again and again."""
    return _met_at > at


def note_spend(lane: str, tokens: int, cost: int) -> None:
    """This process has spent it: known here at once."""
    if _kept is not None and lane in _kept.all:
        used = _kept.all[lane]
        for one in BUDGETS:
            used[one] += cost if one.startswith("cost") else tokens


def describe_over(lane: Lane, used: Used, now: dt.datetime) -> str:
    """Which budget of the lane is used up and until when; empty for none."""
    for one in BUDGETS:
        most = getattr(lane, one)
        if most is not None and used[one] >= most:
            what, _, period = one.partition("_")
            what = "money" if what == "cost" else what
            until = "00:00 UTC" if period == "day" else f"{find_next_month(now):%Y-%m-%d} 00:00 UTC"
            return f"lane over its {period}'s {what} until {until}"
    return ""


def find_next_month(now: dt.datetime) -> dt.date:
    """The first day of the month after `now`'s."""
    return (now.date().replace(day=1) + dt.timedelta(days=32)).replace(day=1)


def has_budget(lane: Lane) -> bool:
    """True for a lane that has any."""
    return any(getattr(lane, one) is not None for one in BUDGETS)


def check_lane(name: str) -> None:
    """Raise RetryLater, which charges nobody, if nothing may be spent in the lane: before a call
    is made. Which the task finds out once, for until then nothing in the lane is claimed."""
    global _met_at
    lane = Lane.objects.filter(pk=name).first()
    if lane is None or not has_budget(lane):
        return
    if why := describe_over(lane, read_used([name])[name], clock.read()):
        _met_at = time.monotonic()
        raise RetryLater(0, why)
