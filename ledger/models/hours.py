"""What ended in each hour, summed once the hour is over. Hours are numbered from 1970 in UTC."""

from __future__ import annotations

from django.db import models


class Hour(models.Model):
    """A note on an hour: that it is summed, or that a task of it changed since."""

    id = models.BigAutoField(primary_key=True)
    hour = models.BigIntegerField(db_index=True)
    changed = models.BooleanField(default=False)

    class Meta:
        db_table = "longwatch_hour"
        ordering = ("hour", "id")

    def __str__(self) -> str:
        return f"hour {self.hour}"


class HourSum(models.Model):
    """Tasks that ended in one hour and are alike: what there were, cost and used together.

    `began` is the hour of their first claim. Of completed ones `took` is the step on the scale of
    durations (`ledger.hours.STEPS` for each doubling) and `seconds` their sum. Money is nano-units.
    """

    id = models.BigAutoField(primary_key=True)
    hour = models.BigIntegerField(db_index=True)
    lane = models.CharField(max_length=100)
    workflow = models.CharField(max_length=100)
    version = models.CharField(max_length=50)
    status = models.CharField(max_length=16)
    began = models.BigIntegerField(null=True, blank=True)
    took = models.IntegerField(null=True, blank=True)
    tasks = models.BigIntegerField()
    cost = models.BigIntegerField()
    tokens = models.BigIntegerField()
    repairs = models.BigIntegerField()
    seconds = models.FloatField()

    class Meta:
        db_table = "longwatch_hour_sum"
        ordering = ("hour", "id")

    def __str__(self) -> str:
        return f"hour {self.hour}: {self.tasks} {self.status} of {self.workflow}"
