"""API tokens and the audit log."""

from __future__ import annotations

from django.db import models

from ledger.ids import make_id


class ApiToken(models.Model):
    """A client's key: only its SHA-256 is kept, the key itself is shown once."""

    id = models.UUIDField(primary_key=True, default=make_id, editable=False)
    name = models.CharField(max_length=100)
    digest = models.CharField(max_length=64, unique=True)
    scopes = models.JSONField(default=list)
    created_by = models.CharField(max_length=200)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "longwatch_api_token"
        verbose_name = "API token"
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return self.name


class AuditEntry(models.Model):
    """One write (or refused try) by a person or a token. Append-only."""

    at = models.DateTimeField()
    actor = models.CharField(max_length=200)
    action = models.CharField(max_length=60)
    target = models.CharField(max_length=200)
    task = models.UUIDField(null=True, blank=True)
    allowed = models.BooleanField(default=True)
    reason = models.TextField(blank=True, default="")
    before = models.JSONField(null=True, blank=True)
    after = models.JSONField(null=True, blank=True)
    address = models.CharField(max_length=64, blank=True, default="")
    request_id = models.CharField(max_length=64, blank=True, default="")

    class Meta:
        db_table = "longwatch_audit_entry"
        verbose_name_plural = "audit entries"
        ordering = ("-id",)
        indexes = (
            models.Index(fields=["task", "id"], name="longwatch_audit_task"),
            models.Index(fields=["target", "id"], name="longwatch_audit_target"),
        )

    def __str__(self) -> str:
        return f"{self.actor} {self.action} {self.target}"
