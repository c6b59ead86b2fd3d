"""A bulk operation done by real workers that are killed in the middle of it."""

from __future__ import annotations

import datetime as dt
from collections import Counter

import pytest

from ledger import clock, states
from ledger.bulk.making import make_operation
from ledger.bulk.selecting import Selection
from ledger.models import AuditEntry, BulkOperation, Event, Task
from ledger.transitions.submit import submit_task
from ledger.workflows import registered
from tests.crash.cluster_kit import SIGKILL, SIGTERM, wait_for
from tests.crash.conftest import StartSite
from tests.crash.flows import paced
from tests.factories import CLIENT

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]

TASKS = 100


def test_workers_that_are_killed_in_the_middle_leave_each_task_done_once(
    start_site: StartSite,
) -> None:
    """Every worker of the cluster is killed; new ones go on to the end."""
    later = clock.read() + dt.timedelta(days=1)
    with registered(paced):
        for _ in range(TASKS):
            submit_task(workflow=paced, input={"sink": ""}, actor=CLIENT, not_before=later)
    with start_site() as cluster:
        operation, _ = make_operation("cancel", Selection(), actor=CLIENT)
        pending = operation.items.filter(outcome="pending")
        wait_for("items are done", lambda: pending.count() <= TASKS - 10)
        for pid in cluster.list_pids("worker"):
            cluster.signal(SIGKILL, pid)
        assert pending.exists(), "the kill came too late"
        row = BulkOperation.objects.filter(pk=operation.pk, status="done")
        wait_for("the operation ends", row.exists)
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
    assert Counter(operation.items.values_list("outcome", flat=True)) == {"done": TASKS}
    keys = set(Task.objects.values_list("pk", flat=True))
    events = Counter(Event.objects.filter(kind="cancelled").values_list("task", flat=True))
    audited = AuditEntry.objects.filter(request_id=f"bulk:{operation.pk}")
    assert events == Counter(audited.values_list("task", flat=True)) == Counter(keys)
    assert set(Task.objects.values_list("status", flat=True)) == {states.CANCELLED}
