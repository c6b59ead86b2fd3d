"""Rows that are deleted while they are in use, past the admin: refused, or nobody's loss."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, connection, transaction
from django.db.models import ProtectedError
from django.test import Client

from ledger import sql, states
from ledger.errors import LedgerError
from ledger.events import Actor
from ledger.models import ApprovalVote, Blob, Event, Task, Worker
from ledger.transitions import holder, operators
from ledger.transitions.approvals import decide_approval
from ledger.workflows import Workflow
from tests.dashboard.conftest import make_user
from tests.factories import (
    LEASE,
    ask,
    attempt,
    claim,
    make_in,
    make_unit,
    make_workflow,
    submit,
)

CLIENT_BOT = Actor("token", "bot")

pytestmark = [pytest.mark.both_databases, pytest.mark.case(73)]


def delete_by_sql() -> None:
    """As a person at the database's prompt does it; foreign keys are looked at by the commit."""
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM longwatch_task")
    connection.check_constraints()


@pytest.mark.parametrize("status", states.STATUSES)
def test_a_task_is_not_deleted_by_code_or_by_sql(flow: Workflow, status: str) -> None:
    task = make_in(status, flow)
    with pytest.raises(ProtectedError):
        task.delete()
    with pytest.raises(ProtectedError):
        Task.objects.all().delete()
    with pytest.raises(IntegrityError), transaction.atomic():
        delete_by_sql()
    assert Task.objects.get().status == status


def test_a_workers_row_is_only_a_sign_of_life(flow: Workflow) -> None:
    submit(flow)
    held = claim(flow)
    Worker.objects.all().delete()
    assert sql.beat_leases(held.owner, [held.lease], LEASE)
    assert sql.checkpoint_unit(held, make_unit(held, flow), lease_seconds=LEASE, groups=None)


def test_a_worker_whose_task_was_torn_out_by_force_is_told_so(flow: Workflow) -> None:
    task = submit(flow)
    kept = submit(flow)
    held = claim(flow)
    with connection.cursor() as cursor:
        for table in ("longwatch_event", "longwatch_step_output"):
            cursor.execute(f"DELETE FROM {table} WHERE task_id = (SELECT id FROM longwatch_task "
                           "WHERE status = 'running')")  # fmt: skip
        cursor.execute("DELETE FROM longwatch_task WHERE status = 'running'")
    unit = make_unit(held, flow)
    assert sql.checkpoint_unit(held, unit, lease_seconds=LEASE, groups=None) is None
    assert sql.beat_leases(held.owner, [held.lease], LEASE) == []
    for write in (
        lambda: holder.settle_unit(held, unit),
        lambda: holder.record_failure(held, attempt(), retries=3, backoff=1),
        lambda: holder.release_task(held, why="drain"),
        lambda: holder.report_progress(held.lease, 1, 1, "x"),
    ):
        with pytest.raises(LedgerError):
            write()
    assert not Event.objects.filter(task_id=task.pk).exists()
    assert claim(flow).task_id == kept.pk


def test_bytes_that_are_named_stay(full: Task) -> None:
    with pytest.raises(ProtectedError):
        Blob.objects.all().delete()


def test_the_record_outlives_the_person(flow: Workflow) -> None:
    person = make_user("operator", "leaver")
    task = submit(flow)
    operators.pause_task(task.pk, actor=Actor("user", str(person.pk)), reason="to look")
    key = person.pk
    User.objects.filter(pk=key).delete()
    client = Client()
    client.force_login(make_user("viewer"))
    page = client.get(f"/tasks/{task.pk}/")
    assert page.status_code == 200
    assert f"user {key}" in page.content.decode()
    assert User.objects.order_by("pk").last().pk > key  # no key comes again
    assert Client().get("/tasks/00000000-0000-7000-8000-000000000000/").status_code == 302
    assert client.get("/tasks/00000000-0000-7000-8000-000000000000/").status_code == 404


def test_an_answer_outlives_who_gave_it_and_a_task_its_workflow(flow: Workflow) -> None:
    person = make_user("approver", "leaver")
    task = submit(flow)
    asked = ask(claim(flow), flow, votes=2)
    actor = Actor("user", str(person.pk))
    decide_approval(asked.pk, decision="approve", actor=actor, digest=asked.digest)
    key = person.pk
    User.objects.filter(pk=key).delete()
    client = Client()
    client.force_login(make_user("approver"))
    assert ApprovalVote.objects.get(approval=asked.pk).by == str(actor)
    decide_approval(asked.pk, decision="approve", actor=CLIENT_BOT, digest=asked.digest)
    for path in (f"/approvals/{asked.pk}/", f"/tasks/{task.pk}/"):
        assert client.get(path).status_code == 200
    # Code that is gone takes nothing along: the task waits for a worker that knows it.
    gone = submit(make_workflow("gone"), lane="nobody")
    page = client.get(f"/tasks/{gone.pk}/")
    assert page.status_code == 200
    assert "No worker" in page.content.decode()
