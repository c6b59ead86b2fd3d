"""What of an output's surroundings says whether a person may write another in its place."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import BooleanField, Exists, ExpressionWrapper, OuterRef, Q, Subquery
from django.db.models.expressions import RawSQL

from ledger.models import Approval, Effect, StepOutput, Task
from ledger.models.approvals import QUESTION
from ledger.models.effects import COMPENSATED


def look_for_edit(task_id: UUID) -> dict[str, Any]:
    """Annotations of an output of the task: `asked` whether people were asked about it, here or
    where it was copied from, `undoes` whether the task has undone something, `last` the number of
    its last live output."""
    unit = {"step_index": OuterRef("step_index"), "turn": OuterRef("turn"), "kind": QUESTION}
    asked = Approval.objects.filter(task=OuterRef("task"), round=OuterRef("round"), **unit)
    copied = Q(copied_from__isnull=False)
    before = Approval.objects.filter(task__in=_list_origins(task_id), **unit)
    live = StepOutput.objects.filter(task=task_id, superseded_in_round__isnull=True)
    undoes = Effect.objects.filter(Q(status=COMPENSATED) | Q(undo_tries__gt=0), task=task_id)
    return {
        "asked": ExpressionWrapper(Q(Exists(asked)) | (copied & Q(Exists(before))), BooleanField()),
        "undoes": Exists(undoes),
        "last": Subquery(live.order_by("-seq").values("seq")[:1]),
    }


def _list_origins(task_id: UUID) -> RawSQL:
    """The tasks that it was copied from, one from the other."""
    table = Task._meta.db_table
    key = Task._meta.pk.get_db_prep_value(task_id, connection)
    return RawSQL(
        f"WITH RECURSIVE line(id) AS (SELECT copied_from_id FROM {table} WHERE id = %s "
        f"UNION SELECT one.copied_from_id FROM {table} one JOIN line ON one.id = line.id) "
        "SELECT id FROM line WHERE id IS NOT NULL",
        [key],
    )
