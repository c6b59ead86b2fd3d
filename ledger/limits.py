"""The bounds of a task and what it has used of them; the record of single amounts."""

from __future__ import annotations

import datetime as dt
import hashlib
import itertools
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Protocol
from uuid import UUID

from django.db import IntegrityError
from django.db.models import F

from ledger import bounds, clock, conf, hours, lanebudgets, precedence, sql, states
from ledger.canonical import clean_text
from ledger.errors import InvalidInput, LeaseLost, LimitReached, TaskNotFound
from ledger.events import Actor, record_event
from ledger.models import Reservation, Spend, Task

NAMES = ("units", "tokens", "cost", "wall", "deadline_at")
_SHARED = (
    "parent_id", "status", "limit_tokens", "limit_cost", "limit_units", "used_tokens_in",
    "used_tokens_out", "used_cost", "used_units", "reserved_tokens", "reserved_cost",
)  # fmt: skip
_LARGEST = 2**53
"""Counts stay exact in every JSON reader, browsers included."""
_MOST = 2**63 - 1
"""Of a sum."""
WARN_AT = (80, 50)
"""Per cent of a limit of tokens or money whose use is told by an event."""


class Used(Protocol):
    """What `find_exhausted` reads: a Task or a claim."""

    limit_units: int
    limit_tokens: int
    limit_cost: int
    used_units: int
    used_tokens_in: int
    used_tokens_out: int
    used_cost: int


def find_exhausted(task: Used) -> str | None:
    """The reason code of the first limit that leaves no room for another unit, or None.

    A limit of 0 tokens or money forbids spending, not running.
    """
    return states.LIMIT_UNITS if task.used_units >= task.limit_units else find_spent(task)


def find_spent(task: Used) -> str | None:
    """The same of the two limits that children share: tokens and money."""
    if task.used_tokens_in + task.used_tokens_out >= max(task.limit_tokens, 1):
        return states.LIMIT_TOKENS
    if task.used_cost >= max(task.limit_cost, 1):
        return states.LIMIT_COST
    return None


def find_overdue(task: Task, now: dt.datetime) -> str | None:
    """The reason code of a passed wall limit or deadline, or None. `now` is the database's."""
    if task.deadline_at is not None and task.deadline_at <= now:
        return states.LIMIT_DEADLINE
    if task.wall_until is not None and task.wall_until <= now:
        return states.LIMIT_WALL
    return None


def asks_people(task: Task, reason: str) -> bool:
    """True when a used-up limit of the task is a question to people, not its end."""
    return task.on_limit == "ask" and reason in states.LIMIT_REASONS


def describe_reason(reason: str) -> str:
    """A limit's reason code as a sentence."""
    return f"The limit of {reason.removeprefix('limit_')} is used up."


def shift_wall(task: Task, seconds: float | None) -> dict[str, Any]:
    """The columns of a new wall limit: what was used of the old one stays used."""
    if seconds is None:
        return {}
    more = seconds - task.limit_wall
    if task.wall_until is not None:
        return {"wall_until": task.wall_until + dt.timedelta(seconds=more)}
    return {"wall_left": (task.wall_left or 0.0) + more}


def read_limits(given: Mapping[str, Any] | None, fill: bool = True) -> dict[str, Any]:
    """Limits as clients write them as columns: `{units, tokens, cost, wall, deadline_at}`.

    With `fill` what is not given gets its default. `cost` is a decimal string, `wall` seconds,
    `deadline_at` an aware datetime or RFC 3339 text. Raises InvalidInput naming the field.
    """
    given = dict(given or {})
    unknown = sorted(set(given) - set(NAMES))
    if unknown:
        raise InvalidInput(f"limits.{unknown[0]}", f"is no limit; there are {', '.join(NAMES)}")
    tunables = conf.load()
    columns: dict[str, Any] = {}
    if fill:
        columns = {
            "limit_units": tunables.limit_units,
            "limit_tokens": tunables.limit_tokens,
            "limit_cost": tunables.limit_cost_nano,
            "limit_wall": tunables.wall_seconds,
            "deadline_at": None,
        }
    for name, value in given.items():
        if value is None:
            continue
        columns["deadline_at" if name == "deadline_at" else f"limit_{name}"] = _read_one(
            name, value
        )
    return columns


