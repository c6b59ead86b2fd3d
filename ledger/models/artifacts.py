"""What a task produced: immutable bytes by digest, and the names under which a task keeps them."""

from __future__ import annotations

from django.db import models

from ledger.ids import make_id
from ledger.models.task import Task


class Blob(models.Model):
    """Bytes in the store, addressed by the SHA-256 of what they are.

    `corrupt_at` is when a read found that they are not (`corrupt_why`); until a read or an upload
    finds them good again.
    """

    digest = models.CharField(primary_key=True, max_length=64)
    size = models.BigIntegerField()
    created_at = models.DateTimeField()
    corrupt_at = models.DateTimeField(null=True, blank=True)
    corrupt_why = models.CharField(max_length=200, blank=True, default="", db_default="")

    class Meta:
        db_table = "longwatch_blob"

    def __str__(self) -> str:
        return self.digest


class Artifact(models.Model):
    """A named blob: a unit's product, or (task null) an upload that waits to be an input.

    A unit that is run again after a lost lease writes the same row again, under its new fence,
    so a task never shows the products of an attempt beside those of its successor. Rows of one name
    in one task are its versions, in order of (created_at, id).

    `made_from` are the artifacts that the unit had opened before, `copied_from` the one that a copy
    of the task took this from. An expired one has no bytes any more (`blob` null), and `proof` of
    what they were: `{sha256, size}`. `named_at` is when an upload was last handed to a task.
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
    blob = models.ForeignKey(Blob, models.PROTECT, null=True, blank=True)
    created_at = models.DateTimeField()
    created_by = models.CharField(max_length=200)
    made_from = models.JSONField(null=True, blank=True)
    copied_from = models.UUIDField(null=True, blank=True)
    expired_at = models.DateTimeField(null=True, blank=True)
    proof = models.JSONField(null=True, blank=True)
    named_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "longwatch_artifact"
        ordering = ("-created_at", "-id")
        constraints = (
            models.UniqueConstraint(
                fields=["task", "step_index", "turn", "round", "name"],
                condition=models.Q(task__isnull=False),
                name="longwatch_artifact_key",
            ),
            models.CheckConstraint(
                condition=models.Q(blob__isnull=False)
                | models.Q(expired_at__isnull=False, proof__isnull=False),
                name="longwatch_artifact_proof",
            ),
        )

    def __str__(self) -> str:
        return self.name


class Upload(models.Model):
    """A file on its way in, in pieces; `offset` bytes of `size` have come. An artifact at last.

    `slot` bounds how many of them somebody has open at once; null when it is done.
    """

    id = models.UUIDField(primary_key=True, default=make_id, editable=False)
    name = models.CharField(max_length=255)
    media_type = models.CharField(max_length=100, blank=True)
    size = models.BigIntegerField()
    sha256 = models.CharField(max_length=64, blank=True)
    offset = models.BigIntegerField(default=0)
    slot = models.IntegerField(null=True)
    artifact = models.ForeignKey(Artifact, models.PROTECT, null=True, db_index=False)
    created_at = models.DateTimeField()
    created_by = models.CharField(max_length=200)
    expires_at = models.DateTimeField(db_index=True)

    class Meta:
        db_table = "longwatch_upload"
        ordering = ("-created_at", "-id")
        constraints = (
            models.UniqueConstraint(fields=["created_by", "slot"], name="longwatch_upload_slot"),
            models.CheckConstraint(
                condition=models.Q(offset__gte=0, offset__lte=models.F("size")),
                name="longwatch_upload_sane",
            ),
        )

    def __str__(self) -> str:
        return self.name


class UploadPart(models.Model):
    """One piece of an upload, in the store as any other bytes."""

    upload = models.ForeignKey(Upload, models.CASCADE, related_name="parts", db_index=False)
    offset = models.BigIntegerField()
    blob = models.ForeignKey(Blob, models.PROTECT)

    class Meta:
        db_table = "longwatch_uploadpart"
        ordering = ("upload", "offset")
        constraints = (
            models.UniqueConstraint(fields=["upload", "offset"], name="longwatch_uploadpart_key"),
        )

    def __str__(self) -> str:
        return f"{self.upload_id} at {self.offset}"
