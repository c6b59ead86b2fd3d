"""What was sent to a task from outside: a mailbox, so that an early signal is not lost."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from ledger.models.task import Task


class Signal(models.Model):
    """One signal; `consumed_seq` is the number of the event that took it out of the mailbox."""

    task = models.ForeignKey(Task, models.PROTECT, related_name="signals", db_index=False)
    name = models.CharField(max_length=100)
    key = models.CharField(max_length=200, null=True, blank=True)  # noqa: DJ001  NULL: no key, exempt from uniqueness
    data = models.JSONField(null=True, blank=True)
    by = models.CharField(max_length=200)
    at = models.DateTimeField()
    consumed_seq = models.BigIntegerField(null=True, blank=True)

    class Meta:
        db_table = "longwatch_signal"
        ordering = ("id",)
        indexes = (
            models.Index(
                fields=["task", "name", "id"],
                condition=Q(consumed_seq__isnull=True),
                name="longwatch_signal_mailbox",
            ),
        )
        constraints = (
            models.UniqueConstraint(
                fields=["task", "key"],
                condition=Q(key__isnull=False),
                name="longwatch_signal_key",
            ),
        )

    def __str__(self) -> str:
        return f"{self.name} to {self.task_id}"