def _read_one(name: str, value: Any) -> Any:
    field = f"limits.{name}"
    if name == "cost":
        try:
            return conf.parse_money(value, field)
        except ValueError as error:
            raise InvalidInput(field, str(error).removeprefix(f"{field}: ")) from None
    if name == "deadline_at":
        if isinstance(value, str):
            try:
                value = dt.datetime.fromisoformat(value)
            except ValueError:
                raise InvalidInput(field, "is no RFC 3339 time") from None
        if not isinstance(value, dt.datetime) or value.tzinfo is None:
            raise InvalidInput(field, "needs an offset, such as 2026-01-31T12:00:00Z")
        try:
            return value.astimezone(dt.UTC)
        except OverflowError:
            raise InvalidInput(field, "is no time in the years 1 to 9999 UTC") from None
    kinds = (int, float) if name == "wall" else (int,)
    most = int(bounds.MAX_SECONDS) if name == "wall" else _LARGEST
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 <= value <= most:
        raise InvalidInput(field, f"takes a number from 0 to {most}")
    return value


def fit_key(key: str) -> str:
    """A key as it is stored: a long one by its digest, since cutting would make two keys one."""
    text = clean_text(key)
    return text if len(text) <= 200 else hashlib.sha256(key.encode(errors="replace")).hexdigest()


def describe_limits(task: Task) -> dict[str, Any]:
    """The limits as the API shows them."""
    return {
        "units": task.limit_units,
        "tokens": task.limit_tokens,
        "cost": conf.format_money(task.limit_cost),
        "wall": task.limit_wall,
        "deadline_at": task.deadline_at,
    }


def describe_used(task: Task) -> dict[str, Any]:
    """What is used, as the API shows it."""
    return {
        "units": task.used_units,
        "tokens_in": task.used_tokens_in,
        "tokens_out": task.used_tokens_out,
        "cost": conf.format_money(task.used_cost),
    }


def lock_line(task_id: UUID) -> list[Task]:
    """The task, its parent and so on up, all locked, in that order: one budget counts in all.

    Of a task without a parent that is the one row. Raises TaskNotFound.
    """
    line: list[Task] = []
    above: UUID | None = task_id
    while above is not None:
        query = Task.objects.select_for_update().defer("input", "progress", "feedback", "result")
        task = query.filter(pk=above).first()
        if task is None:
            raise TaskNotFound(task_id)
        line.append(task)
        above = task.parent_id
    return line


def change_sums(line: list[Task], **changes: int) -> None:
    """Add to `used_*` and `reserved_*` of every locked task of the line, in row and object.

    Raises ValueError for a sum that no column holds: PostgreSQL would fail, SQLite round it.
    """
    changes = {name: change for name, change in changes.items() if change}
    for task in line:
        for name, change in changes.items():
            if getattr(task, name) + change > _MOST:
                what = name.partition("_")[2]
                most = conf.format_money(_MOST) if what == "cost" else _MOST
                raise ValueError(f"{what}: task {task.pk} would come to more than {most} in all")
        if any(name.startswith("used_") for name in changes):
            hours.note_change(task.finished_at)
        # No revision: what a person decides on is not changed by it.
        Task.objects.filter(pk=task.pk).update(
            beat=F("beat") + 1, **{name: F(name) + change for name, change in changes.items()}
        )
        for name, change in changes.items():
            setattr(task, name, getattr(task, name) + change)


