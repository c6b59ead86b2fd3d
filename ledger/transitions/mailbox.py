"""Which messages to an agent wait in a task's mailbox, and which go back to it."""

from __future__ import annotations

from uuid import UUID

from django.db.models import Max, QuerySet

from ledger.bounds import MESSAGE
from ledger.models import Signal, StepOutput, Task


def list_pending(task_id: UUID) -> QuerySet[Signal]:
    """The messages that no unit has taken, in order."""
    rows = Signal.objects.filter(task=task_id, name=MESSAGE, consumed_seq__isnull=True)
    return rows.order_by("id")


def read_last_stored(task_id: UUID) -> int:
    """The number of the last output that a worker stored: what was taken later is not delivered."""
    rows = StepOutput.objects.filter(task=task_id, fence__gt=0)
    return int(rows.aggregate(last=Max("seq"))["last"] or 0)


def give_back_messages(task: Task) -> None:
    """What a unit took that will never be stored waits again; under the task's lock, by an edge
    that takes the task from its unit, before it stores an output."""
    taken = Signal.objects.filter(task=task, key__isnull=False, name=MESSAGE)
    taken.filter(consumed_seq__gt=read_last_stored(task.pk)).update(consumed_seq=None)
