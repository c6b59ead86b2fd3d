"""The logs of units that are at work, for who follows them."""

from __future__ import annotations

from django.db import models

from ledger.models.task import Task


class LiveLog(models.Model):
    """The end of one attempt's log, as its worker wrote it down last; the attempt is its fence.

    It goes once the log is kept elsewhere, with an output or a failure. Of an attempt that was lost
    or given back it stays, as all that is known of what it said.
    """

    task = models.ForeignKey(Task, models.PROTECT, related_name="live_logs", db_index=False)
    fence = models.BigIntegerField()
    step = models.CharField(max_length=100)
    turn = models.IntegerField()
    at = models.DateTimeField()
    size = models.BigIntegerField()
    text = models.TextField()

    class Meta:
        db_table = "longwatch_live_log"
        ordering = ("task", "fence")
        constraints = (
            models.UniqueConstraint(fields=["task", "fence"], name="longwatch_live_log_attempt"),
        )

    def __str__(self) -> str:
        return f"{self.step}:{self.turn} of {self.task_id}, fence {self.fence}"