def check_sums(line: list[Task], tokens: int = 0, cost: int = 0, *, reserved: bool = False) -> None:
    """Raise LimitReached if so much more passes a limit of a task of the line, its own first.

    With `reserved`, what is announced for other calls counts as used.
    """
    for task in line:
        owner = "" if task is line[0] else str(task.pk)
        whose = f" of the parent task {owner}, which its children share," if owner else ""
        used = task.used_tokens_in + task.used_tokens_out + tokens
        used += task.reserved_tokens if reserved else 0
        if used > task.limit_tokens:
            told = f"leaves no room for {tokens} more" if reserved else "is passed"
            text = f"The limit of {task.limit_tokens} tokens{whose} {told}."
            least = used if reserved else 0
            raise LimitReached(states.LIMIT_TOKENS, text, least, owner, tokens)
        used = task.used_cost + cost + (task.reserved_cost if reserved else 0)
        if used > task.limit_cost:
            told = f"leaves no room for {conf.format_money(cost)} more" if reserved else "is passed"
            text = f"The cost limit of {conf.format_money(task.limit_cost)}{whose} {told}."
            least = used if reserved else 0
            raise LimitReached(states.LIMIT_COST, text, least, owner, cost)


def close_reservation(line: list[Task], key: str, state: str, fence: int | None = None) -> None:
    """Open -> settled or released, once; its amount is reserved no longer in the line's tasks.

    With `fence`, only a reservation that is still of that attempt.
    """
    found = Reservation.objects.filter(task=line[0], key=key, state="open")
    row = (found if fence is None else found.filter(fence=fence)).first()
    if row is not None:
        Reservation.objects.filter(pk=row.pk).update(state=state)
        change_sums(line, reserved_tokens=-row.tokens, reserved_cost=-row.cost)
        precedence.hurry_first(line[1:])


def describe_reserved(task: Task) -> dict[str, Any]:
    """What is announced for calls that are not settled, as the API shows it."""
    return {"tokens": task.reserved_tokens, "cost": conf.format_money(task.reserved_cost)}


def record_spend(
    held: sql.Claimed,
    *,
    key: str,
    tokens_in: int = 0,
    tokens_out: int = 0,
    cost: Decimal | str | int = 0,
    note: str = "",
    reservation: str = "",
) -> bool:
    """Record an amount that the attempt spent, once per `key`; False when it was recorded before.

    It is its parent's too, and so on up. The one write that a stale holder may make: the money is
    gone whoever holds the task, so neither fence nor status is part of the guard; a stale amount is
    marked. Settles `reservation` (a key) in the same commit. Raises LimitReached, after recording,
    when a limit of tokens or money is passed.
    """
    amounts = {"tokens_in": tokens_in, "tokens_out": tokens_out, "cost": conf.parse_money(cost)}
    for name in ("tokens_in", "tokens_out"):
        check_amount(name, amounts[name])
    try:
        with sql.atomic():
            # The row is locked before the insert: same order as every other writer, and the
            # sum and the amounts can't part.
            line = lock_line(held.task_id)
            task, now = line[0], clock.now()
            stale = task.fence != held.fence or task.lease_owner != held.owner
            row = Spend.objects.create(
                task=task, key=fit_key(key), at=now, fence=held.fence, step=held.step_name,
                turn=held.turn, note=clean_text(note, 500), stale=stale, lane=task.lane, **amounts,
            )  # fmt: skip
            for child, parent in itertools.pairwise(line):
                row = Spend.objects.create(
                    task=parent, key=f"child:{child.pk}:s{row.pk}", at=now, fence=parent.fence,
                    step=parent.step_name, turn=parent.turn,
                    note=f"child task {child.title or child.workflow}"[:500], **amounts,
                )  # fmt: skip
            change_sums(line, **{f"used_{name}": amount for name, amount in amounts.items()})
            tokens = amounts["tokens_in"] + amounts["tokens_out"]
            _warn_line(line, Actor("worker", held.owner), tokens, amounts["cost"])
            if reservation:
                close_reservation(line, reservation, "settled")
    except IntegrityError:
        if reservation:
            with sql.atomic():
                close_reservation(lock_line(held.task_id), reservation, "settled")
        return False
    lanebudgets.note_spend(task.lane, tokens, amounts["cost"])
    held.used_tokens_in, held.used_tokens_out = task.used_tokens_in, task.used_tokens_out
    held.used_cost = task.used_cost
    check_sums(line)
    return True


