"""What happened: accepted outputs, events and money. Append-only, all three."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from ledger.models.task import Task


class StepOutput(models.Model):
    """The accepted output of one unit. A restart supersedes it, nothing deletes it.

    Fence 0 says that no worker stored it: it is a copy, and `copied_from` is `{task, seq}` of the
    output it was taken from, or an edit, and `worker` is the actor who made it.
    """

    task = models.ForeignKey(Task, models.PROTECT, related_name="outputs", db_index=False)
    seq = models.BigIntegerField()
    round = models.IntegerField()
    step_index = models.IntegerField()
    step_name = models.CharField(max_length=100)
    turn = models.IntegerField()
    output = models.JSONField(null=True)
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField()
    worker = models.CharField(max_length=200)
    fence = models.BigIntegerField()
    tokens = models.BigIntegerField(default=0)
    cost = models.BigIntegerField(default=0)
    log_tail = models.TextField(blank=True, default="")
    workspace = models.CharField(max_length=64, blank=True, default="")
    superseded_in_round = models.IntegerField(null=True)
    copied_from = models.JSONField(null=True)

    class Meta:
        db_table = "longwatch_step_output"
        ordering = ("task", "seq")
        constraints = (
            models.UniqueConstraint(fields=["task", "seq"], name="longwatch_output_seq"),
            models.UniqueConstraint(
                fields=["task", "step_index", "turn"],
                condition=Q(superseded_in_round__isnull=True),
                name="longwatch_output_live",
            ),
        )

    def __str__(self) -> str:
        return f"{self.step_name}:{self.turn} of {self.task_id}"


class Event(models.Model):
    """One line of a task's record; kinds are listed in DESIGN and `events.KINDS`."""

    task = models.ForeignKey(Task, models.PROTECT, related_name="events", db_index=False)
    seq = models.BigIntegerField()
    at = models.DateTimeField()
    kind = models.CharField(max_length=40)
    actor = models.CharField(max_length=200)
    step = models.CharField(max_length=100, blank=True, default="")
    turn = models.IntegerField(default=0)
    fence = models.BigIntegerField()
    data = models.JSONField(default=dict)

    class Meta:
        db_table = "longwatch_event"
        ordering = ("task", "seq")
        constraints = (models.UniqueConstraint(fields=["task", "seq"], name="longwatch_event_seq"),)

    def __str__(self) -> str:
        return f"{self.seq} {self.kind} of {self.task_id}"


class Spend(models.Model):
    """One amount that an attempt spent: recorded once by its key, also for a stale holder."""

    task = models.ForeignKey(Task, models.PROTECT, related_name="spends", db_index=False)
    key = models.CharField(max_length=200)
    at = models.DateTimeField()
    fence = models.BigIntegerField()
    step = models.CharField(max_length=100)
    turn = models.IntegerField()
    tokens_in = models.BigIntegerField(default=0)
    tokens_out = models.BigIntegerField(default=0)
    cost = models.BigIntegerField(default=0)
    note = models.CharField(max_length=500, blank=True, default="")
    stale = models.BooleanField(default=False)
    # Whose budget it counts against. Empty where a child's amount counts in its parent too: it is
    # the child's lane that spent it, once.
    lane = models.CharField(max_length=100, blank=True, default="", db_default="")

    class Meta:
        db_table = "longwatch_spend"
        verbose_name_plural = "spend"
        ordering = ("task", "id")
        # All that a sum reads, so that it never goes to the rows.
        indexes = (
            models.Index(
                fields=["lane", "at", "cost", "tokens_in", "tokens_out"],
                condition=~Q(lane=""),
                name="longwatch_spend_lane",
            ),
        )
        constraints = (
            models.UniqueConstraint(fields=["task", "key"], name="longwatch_spend_key"),
            models.CheckConstraint(
                condition=Q(tokens_in__gte=0, tokens_out__gte=0, cost__gte=0),
                name="longwatch_spend_amounts",
            ),
        )

    def __str__(self) -> str:
        return f"{self.key} of {self.task_id}"


class Reservation(models.Model):
    """An amount announced before a call, so that what runs at once can't pass a limit together.

    Open until it is settled (the amount spent is a Spend) or released. One that its attempt left
    open is of unknown outcome and counts on.
    """

    task = models.ForeignKey(Task, models.PROTECT, related_name="reservations", db_index=False)
    key = models.CharField(max_length=200)
    at = models.DateTimeField()
    fence = models.BigIntegerField()
    step = models.CharField(max_length=100)
    turn = models.IntegerField()
    tokens = models.BigIntegerField(default=0)
    cost = models.BigIntegerField(default=0)
    state = models.CharField(max_length=10, default="open")

    class Meta:
        db_table = "longwatch_reservation"
        ordering = ("task", "id")
        constraints = (
            models.UniqueConstraint(fields=["task", "key"], name="longwatch_reservation_key"),
            models.CheckConstraint(
                condition=Q(state__in=["open", "settled", "released"], tokens__gte=0, cost__gte=0),
                name="longwatch_reservation_sane",
            ),
        )

    def __str__(self) -> str:
        return f"{self.key} of {self.task_id}: {self.state}"
