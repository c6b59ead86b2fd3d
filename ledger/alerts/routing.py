"""From the outbox to the rules: one delivery for each rule that wants it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ledger import clock, sql
from ledger.alerts import kinds
from ledger.models import AlertDelivery, AlertRule, Outbox
from ledger.transitions.moves import skip_locked

BATCH: Final = 200


def route_outbox(limit: int = BATCH) -> int:
    """Hand new rows of the outbox to the rules, each with the rule's next number; how many rows.

    Rows that another sender has in hand are skipped. A rule takes them in the order of the outbox.
    """
    new = Outbox.objects.filter(routed_at__isnull=True).order_by("id")
    if not new.exists():  # no write, and on SQLite no lock, for nothing
        return 0
    with sql.atomic():
        rows = list(skip_locked(new[:limit]))
        if not rows:
            return 0
        now = clock.read()
        rules = (
            AlertRule.objects.filter(enabled=True).order_by("id").select_for_update(of=("self",))
        )
        for rule in rules:
            wanted = [row for row in rows if wants(rule, row)]
            AlertDelivery.objects.bulk_create(
                AlertDelivery(rule=rule, outbox=row, seq=seq, created_at=now)
                for seq, row in enumerate(wanted, rule.seq + 1)
            )
            if wanted:
                AlertRule.objects.filter(pk=rule.pk).update(seq=rule.seq + len(wanted))
        _mark_routed(rows)
        return len(rows)


def _mark_routed(rows: Iterable[Outbox]) -> None:
    Outbox.objects.filter(pk__in=[row.pk for row in rows]).update(routed_at=clock.now())


def wants(rule: AlertRule, row: Outbox) -> bool:
    """Whether `rule` is told of `row`. What is meant for one rule has been judged for it."""
    if row.only_id is not None:
        return bool(row.only_id == rule.pk and (row.kind == kinds.TEST or _passes(rule, row)))
    return row.kind in rule.kinds and _passes(rule, row)


def _passes(rule: AlertRule, row: Outbox) -> bool:
    if rule.workflow not in {"", row.workflow} or rule.lane not in {"", row.lane}:
        return False
    if rule.tag and rule.tag not in row.tags:
        return False
    if rule.risk and row.kind in kinds.APPROVALS:
        asked = row.data.get("risk", "low")
        return kinds.RISKS.index(asked) >= kinds.RISKS.index(rule.risk)
    return True