def _warn_line(line: list[Task], worker: Actor, tokens: int, cost: int) -> None:
    """An event in each unfinished task of the line of which just so much passed a share of a limit.

    Of the shares that one amount passes, the largest; a limit that was raised warns again.
    """
    for task in line:
        if task.finished_at is not None:
            continue
        spent = task.used_tokens_in + task.used_tokens_out
        before = task.event_seq
        for name, used, amount, limit, show in (
            ("tokens", spent, tokens, task.limit_tokens, int),
            ("cost", task.used_cost, cost, task.limit_cost, conf.format_money),
        ):
            passed = (n for n in WARN_AT if (used - amount) * 100 < n * limit <= used * 100)
            if share := next(passed, None):
                record_event(task, "limit_warned", worker, clock.read(), limit=name,
                             percent=share, used=show(used), of=show(limit))  # fmt: skip
        if task.event_seq != before:
            Task.objects.filter(pk=task.pk).update(event_seq=task.event_seq)


def reserve_amount(
    held: sql.Claimed, *, key: str, tokens: int = 0, cost: Decimal | str | int = 0
) -> str:
    """Announce what a call may cost, before it is made; the key that settles or releases it.

    An open reservation of the same key is taken over as it is, also from a lost attempt; one that
    was settled reserves nothing more. Raises LimitReached when what is used and reserved leaves too
    little of a limit, the task's own or one above, RetryLater for a lane over its budget, and
    LeaseLost.
    """
    check_amount("tokens", tokens)
    nano, key = conf.parse_money(cost), fit_key(key)
    lanebudgets.check_lane(held.lane)
    with sql.atomic():
        line = lock_line(held.task_id)
        task = line[0]
        if (task.status, task.fence, task.lease_owner) != (states.RUNNING, held.fence, held.owner):
            raise LeaseLost(held.task_id, held.fence, "reservation")
        known = Reservation.objects.filter(task=task, key=key).first()
        if known is not None and known.state != "released":
            Reservation.objects.filter(pk=known.pk).update(fence=held.fence)
            return key
        check_sums(line, tokens, nano, reserved=True)
        if owner := precedence.find_more_urgent(task, line[1:]):
            reason, amount = ((states.LIMIT_TOKENS, tokens) if tokens else
                              (states.LIMIT_COST, nano))  # fmt: skip
            text = f"A more urgent task waits for the budget of the parent task {owner.pk}."
            raise LimitReached(reason, text, 0, str(owner.pk), amount, gives_way=True)
        facts = {"at": clock.now(), "fence": held.fence, "step": held.step_name, "turn": held.turn,
                 "tokens": tokens, "cost": nano, "state": "open"}  # fmt: skip
        if known is None:
            Reservation.objects.create(task=task, key=key, **facts)
        else:
            Reservation.objects.filter(pk=known.pk).update(**facts)
        change_sums(line, reserved_tokens=tokens, reserved_cost=nano)
        return key


def release_reservation(held: sql.Claimed, key: str) -> None:
    """The call was not made: nothing is reserved for it. No effect once settled or taken over."""
    with sql.atomic():
        close_reservation(lock_line(held.task_id), key, "released", held.fence)


def check_amount(name: str, count: Any) -> None:
    """Raise ValueError unless `count` is a count of tokens."""
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= _LARGEST:
        raise ValueError(f"{name}: {count!r} is no count (0 to {_LARGEST})")


def find_shortage(
    task_id: UUID | None, tokens: int = 0, cost: int = 0
) -> tuple[Task, LimitReached] | None:
    """The first of a task and those above it whose tokens or money leave no room, or too little for
    a reservation of so much; None if all have some. Read without locks."""
    while task_id is not None:
        task = Task.objects.only(*_SHARED).filter(pk=task_id).first()
        if task is None:
            return None
        if reason := find_spent(task):
            return task, LimitReached(reason, describe_reason(reason))
        try:
            if tokens or cost:
                check_sums([task], tokens, cost, reserved=True)
        except LimitReached as error:
            return task, error
        task_id = task.parent_id
    return None
