"""Alerts: what is to be told, to whom, and what became of each telling."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from ledger.ids import make_id

PENDING, SENT, DEAD = "pending", "sent", "dead"
STATES = (PENDING, SENT, DEAD)


class Outbox(models.Model):
    """Something that people may want to be told, written in the transaction in which it happened.

    It names the task and holds what is said of it, so it can be told when the task is gone.
    """

    id = models.UUIDField(primary_key=True, default=make_id, editable=False)
    at = models.DateTimeField()
    kind = models.CharField(max_length=40)
    task = models.UUIDField(null=True, blank=True)
    workflow = models.CharField(max_length=100, blank=True, default="")
    lane = models.CharField(max_length=100, blank=True, default="")
    tags = models.JSONField(default=list)
    data = models.JSONField(default=dict)
    # For one rule alone: a test of it, or something judged by a number of its own.
    only = models.ForeignKey("AlertRule", models.PROTECT, null=True, blank=True, db_index=False)
    routed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "longwatch_outbox"
        verbose_name_plural = "outbox"
        ordering = ("-id",)
        indexes = (
            models.Index(
                fields=["id"], condition=Q(routed_at__isnull=True), name="longwatch_outbox_new"
            ),
        )

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


class AlertRule(models.Model):
    """Who is told of what, and by which way: an endpoint, with its sequence and its backoff."""

    id = models.UUIDField(primary_key=True, default=make_id, editable=False)
    name = models.CharField(max_length=100)
    kinds = models.JSONField(default=list)
    workflow = models.CharField(max_length=100, blank=True, default="")
    lane = models.CharField(max_length=100, blank=True, default="")
    tag = models.CharField(max_length=100, blank=True, default="")
    risk = models.CharField(max_length=10, blank=True, default="")
    percent = models.IntegerField(default=80)
    minutes = models.IntegerField(default=15)
    channel = models.CharField(max_length=10)
    target = models.CharField(max_length=2000)
    secret = models.CharField(max_length=100, blank=True, default="")
    old_secret = models.CharField(max_length=100, blank=True, default="")
    old_secret_until = models.DateTimeField(null=True, blank=True)
    enabled = models.BooleanField(default=True)
    removed_at = models.DateTimeField(null=True, blank=True)
    created_by = models.CharField(max_length=200)
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()

    seq = models.BigIntegerField(default=0)
    failures = models.IntegerField(default=0)  # in a row
    next_at = models.DateTimeField()
    busy_until = models.DateTimeField(null=True, blank=True)
    busy_by = models.CharField(max_length=32, blank=True, default="")

    class Meta:
        db_table = "longwatch_alert_rule"
        ordering = ("name", "id")

    def __str__(self) -> str:
        return self.name


class AlertDelivery(models.Model):
    """One event for one rule. `seq` counts without a gap for each rule."""

    rule = models.ForeignKey(AlertRule, models.PROTECT, related_name="deliveries", db_index=False)
    outbox = models.ForeignKey(Outbox, models.PROTECT, related_name="deliveries")
    seq = models.BigIntegerField()
    state = models.CharField(max_length=10, default=PENDING)
    attempts = models.IntegerField(default=0)
    created_at = models.DateTimeField()
    tried_at = models.DateTimeField(null=True, blank=True)
    settled_at = models.DateTimeField(null=True, blank=True)
    error = models.CharField(max_length=500, blank=True, default="")

    class Meta:
        db_table = "longwatch_alert_delivery"
        verbose_name_plural = "alert deliveries"
        ordering = ("-id",)
        indexes = (
            models.Index(
                fields=["rule", "seq"], condition=Q(state=PENDING), name="longwatch_delivery_next"
            ),
            models.Index(
                fields=["rule", "id"], condition=Q(state=DEAD), name="longwatch_delivery_dead"
            ),
        )
        constraints = (
            models.UniqueConstraint(fields=["rule", "seq"], name="longwatch_delivery_seq"),
            models.UniqueConstraint(fields=["rule", "outbox"], name="longwatch_delivery_once"),
            models.CheckConstraint(
                condition=Q(state__in=STATES), name="longwatch_delivery_state_known"
            ),
        )

    def __str__(self) -> str:
        return f"{self.seq} for {self.rule_id}"


class AlertCondition(models.Model):
    """Something that is so just now and was told when it began; the row goes when it is over."""

    key = models.CharField(primary_key=True, max_length=300)
    kind = models.CharField(max_length=40)
    since = models.DateTimeField()

    class Meta:
        db_table = "longwatch_alert_condition"
        ordering = ("since",)

    def __str__(self) -> str:
        return self.key
