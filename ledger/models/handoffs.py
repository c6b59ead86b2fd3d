"""What units were told of the work before them."""

from __future__ import annotations

from django.db import models

from ledger.models.task import Task


class Handoff(models.Model):
    """One hand-off as an attempt got it: the attempt is its fence, the text its Markdown."""

    task = models.ForeignKey(Task, models.PROTECT, related_name="handoffs", db_index=False)
    step = models.CharField(max_length=100)
    turn = models.IntegerField()
    round = models.IntegerField()
    fence = models.BigIntegerField()
    digest = models.CharField(max_length=64)
    text = models.TextField()
    at = models.DateTimeField()

    class Meta:
        db_table = "longwatch_handoff"
        ordering = ("task", "id")
        constraints = (
            models.UniqueConstraint(
                fields=["task", "fence", "digest"], name="longwatch_handoff_once"
            ),
        )

    def __str__(self) -> str:
        return f"{self.step}:{self.turn} of {self.task_id}"
