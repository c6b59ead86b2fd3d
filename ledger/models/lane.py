"""What people have set for a lane. One without a row has the defaults, and most have none."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

PERIODS = {"second": 1_000_000, "minute": 60_000_000}
"""Of a rate, in microseconds."""

BUDGETS = ("cost_day", "cost_month", "tokens_day", "tokens_month")


class Lane(models.Model):
    """Share, bounds and budgets of one lane; NULL is no bound. Money is in nano-units."""

    name = models.CharField(primary_key=True, max_length=100)
    weight = models.IntegerField(default=1)
    cap = models.IntegerField(null=True, blank=True)
    rate = models.IntegerField(null=True, blank=True)
    per = models.CharField(max_length=6, default="second")
    burst = models.IntegerField(default=1)
    paused = models.BooleanField(default=False)
    # The one task that runs in spite of the pause. No key: nothing depends on it.
    let_through = models.UUIDField(null=True, blank=True)
    cost_day = models.BigIntegerField(null=True, blank=True)
    cost_month = models.BigIntegerField(null=True, blank=True)
    tokens_day = models.BigIntegerField(null=True, blank=True)
    tokens_month = models.BigIntegerField(null=True, blank=True)
    # Of a rate: the microsecond by which all units taken so far would have been due, had they come
    # evenly. The one column that workers write, under the lane's lock.
    paced_until = models.BigIntegerField(default=0)
    revision = models.BigIntegerField(default=1)
    updated_at = models.DateTimeField()

    class Meta:
        db_table = "longwatch_lane"
        ordering = ("name",)
        constraints = (
            models.CheckConstraint(
                condition=Q(weight__gte=1, burst__gte=1)
                & (Q(cap__isnull=True) | Q(cap__gte=1))
                & (Q(rate__isnull=True) | Q(rate__gte=1)),
                name="longwatch_lane_bounds",
            ),
            models.CheckConstraint(condition=Q(per__in=sorted(PERIODS)), name="longwatch_lane_per"),
        )

    def __str__(self) -> str:
        return self.name
