"""What was told long ago is forgotten; the events of the tasks stay."""

from __future__ import annotations

from typing import Final

from django.db.models import Exists, OuterRef

from ledger import clock, conf
from ledger.models import AlertDelivery, Outbox

BATCH: Final = 1000


def forget_old(limit: int = BATCH) -> int:
    """Remove settled deliveries that are older than LONGWATCH_ALERT_DAYS, and what no delivery
    needs; how many rows of the outbox."""
    line = clock.now(-86_400 * conf.load().alert_days)
    settled = AlertDelivery.objects.filter(settled_at__lt=line).order_by("id")
    old = list(settled.values_list("pk", flat=True)[:limit])
    AlertDelivery.objects.filter(pk__in=old).delete()
    needed = Exists(AlertDelivery.objects.filter(outbox=OuterRef("pk")))
    rows = Outbox.objects.filter(~needed, routed_at__lt=line).order_by("id")
    gone = list(rows.values_list("pk", flat=True)[:limit])
    Outbox.objects.filter(pk__in=gone).delete()
    return len(gone)
