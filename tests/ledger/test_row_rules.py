"""What the database itself refuses on a task's row, whoever writes it."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import Model, QuerySet

from ledger import clock
from ledger.models import Event, StepOutput, Task
from ledger.workflows import Workflow
from tests.factories import claim, complete, submit

COUNTERS = """attempts reclaims releases round repair_count max_repairs step_index turn total_steps
  fence used_units used_tokens_in used_tokens_out used_cost limit_units limit_tokens limit_cost
  reserved_tokens reserved_cost children_open event_seq revision beat""".split()
NOW = clock.now()
RENAME = "UPDATE longwatch_task SET id = '00000000000000000000000000000000'"
IDLE = {"lease_until": None, "lease_owner": ""}
STANDS = {"wall_until": None, "wall_left": 1.0}
WRONG: dict[str, list[dict[str, Any]]] = {
    "queued": [
        {"status": "bogus"},
        {"status": "running"},
        {"lease_until": NOW},
        {"lease_owner": "host:1:boot-1"},
        {"finished_at": NOW},
        {"status": "completed", **STANDS},
        {"status": "paused"},
        {"status": "scheduled", "status_reason": "sleep"},
        {"wall_left": 1.0},
        {"wall_until": None},
        STANDS,
        {"priority": 101},
        {"priority": -101},
        {"repair_count": 1},
        *({counter: -1} for counter in COUNTERS),
    ],
    "running": [IDLE, {"lease_owner": ""}, {"lease_until": None}, {"status": "queued"}],
    "completed": [
        {"finished_at": None},
        {"status": "queued"},
        {"status": "queued", "wall_until": NOW, "wall_left": None},
        {"wall_until": NOW},
        {"wall_until": NOW, "wall_left": None},
        {"status_reason": "sleep", "wall_until": NOW, "wall_left": None},
    ],
}
RIGHT: dict[str, list[dict[str, Any]]] = {
    "queued": [
        {"status": "paused", **STANDS},
        {"status": "scheduled"},
        {"status": "scheduled", "status_reason": "sleep", **STANDS},
        {"status": "dead", "finished_at": NOW, **STANDS},
        {"priority": -100},
        {"round": 2, "repair_count": 2},
        dict.fromkeys(set(COUNTERS) - {"round"}, 0),
    ],
    "running": [{"status": "queued", **IDLE}],
    "completed": [{"status": "failed"}, {"status": "waiting", "finished_at": None}],
}


def try_fields(row: QuerySet[Task], fields: dict[str, Any]) -> None:
    """Write them to the one row, and take them back."""
    with transaction.atomic():
        assert row.update(**fields) == 1
        transaction.set_rollback(True)


@pytest.mark.parametrize("status", WRONG)
def test_a_row_that_breaks_a_rule_is_refused(status: str, flow: Workflow) -> None:
    task = submit(flow)
    if status != "queued":
        held = claim(flow)
        if status == "completed":
            complete(held, flow)
    row = Task.objects.filter(pk=task.pk)
    assert row.get().status == status
    for wrong in WRONG[status]:
        with pytest.raises(IntegrityError, match="longwatch_task_"):
            try_fields(row, wrong)
    for right in RIGHT[status]:
        try_fields(row, right)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kept", [StepOutput, Event])
@pytest.mark.parametrize("change", ["DELETE FROM longwatch_task", RENAME])
def test_a_task_with_a_history_is_neither_deleted_nor_renamed(
    kept: type[Model], change: str, flow: Workflow
) -> None:
    task = submit(flow)
    complete(claim(flow), flow)
    for history in {StepOutput, Event} - {kept}:
        history.objects.all().delete()
    with pytest.raises(IntegrityError), connection.cursor() as cursor:
        cursor.execute(change)
    assert Task.objects.get().pk == task.pk


@pytest.mark.django_db(transaction=True)
def test_a_task_goes_together_with_its_history(flow: Workflow) -> None:
    """In one transaction, in any order."""
    submit(flow)
    complete(claim(flow), flow)
    with transaction.atomic(), connection.cursor() as cursor:
        for table in (Task, StepOutput, Event):
            cursor.execute(f"DELETE FROM {table._meta.db_table}")
    assert not Task.objects.exists()
