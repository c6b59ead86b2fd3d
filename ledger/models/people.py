"""API tokens, what people see and how they like it, and the audit log."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from ledger.ids import make_id


class ApiToken(models.Model):
    """A client's key: only its SHA-256 is kept, the key itself is shown once.

    `lanes` (None: all) and `payload` are what it sees, as of a `Reach`.
    """

    id = models.UUIDField(primary_key=True, default=make_id, editable=False)
    name = models.CharField(max_length=100)
    digest = models.CharField(max_length=64, unique=True)
    scopes = models.JSONField(default=list)
    lanes = models.JSONField(null=True, blank=True)
    payload = models.BooleanField(default=True, db_default=True)
    created_by = models.CharField(max_length=200)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    last_used_from = models.CharField(max_length=64, db_default="", blank=True)
    """The address of the request then."""
    owner = models.CharField(max_length=200, db_default="", blank=True)
    """The person it works for (`user:3`), who may answer nothing that it submitted; or nobody."""

    class Meta:
        db_table = "longwatch_api_token"
        verbose_name = "API token"
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return self.name


class Reach(models.Model):
    """How far a person sees: `lanes` (None: all), and whether contents. Without a row: everything.

    Its role says what the person may do there.
    """

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, models.CASCADE, primary_key=True, related_name="longwatch_reach"
    )
    lanes = models.JSONField(null=True, blank=True)
    payload = models.BooleanField(default=True, db_default=True)

    class Meta:
        db_table = "longwatch_reach"
        verbose_name = "reach of a person"
        verbose_name_plural = "reach of people"

    def __str__(self) -> str:
        return str(self.user_id)


class Preference(models.Model):
    """How a person likes the pages. Without a row: the defaults."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, models.CASCADE, primary_key=True,
        related_name="longwatch_preference",
    )  # fmt: skip
    zone = models.CharField(max_length=64, blank=True, default="", db_default="")
    hours = models.PositiveSmallIntegerField(default=24, db_default=24)
    theme = models.CharField(max_length=16, default="system", db_default="system")
    density = models.CharField(max_length=16, default="roomy", db_default="roomy")
    keys = models.BooleanField(default=True, db_default=True)
    view = models.CharField(max_length=100, blank=True, default="", db_default="")

    class Meta:
        db_table = "longwatch_preference"
        verbose_name = "preferences of a person"
        verbose_name_plural = "preferences of people"

    def __str__(self) -> str:
        return str(self.user_id)


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
            models.Index(fields=["actor", "id"], name="longwatch_audit_actor"),
            models.Index(fields=["action", "id"], name="longwatch_audit_action"),
        )

    def __str__(self) -> str:
        return f"{self.actor} {self.action} {self.target}"


class Visit(models.Model):
    """When a person last looked at the first page, and since when what happened is news to them
    (null: they have seen it)."""

    actor = models.CharField(primary_key=True, max_length=200)
    seen_at = models.DateTimeField()
    since = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "longwatch_visit"
        ordering = ("-seen_at",)

    def __str__(self) -> str:
        return self.actor
