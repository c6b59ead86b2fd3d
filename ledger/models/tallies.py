"""Running totals of what the ledger's append-only tables say, since the first row or migration."""

from __future__ import annotations

from django.db import models


class Tally(models.Model):
    """One total of `ledger.tallies`: by workflow, and by what `detail` says (a kind, a bucket).

    How far a table is added up is a row as well, `cursor`, and so is the next stop, `mark`.
    """

    id = models.BigAutoField(primary_key=True)
    name = models.CharField(max_length=20)
    workflow = models.CharField(max_length=100, blank=True, default="")
    detail = models.CharField(max_length=40, blank=True, default="")
    value = models.BigIntegerField()

    class Meta:
        db_table = "longwatch_tally"
        ordering = ("name", "workflow", "detail")
        constraints = (
            models.UniqueConstraint(
                fields=["name", "workflow", "detail"], name="longwatch_tally_once"
            ),
        )

    def __str__(self) -> str:
        return f"{self.name} {self.workflow} {self.detail}: {self.value}"
