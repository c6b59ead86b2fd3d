"""What a task produced: immutable bytes by digest, and the names under which a task keeps them."""

from __future__ import annotations

from django.db import models

from ledger.ids import make_id
from ledger.models.task import Task


class Blob(models.Model):
    """Bytes in the store, addressed by the SHA-256 of what they are."""

    digest = models.CharField(primary_key=True, max_length=64)
    size = models.BigIntegerField()
    created_at = models.DateTimeField()

    class Meta:
        db_table = "longwatch_blob"

    def __str__(self) -> str:
        return self.digest


class Artifact(models.Model):
    """A named blob: a unit's product, or (task null) an upload that waits to be an input.

    A unit that is run again after a lost lease writes the same row again, under its new fence,
    so a task never shows the products of an attempt beside those of its successor.
    """

    id = models.UUIDField(primary_key=True, default=make_id, editable=False)
    task = models.ForeignKey(
        Task, models.PROTECT, null=True, blank=True, related_name="artifacts", db_index=False
    )
    name = models.CharField(max_length=255)
    step = models.CharField(max_length=100, blank=True, default="")
    step_index = models.IntegerField(default=0)
    turn = models.IntegerField(default=0)
    round = models.IntegerField(default=0)
    fence = models.BigIntegerField(default=0)
    media_type = models.CharField(max_length=100)
    blob = models.ForeignKey(Blob, models.PROTECT)
    created_at = models.DateTimeField()
    created_by = models.CharField(max_length=200)

    class Meta:
        db_table = "longwatch_artifact"
        ordering = ("-created_at", "-id")
        constraints = (
            models.UniqueConstraint(
                fields=["task", "step_index", "turn", "round", "name"],
                condition=models.Q(task__isnull=False),
                name="longwatch_artifact_key",
            ),
        )

    def __str__(self) -> str:
        return self.name
