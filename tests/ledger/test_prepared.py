"""What is prepared on a connection to PostgreSQL: with a pooler between, nothing, for the next
statement may meet another server process."""

from __future__ import annotations

import dataclasses

import pytest
from django.db import connection

from ledger import client, clock, sql
from ledger.models import Task
from ledger.sql import postgresql
from ledger.workflows import Workflow
from tests.crash.past import copy_task
from tests.factories import LEASE, claim, complete, make_unit, submit
from tests.ledger.cutting import Proxy

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]

KEY_DATA = b"K\x00\x00\x00\x0c"
"""The server's message BackendKeyData, before the process id and the secret."""


def name_another_process(data: bytes) -> bytes:
    """As a pooler does, which has no server process yet when it answers."""
    before, found, after = data.partition(KEY_DATA)
    return before + found + b"\x00\x01\x02\x03" + after[4:] if found else data


def list_prepared() -> list[str]:
    """The beginnings of what this connection's server process has prepared."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement FROM pg_prepared_statements ORDER BY prepare_time")
        return [row[0].strip()[:20] for row in cursor.fetchall()]


def test_submissions_are_prepared_where_nothing_is_between(flow: Workflow) -> None:
    connection.close()
    for _ in range(3):
        client.submit(flow)
    assert list_prepared() == ["WITH made AS (INSERT"]
    assert Task.objects.count() == 3


def test_submissions_through_a_pooler_are_not(proxy: Proxy, flow: Workflow) -> None:
    proxy.alter = name_another_process
    for _ in range(3):
        client.submit(flow)
    assert list_prepared() == []
    assert Task.objects.count() == 3


def test_numbers_that_grow_need_no_new_plan(flow: Workflow) -> None:
    connection.close()
    submit(flow)
    held = claim(flow)
    known = None
    for turn, fence in enumerate((2, 40_000, 3_000_000_000)):
        Task.objects.filter(pk=held.task_id).update(fence=fence)
        held = dataclasses.replace(held, fence=fence, turn=turn)
        unit = make_unit(held, flow, next_index=0, next_name="a", next_turn=turn + 1)
        settled = sql.checkpoint_unit(held, unit, lease_seconds=LEASE, groups=None)
        assert settled is not None
        assert settled.kept_fence == fence + 1
        known = known or list_prepared()
    assert list_prepared() == known


def test_an_idle_worker_has_planned_its_statements_once(flow: Workflow) -> None:
    """Without any change of what is queued, and no first unit waits for a plan."""
    connection.close()
    task = submit(flow)
    before = Task.objects.values().get()
    sql.warm_up()
    known = list_prepared()
    sql.warm_up()
    assert list_prepared() == known
    assert Task.objects.values().get() == before
    held = claim(flow)
    assert (held.task_id, list_prepared()) == (task.pk, known)
    with connection.cursor() as cursor:
        cursor.execute("SELECT sum(custom_plans), min(generic_plans) FROM pg_prepared_statements")
        assert cursor.fetchone() == (0, 1)


def test_a_checkpoint_goes_by_its_tasks_key_beside_many_that_have_ended(flow: Workflow) -> None:
    """An index of those that have not looked as good, as it held nothing when last looked at."""
    submit(flow)
    complete(claim(flow), flow)
    copy_task(Task.objects.get().pk, 20_000, 1.0)
    connection.close()
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE longwatch_task")
    for _ in range(50):
        submit(flow)
    sql.warm_up()
    with connection.cursor() as cursor:
        text, names = postgresql._write("keep", clock.offset)
        cursor.execute("SELECT name FROM pg_prepared_statements WHERE statement = %s", [text])
        [(name,)] = cursor.fetchall()
        cursor.execute(f"EXPLAIN EXECUTE {name}({', '.join(['NULL'] * len(names))})")
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "longwatch_task_pkey" in plan
    assert plan.count(" using ") == 1, plan
