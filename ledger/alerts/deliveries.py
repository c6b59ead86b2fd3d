"""Deliveries: taken by one sender for a time, settled under that hold, tried again, given up.

An endpoint, not an event, backs off: a dead one costs one try per step of its backoff however much
waits for it, and the others don't notice. Its deliveries go out one by one in the order of their
numbers. What a killed sender had in hand is taken again once its hold is over: at least once, under
the same id and number.
"""

from __future__ import annotations

import dataclasses
import random
import uuid
from typing import Final
from uuid import UUID

from django.db import connection
from django.db.models import Case, Exists, OuterRef, Q, When

from ledger import clock, conf, sql
from ledger.alerts import kinds
from ledger.alerts.messages import Message, shorten_line, write_message
from ledger.conf import Tunables
from ledger.models import AlertDelivery, AlertRule
from ledger.models.alerts import DEAD, PENDING, SENT
from ledger.transitions.moves import skip_locked

MAX_BACKOFF: Final = 3600.0
MAX_REFUSALS: Final = 5
"""Tries of a delivery that the endpoint answers with a 4xx: the fault may lie in this one."""

_LOOK: Final = f"""SELECT EXISTS (SELECT 1 FROM longwatch_outbox WHERE routed_at IS NULL)
  OR EXISTS (SELECT 1 FROM longwatch_alert_rule r WHERE r.enabled AND r.next_at <= {{now}}
    AND (r.busy_until IS NULL OR r.busy_until <= {{now}})
    AND EXISTS (SELECT 1 FROM longwatch_alert_delivery d
      WHERE d.rule_id = r.id AND d.state = '{PENDING}'))"""


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """One try at a delivery: all that its sending needs, so that it needs no database."""

    rule_id: UUID
    delivery_id: int
    hold: str
    channel: str
    target: str
    keys: tuple[str, ...]
    """Secrets that sign, the newest first."""
    seq: int
    timestamp: int
    message: Message
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a try: no error is a success. `refused`: it was answered, with a 4xx."""

    error: str = ""
    refused: bool = False


def has_work() -> bool:
    """Whether `route_outbox` or `take_due` may find any."""
    now = clock.fragment(connection.vendor)
    return bool(sql.fetch_row(_LOOK.format(now=now), prepare=True)[0])


def take_due(limit: int) -> list[Job]:
    """Take the next delivery of each endpoint that is due, at most `limit`. Each is held for
    three times the time that a try may take."""
    tunables = conf.load()
    pending = AlertDelivery.objects.filter(rule=OuterRef("pk"), state=PENDING)
    due = AlertRule.objects.filter(Exists(pending), enabled=True, next_at__lte=clock.now())
    due = due.filter(Q(busy_until__isnull=True) | Q(busy_until__lte=clock.now()))
    if not due.exists():  # no write, and on SQLite no lock, for nothing
        return []
    with sql.atomic():
        rules = list(skip_locked(due.order_by("next_at", "id")[:limit]))
        return [job for rule in rules if (job := _take(rule, tunables))]


def _take(rule: AlertRule, tunables: Tunables) -> Job | None:
    # A test waits for nothing: somebody looks at its outcome.
    first = Case(When(outbox__kind=kinds.TEST, then=0), default=1)
    rows = rule.deliveries.filter(state=PENDING).select_related("outbox")
    delivery = rows.order_by(first, "seq").first()
    if delivery is None:
        return None
    now = clock.read()
    hold = uuid.uuid4().hex
    AlertDelivery.objects.filter(pk=delivery.pk).update(
        attempts=delivery.attempts + 1, tried_at=now
    )
    AlertRule.objects.filter(pk=rule.pk).update(
        busy_by=hold, busy_until=clock.now(3 * tunables.alert_seconds)
    )
    old = rule.old_secret_until is not None and rule.old_secret_until > now
    keys = (rule.secret, rule.old_secret) if old else (rule.secret,)
    return Job(
        rule.pk, delivery.pk, hold, rule.channel, rule.target, keys, delivery.seq,
        int(now.timestamp()), write_message(delivery.outbox), tunables.alert_seconds,
    )  # fmt: skip


def settle_delivery(job: Job, outcome: Outcome) -> bool:
    """Store what came of a try; False when the hold was over and somebody else has it."""
    tunables = conf.load()
    with sql.atomic():
        rule = (
            AlertRule.objects.select_for_update().filter(pk=job.rule_id, busy_by=job.hold).first()
        )
        if rule is None:
            return False
        free = {"busy_by": "", "busy_until": None, "next_at": clock.now()}
        mine = AlertDelivery.objects.filter(pk=job.delivery_id, state=PENDING)
        if not outcome.error:
            mine.update(state=SENT, settled_at=clock.now(), error="")
            AlertRule.objects.filter(pk=rule.pk).update(failures=0, **free)
            return True
        error = shorten_line(outcome.error, 500)
        mine.update(error=error)
        if mine.filter(outbox__kind=kinds.TEST).exists():
            # Once: whoever asked for it sees it fail. It says nothing of the endpoint's backoff.
            mine.update(state=DEAD, settled_at=clock.now())
            AlertRule.objects.filter(pk=rule.pk).update(**free)
            return True
        failures = rule.failures + 1
        if failures >= tunables.alert_attempts:
            why = shorten_line(f"given up after {failures} failures in a row; {error}", 500)
            waiting = rule.deliveries.filter(state=PENDING)
            waiting.update(state=DEAD, settled_at=clock.now(), error=why)
        elif outcome.refused:
            mine.filter(attempts__gte=MAX_REFUSALS).update(state=DEAD, settled_at=clock.now())
        free["next_at"] = clock.now(choose_backoff(failures, tunables))
        AlertRule.objects.filter(pk=rule.pk).update(failures=failures, **free)
    return True


def choose_backoff(failures: int, tunables: Tunables) -> float:
    """Seconds until the next try after so many failures in a row: doubled each time, up to an
    hour, and of that a random part from the upper half."""
    longest = min(MAX_BACKOFF, tunables.alert_backoff_seconds * 2.0 ** min(failures - 1, 30))
    return longest * random.uniform(0.5, 1.0)
