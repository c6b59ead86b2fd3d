"""Worker processes as the dashboard sees them. No task's state depends on a row here."""

from __future__ import annotations

from django.db import models


class Worker(models.Model):
    """One worker process; `owner` is `host:pid:boot-uuid`, the name on its leases."""

    owner = models.CharField(primary_key=True, max_length=200)
    host = models.CharField(max_length=100)
    pid = models.IntegerField()
    started_at = models.DateTimeField()
    seen_at = models.DateTimeField()
    knows = models.JSONField(default=list)
    units = models.BigIntegerField(default=0)
    draining = models.BooleanField(default=False)
    lease_seconds = models.FloatField(db_default=0.0)
    stopped_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "longwatch_worker"
        ordering = ("-seen_at",)
        indexes = (models.Index(fields=["seen_at"], name="longwatch_worker_seen"),)

    def __str__(self) -> str:
        return self.owner
