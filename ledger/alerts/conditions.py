"""What is so for a while, and told when it begins: looked at by the senders, told by one of them.

A row of AlertCondition stands as long as the thing is so. Who stores it tells, in the same
transaction; who finds it over removes it, so that the next time is told again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from django.db import IntegrityError, transaction
from django.db.models import Count, F, Min, Q, QuerySet

from ledger import clock, outbox, sql, states
from ledger.alerts import kinds
from ledger.models import AlertCondition, AlertRule, Task
from ledger.queries import fleet, trouble
from ledger.queries.tasks import LARGE

LIMIT: Final = 200
"""Of one kind, and of one rule where it is judged by its number: more tell no more."""

UNKNOWN_SECONDS: Final = 60.0
"""How long a queued task may wait for a worker that knows it: a deploy needs a moment."""


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """Something that is so: `key` names it, the rest is told."""

    key: str
    data: dict[str, Any]
    task: Task | None = None
    place: dict[str, str] = dataclasses.field(default_factory=dict)
    only: AlertRule | None = None


def tell_conditions() -> int:
    """Look at every kind that a rule wants; how many were told."""
    rules = list(AlertRule.objects.filter(enabled=True))
    told = 0
    for kind, find in FINDERS.items():
        # Before the look, so that what begins meanwhile is not taken for over.
        standing = set(AlertCondition.objects.filter(kind=kind).values_list("key", flat=True))
        wanting = [rule for rule in rules if kind in rule.kinds]
        found = {one.key: one for one in find(wanting)} if wanting else {}
        told += sum(_begin(kind, found[key]) for key in found.keys() - standing)
        if over := standing - found.keys():
            AlertCondition.objects.filter(pk__in=over).delete()
    return told


def _begin(kind: str, one: Found) -> bool:
    """Store and tell it; False when another sender did."""
    with sql.atomic():
        now = clock.read()
        try:
            with transaction.atomic():
                AlertCondition.objects.create(key=one.key, kind=kind, since=now)
        except IntegrityError:
            return False
        outbox.post_alert(kind, now, one.data, one.task, only=one.only, **one.place)
        return True


def _find_stalled(rules: list[AlertRule]) -> Iterator[Found]:
    rows = trouble.select_trouble(trouble.STALLED, frozenset()).defer(*LARGE)
    for task in rows.order_by("last_progress_at")[:LIMIT]:
        since = f"{task.last_progress_at:%Y-%m-%d %H:%M:%S} UTC"
        note = f"No checkpoint and no report since {since}; its worker beats."
        yield Found(f"stalled:{task.pk}", {"note": note}, task)


def _find_unknown(rules: list[AlertRule]) -> Iterator[Found]:
    for workflow, version in sorted(trouble.list_unknown(fleet.load_fleet()))[:LIMIT]:
        queued = Task.objects.filter(
            status=states.QUEUED, workflow=workflow, workflow_version=version,
            available_at__lte=clock.now(-UNKNOWN_SECONDS),
        )  # fmt: skip
        first = queued.order_by("available_at").values_list("lane", flat=True).first()
        if first is not None:
            note = f"No live worker knows version {version} of {workflow}, which is queued."
            place = {"workflow": workflow, "lane": first}
            yield Found(f"no_worker:{workflow}:{version}", {"note": note}, place=place)


def _find_near_limits(rules: list[AlertRule]) -> Iterator[Found]:
    for rule in rules:
        part = rule.percent / 100
        tokens = F("used_tokens_in") + F("used_tokens_out")
        rows = _select(rule).annotate(tokens=tokens).filter(
            Q(limit_units__gt=0, used_units__gte=F("limit_units") * part)
            | Q(limit_tokens__gt=0, tokens__gte=F("limit_tokens") * part)
            | Q(limit_cost__gt=0, used_cost__gte=F("limit_cost") * part)
        )  # fmt: skip
        for task in rows.filter(status__in=states.UNFINISHED).defer(*LARGE).order_by("id")[:LIMIT]:
            used = {
                "units": (task.used_units, task.limit_units),
                "tokens": (task.used_tokens_in + task.used_tokens_out, task.limit_tokens),
                "money": (task.used_cost, task.limit_cost),
            }
            shares = [f"{100 * so_far // limit} % of its {what}"
                      for what, (so_far, limit) in used.items() if limit]  # fmt: skip
            note = f"It has used {', '.join(shares)}."
            yield Found(f"limit_near:{rule.pk}:{task.pk}", {"note": note}, task, only=rule)


def _find_old_queues(rules: list[AlertRule]) -> Iterator[Found]:
    for rule in rules:
        waiting = _select(rule).filter(
            status=states.QUEUED, available_at__lte=clock.now(-60 * rule.minutes)
        )
        lanes = waiting.values("lane").annotate(count=Count("id"), first=Min("available_at"))
        for row in lanes.order_by("lane")[:LIMIT]:
            note = (
                f"Lane {row['lane']}: {row['count']} queued for over {rule.minutes} minutes, "
                f"the first since {row['first']:%Y-%m-%d %H:%M} UTC."
            )
            place = {"workflow": rule.workflow, "lane": row["lane"]}
            yield Found(f"queue_old:{rule.pk}:{row['lane']}", {"note": note}, None, place, rule)


def _select(rule: AlertRule) -> QuerySet[Task]:
    """Tasks of the rule's workflow and lane."""
    chosen = {"workflow": rule.workflow, "lane": rule.lane}
    return Task.objects.filter(**{name: value for name, value in chosen.items() if value})


FINDERS: Final[dict[str, Callable[[list[AlertRule]], Iterable[Found]]]] = {
    kinds.STALLED: _find_stalled,
    kinds.NO_WORKER: _find_unknown,
    kinds.LIMIT_NEAR: _find_near_limits,
    kinds.QUEUE_OLD: _find_old_queues,
}
