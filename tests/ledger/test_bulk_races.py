"""An operation on many tasks beside whatever else happens: every item is done exactly once."""

from __future__ import annotations

import random
import subprocess
import sys
import time
import uuid
from collections import Counter

import pytest

from ledger import states
from ledger.bulk.doing import do_pending
from ledger.bulk.making import make_operation, stop_operation
from ledger.bulk.selecting import Selection
from ledger.models import AuditEntry, BulkItem, BulkOperation, Event, Task
from ledger.tokens import make_token
from ledger.workflows import Workflow
from tests.conftest import ROOT
from tests.factories import CLIENT, claim, submit
from tests.ledger.threads import PATIENCE, Crew

SWEEP = """
import os, django
os.environ["DJANGO_SETTINGS_MODULE"] = "harness_site.settings"
django.setup()
from ledger.bulk.doing import do_pending
print("ready", flush=True)
while True:
    do_pending(5)
"""


def count_done(operation: BulkOperation) -> int:
    return operation.items.exclude(outcome="pending").count()


def wait_until_done(operation: BulkOperation, number: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while count_done(operation) < number:
        assert time.monotonic() < deadline, count_done(operation)
        time.sleep(0.002)


@pytest.mark.django_db(transaction=True)
def test_sweeps_that_are_killed_at_any_instant_leave_each_item_done_once(
    flow: Workflow, site_env: dict[str, str]
) -> None:
    tasks = [submit(flow) for _ in range(200)]
    operation, _ = make_operation("pause", Selection(), actor=CLIENT)
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    for mark in (20, 90):
        command = [sys.executable, "-c", SWEEP]
        with subprocess.Popen(command, env=site_env, cwd=ROOT, stdout=subprocess.PIPE) as process:
            wait_until_done(operation, mark + chance.randrange(20))
            process.kill()
    assert count_done(operation) < 200, f"the kills came too late, seed {seed}"
    while do_pending():
        pass
    check_each_once(operation, tasks, "paused")
    operation.refresh_from_db()
    assert operation.status == "done"


def check_each_once(operation: BulkOperation, tasks: list[Task], kind: str) -> None:
    """One item, one event and one entry of the audit log for each, and they agree."""
    keys = {task.pk for task in tasks}
    assert Counter(operation.items.values_list("task", "outcome")) == Counter(
        (key, "done") for key in keys
    )
    events = Counter(Event.objects.filter(kind=kind).values_list("task_id", flat=True))
    audited = AuditEntry.objects.filter(request_id=f"bulk:{operation.pk}")
    assert events == Counter(audited.values_list("task", flat=True)) == Counter(keys)


@pytest.mark.django_db(transaction=True)
def test_a_request_that_is_sent_twice_at_once_makes_one(flow: Workflow, together: Crew) -> None:
    submit(flow)
    keys = [uuid.uuid4() for _ in range(4)]
    for key in keys:
        begin = lambda key=key: make_operation("tag", Selection(), actor=CLIENT, key=str(key),  # noqa: E731
                                               arguments={"tags": [str(key)]})  # fmt: skip
        made = together(begin, begin, begin)
        assert len({row.pk for row, _ in made}) == sum(new for _, new in made) == 1
        make = lambda key=key: make_token("ci", ["read"], created_by="user:1", key=key)  # noqa: E731
        assert sorted(type(one).__name__ for one in together(make, make, make)) == [
            "AlreadySettled", "AlreadySettled", "tuple",
        ]  # fmt: skip
    assert AuditEntry.objects.filter(action="bulk_started").count() == len(keys)
    assert AuditEntry.objects.filter(action="create_token").count() == len(keys)


@pytest.mark.django_db(transaction=True)
def test_workers_that_sweep_at_once_do_each_item_once(flow: Workflow, together: Crew) -> None:
    tasks = [submit(flow) for _ in range(40)]
    operation, _ = make_operation("pause", Selection(), actor=CLIENT)

    def sweep() -> int:
        done = 0
        while moved := do_pending(7):
            done += moved
        return done

    done = together(sweep, sweep, sweep)
    while more := sweep():  # what was passed over because another was at it
        done.append(more)
    assert sum(done) == 40
    check_each_once(operation, tasks, "paused")


@pytest.mark.django_db(transaction=True)
def test_a_stop_beside_sweeps_is_final(flow: Workflow, together: Crew) -> None:
    """What was begun before the stop may end; nothing is begun after it was told."""
    for _ in range(30):
        submit(flow)
    operation, _ = make_operation("pause", Selection(), actor=CLIENT)

    def sweep() -> None:
        for _ in range(30):
            do_pending(1)

    together(sweep, lambda: stop_operation(operation.pk, actor=CLIENT), sweep)
    do_pending()
    operation.refresh_from_db()
    outcomes = Counter(operation.items.values_list("outcome", flat=True))
    assert operation.status in {"stopped", "done"}
    assert set(outcomes) <= {"done", "stopped"}
    assert Task.objects.filter(status=states.PAUSED).count() == outcomes["done"]


@pytest.mark.django_db(transaction=True)
def test_two_operations_on_the_same_tasks_beside_a_claim_end_in_a_state_that_fits(
    flow: Workflow, together: Crew
) -> None:
    tasks = [submit(flow) for _ in range(12)]
    chosen = Selection(ids=tuple(task.pk for task in tasks))
    pause, _ = make_operation("pause", chosen, actor=CLIENT)
    cancel, _ = make_operation("cancel", chosen, actor=CLIENT)

    def sweep() -> None:
        while do_pending(3):
            pass

    together(sweep, sweep, lambda: claim(flow))
    sweep()
    assert not BulkItem.objects.filter(outcome="pending").exists()
    for item in cancel.items.all():
        row = Task.objects.get(pk=item.task)
        ended = row.status == states.CANCELLED or row.cancel_requested
        assert ended == (item.outcome == "done"), item.why
        kinds = Counter(Event.objects.filter(task=row).values_list("kind", flat=True))
        assert max(kinds.values()) == 1
    assert {row.status for row in (pause, cancel)} == {"running"}  # as they were read
    assert set(BulkOperation.objects.values_list("status", flat=True)) == {"done"}
