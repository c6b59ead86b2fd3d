"""Worker processes as the dashboard sees them. No task's state depends on a row here."""

from __future__ import annotations

from django.db import models

DRAIN = "drain"
"""It ends the unit in hand and claims nothing more until it is told otherwise."""
DRAIN_ALL = "drain_all"
"""The same of its whole cluster: a process that comes in its place drains as well."""
DEAD = "dead"
"""Its leases were taken from it; it ends, and another process comes in its place."""
DEAD_ALL = "dead_all"
"""The same of one whose cluster drains: what comes in its place does so too."""
DEADS = frozenset({DEAD, DEAD_ALL})
DRAINS = frozenset({DRAIN, DRAIN_ALL})


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
    cluster = models.CharField(max_length=100, db_default="", blank=True)
    """Name of the cluster that it is a process of; each start of one has another."""
    memory = models.BigIntegerField(null=True, blank=True)
    """Bytes resident at its last heartbeat."""
    skew = models.FloatField(null=True, blank=True)
    """Seconds that its host's clock is before the database's; nothing depends on it."""
    told = models.CharField(max_length=20, db_default="", blank=True)
    """What people want of it, of the constants above; it hears of it within a second."""
    told_by = models.CharField(max_length=200, db_default="", blank=True)
    told_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "longwatch_worker"
        ordering = ("-seen_at",)
        indexes = (models.Index(fields=["seen_at"], name="longwatch_worker_seen"),)

    def __str__(self) -> str:
        return self.owner
