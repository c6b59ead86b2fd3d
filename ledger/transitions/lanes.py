"""What people set for lanes: shares, bounds, budgets, a pause, and the one task that runs in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from typing import Any
from uuid import UUID

from ledger import auditing, clock, conf, sql, states
from ledger.calls import read_call, sees_lane
from ledger.canonical import clean_text
from ledger.errors import InvalidInput, NotAllowed, NotFound, StaleRevision, WrongStatus
from ledger.events import Actor
from ledger.models import Lane, Task
from ledger.models.lane import PERIODS
from ledger.queries.fleet import load_fleet
from ledger.sql.lanes import await_lock
from ledger.transitions.operators import check_reason

SETTINGS = (
    "weight", "cap", "rate", "per", "burst",
    "cost_day", "cost_month", "tokens_day", "tokens_month",
)  # fmt: skip
"""What may be set, besides the pause, by who sees every lane: a tenant can't raise its own."""

_LARGEST = 10**15
_RANGES = {"weight": 1_000, "cap": 100_000, "rate": 1_000_000, "burst": 1_000_000,
           "tokens_day": _LARGEST, "tokens_month": _LARGEST}  # fmt: skip
_NEEDED = {"weight", "burst"}


def check_name(name: Any) -> str:
    """The name of a lane. Raises InvalidInput for what can be none, NotFound for one not seen."""
    if not isinstance(name, str) or not 1 <= len(name) <= 100 or clean_text(name, 100) != name:
        raise InvalidInput("lane", "takes 1 to 100 characters")
    if not sees_lane(name):
        raise NotFound("lane", name)
    return name


def read_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as people write them as columns: money as decimal text, None for no bound.

    Raises InvalidInput naming the field.
    """
    return {name: _read_one(name, value) for name, value in given.items()}


def _read_one(name: str, value: Any) -> Any:
    if name not in SETTINGS:
        raise InvalidInput(name, f"is no setting of a lane; there are {', '.join(SETTINGS)}")
    if name == "per":
        if not isinstance(value, str) or value not in PERIODS:
            raise InvalidInput(name, f"takes one of {', '.join(PERIODS)}")
        return value
    if value is None and name not in _NEEDED:
        return None
    if name.startswith("cost"):
        try:
            nano = conf.parse_money(value, name)
            if nano == 0 and Decimal(value) > 0:
                raise ValueError(f"{name}: {value} is less than a billionth, so nothing at all")
            return nano
        except ValueError as error:
            raise InvalidInput(name, str(error).removeprefix(f"{name}: ")) from None
    least, most = 0 if name.startswith("tokens") else 1, _RANGES[name]
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidInput(name, f"takes a whole number from {least} to {most}")
    return value


def set_lane(
    name: str,
    settings: Mapping[str, Any],
    *,
    actor: Actor,
    paused: bool | None = None,
    revision: int | None = None,
    reason: str = "",
) -> Lane:
    """Change what is given of a lane's settings (`SETTINGS`), and pause or resume it.

    Raises InvalidInput, NotFound, NotAllowed, and StaleRevision when the caller looked at an older
    revision (0: a lane that nobody had set anything for).
    """
    columns = read_settings(settings)
    if columns and read_call().lanes is not None:
        raise NotAllowed("Bounds and budgets of lanes are for who sees every lane.")
    with _lock_lane(name, revision, reason) as lane:
        if paused is not None:
            columns |= {"paused": paused}
        if paused is False:
            columns |= {"let_through": None}
        _write(lane, columns, actor, _name_action(paused, settings), reason)
    return lane


def _name_action(paused: bool | None, settings: Mapping[str, Any]) -> str:
    if paused is None or settings:
        return "lane_changed"
    return "lane_paused" if paused else "lane_resumed"


def run_one(name: str, *, actor: Actor, revision: int | None = None, reason: str = "") -> UUID:
    """Let the task that ranks first through the pause of its lane, and no other; its id.

    It goes on to its end, or until another is let through. Raises WrongStatus for a lane that is
    not paused or has nothing that a live worker can run.
    """
    with _lock_lane(name, revision, reason) as lane:
        if not lane.paused:
            raise WrongStatus("run one task of", "open", "Its lane is not paused.")
        chosen = _find_head(lane)
        if chosen is None:
            raise WrongStatus("run one task of", "paused", "No task is queued that can run.")
        _write(lane, {"let_through": chosen}, actor, "lane_run_one", reason)
    return chosen


def _find_head(lane: Lane) -> UUID | None:
    """What ranks first of the lane's queued tasks that a live worker knows."""
    knows = load_fleet().knows
    queued = Task.objects.filter(status=states.QUEUED, lane=lane.pk).order_by("rank", "pk")
    if lane.let_through is not None:
        queued = queued.exclude(pk=lane.let_through)
    heads = [
        queued.filter(workflow=workflow, workflow_version=version).values_list("rank", "pk").first()
        for name, workflow, version in sql.list_groups()
        if name == lane.pk and (workflow, version) in knows
    ]
    return min((head for head in heads if head is not None), default=(0, None))[1]


@contextmanager
def _lock_lane(name: str, revision: int | None, reason: str) -> Iterator[Lane]:
    """The row, made if there is none, and the lane's lock, so that no claim meets half a change."""
    check_name(name)
    check_reason(reason)
    with sql.atomic():
        await_lock(name)
        fresh = Lane(name=name, revision=0, updated_at=clock.now())
        Lane.objects.bulk_create([fresh], ignore_conflicts=True)
        lane = Lane.objects.select_for_update().get(pk=name)
        if revision is not None and revision != lane.revision:
            raise StaleRevision(revision, lane.revision)
        yield lane
        sql.wake_workers()


def _write(lane: Lane, columns: dict[str, Any], actor: Actor, action: str, reason: str) -> None:
    changed = {name: value for name, value in columns.items() if getattr(lane, name) != value}
    before = {name: show_setting(name, getattr(lane, name)) for name in changed}
    Lane.objects.filter(pk=lane.pk).update(
        **changed, revision=lane.revision + 1, updated_at=clock.now()
    )
    for name, value in changed.items():
        setattr(lane, name, value)
    lane.revision += 1
    after = {name: show_setting(name, value) for name, value in changed.items()}
    auditing.write_entry(
        actor, action, f"lane:{lane.pk}", before=before, after=after, reason=reason
    )


def show_setting(name: str, value: Any) -> Any:
    """A column as the API shows it: money as text."""
    if value is None or not name.startswith("cost"):
        return value if not isinstance(value, UUID) else str(value)
    return conf.format_money(value)
