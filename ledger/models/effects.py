"""Actions on the outside world: what a unit was about to do, and what came of it."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from ledger.models.task import Task

INTENT = "intent"
DONE = "done"
NOT_DONE = "not_done"
COMPENSATED = "compensated"
STATUSES = (INTENT, DONE, NOT_DONE, COMPENSATED)
"""What is on record. An intent whose attempt is over means that nobody knows."""


class Effect(models.Model):
    """One action of one unit, by name. `args` is what it was begun with, by `fingerprint`.

    `fences` names every attempt that began it, as `fence:owner`, the last one last: they may store
    its result, once. `late`: a stale holder's did. `marked_by` is the person who settled it.
    `compensation` is what undoes it when the task fails or is cancelled, by name; the `undo_…`
    columns are of that call what the others are of the first; who said that it undid nothing stands
    among its fences.
    """

    task = models.ForeignKey(Task, models.PROTECT, related_name="effects", db_index=False)
    step = models.CharField(max_length=100)
    turn = models.IntegerField()
    round = models.IntegerField()
    name = models.CharField(max_length=100)
    fingerprint = models.CharField(max_length=64)
    args = models.JSONField(null=True, blank=True)
    status = models.CharField(max_length=16)
    result = models.JSONField(null=True, blank=True)
    tries = models.IntegerField(default=1)
    fences = models.JSONField(default=list)
    late = models.BooleanField(default=False)
    marked_by = models.CharField(max_length=200, blank=True, default="")
    begun_at = models.DateTimeField()
    done_at = models.DateTimeField(null=True, blank=True)
    compensation = models.CharField(max_length=100, blank=True, default="", db_default="")
    undo_tries = models.IntegerField(default=0, db_default=0)
    undo_fences = models.JSONField(null=True, blank=True)
    undo_result = models.JSONField(null=True, blank=True)
    undone_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "longwatch_effect"
        ordering = ("task", "id")
        constraints = (
            models.UniqueConstraint(
                fields=["task", "step", "turn", "round", "name"], name="longwatch_effect_unit"
            ),
            models.CheckConstraint(
                condition=Q(status__in=STATUSES), name="longwatch_effect_status"
            ),
            models.CheckConstraint(
                condition=Q(status=DONE, done_at__isnull=False) | ~Q(status=DONE),
                name="longwatch_effect_done",
            ),
        )

    def __str__(self) -> str:
        return f"{self.name} of {self.task_id}"

    @property
    def key(self) -> str:
        """The idempotency key that it was given."""
        return f"{self.task_id}:{self.step}:{self.turn}:{self.round}:{self.name}"

    @property
    def undo_key(self) -> str:
        """The idempotency key of its compensation; no effect's name has a colon."""
        return f"{self.key}:undo"
