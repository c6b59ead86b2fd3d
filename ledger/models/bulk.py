"""One action on many tasks: the operation, and an item for each task that was chosen."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from ledger.ids import make_id

RUNNING, STOPPING, STOPPED, DONE = "running", "stopping", "stopped", "done"
OPEN = (RUNNING, STOPPING)

PENDING, REFUSED, SKIPPED = "pending", "refused", "skipped"
OUTCOMES = (PENDING, DONE, REFUSED, SKIPPED, STOPPED)


class BulkOperation(models.Model):
    """Who wants what done to which tasks, and why.

    `selection` is `{"filter": [[key, value], …]}` or `{"ids": number}`: what the tasks were chosen
    by. They were chosen at `created_at`, once; `BulkItem` holds which they are. `key` makes two
    sends of one request one operation, `body_digest` tells them from two different ones.
    """

    id = models.UUIDField(primary_key=True, default=make_id, editable=False)
    action = models.CharField(max_length=20)
    arguments = models.JSONField(default=dict)
    reason = models.TextField(blank=True, default="")
    selection = models.JSONField()
    actor = models.CharField(max_length=200)
    idempotency_key = models.CharField(max_length=200, null=True, blank=True)  # noqa: DJ001  NULL: no key, exempt from uniqueness
    body_digest = models.CharField(max_length=64)
    status = models.CharField(max_length=10, default=RUNNING)
    total = models.IntegerField()
    stopped_by = models.CharField(max_length=200, blank=True, default="")
    created_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "longwatch_bulk_operation"
        ordering = ("-created_at", "-id")
        indexes = (
            models.Index(fields=["id"], condition=Q(status__in=OPEN), name="longwatch_bulk_open"),
            models.Index(fields=["created_at", "id"], name="longwatch_bulk_created"),
        )
        constraints = (
            models.CheckConstraint(
                condition=Q(status__in=OPEN, finished_at__isnull=True)
                | Q(status__in=(DONE, STOPPED), finished_at__isnull=False),
                name="longwatch_bulk_finished_iff",
            ),
            models.UniqueConstraint(
                fields=["actor", "idempotency_key"],
                condition=Q(idempotency_key__isnull=False),
                name="longwatch_bulk_key",
            ),
        )

    def __str__(self) -> str:
        return f"{self.action} {self.id}"


class BulkItem(models.Model):
    """One task of an operation: how it was when it was chosen, and what came of it.

    No key to the task: what was done stays on record when the task is deleted. `approval` and
    `digest` are the question to be answered, and what was shown of it.
    """

    operation = models.ForeignKey(
        BulkOperation, models.PROTECT, related_name="items", db_index=False
    )
    task = models.UUIDField()
    revision_seen = models.BigIntegerField(default=0)
    status_seen = models.CharField(max_length=16, blank=True, default="")
    approval = models.UUIDField(null=True, blank=True)
    digest = models.CharField(max_length=64, blank=True, default="")
    outcome = models.CharField(max_length=10, default=PENDING)
    why = models.TextField(blank=True, default="")
    done_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "longwatch_bulk_item"
        ordering = ("id",)
        indexes = (
            models.Index(fields=["operation", "outcome", "id"], name="longwatch_bulk_outcome"),
        )
        constraints = (
            models.CheckConstraint(
                condition=Q(outcome__in=OUTCOMES), name="longwatch_bulk_outcome_known"
            ),
            models.UniqueConstraint(fields=["operation", "task"], name="longwatch_bulk_task"),
        )

    def __str__(self) -> str:
        return f"{self.task} {self.outcome}"
