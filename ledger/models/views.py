"""Views of the task list that people keep."""

from __future__ import annotations

from django.db import models

from ledger.ids import make_id


class SavedView(models.Model):
    """Filters, columns and order of the task list, under a name of its owner's.

    `filters` is a list of [key, value], `columns` of names (empty: the usual ones). Who keeps it
    among their tabs is in `pinned_by`, so that nobody's choice moves another's tabs.
    """

    id = models.UUIDField(primary_key=True, default=make_id, editable=False)
    owner = models.CharField(max_length=200)
    name = models.CharField(max_length=60)
    filters = models.JSONField(default=list)
    columns = models.JSONField(default=list)
    sort = models.CharField(max_length=20, blank=True, default="")
    shared = models.BooleanField(default=False)
    pinned_by = models.JSONField(default=list)
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()

    class Meta:
        db_table = "longwatch_saved_view"
        ordering = ("name", "id")
        constraints = (
            models.UniqueConstraint(fields=["owner", "name"], name="longwatch_view_name"),
        )
        indexes = (
            models.Index(
                fields=["id"], condition=models.Q(shared=True), name="longwatch_view_shared"
            ),
        )

    def __str__(self) -> str:
        return self.name
