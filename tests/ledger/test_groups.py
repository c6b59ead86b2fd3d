"""What is queued is looked at by groups (lane, workflow, version): one look into an index each."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from ledger import sql
from ledger.models import Task
from ledger.queries import metrics
from ledger.transitions import operators
from ledger.workflows import Workflow
from tests.factories import OPERATOR, submit

pytestmark = pytest.mark.django_db

PLACES = [("a", "x", "1"), ("a", "x", "2"), ("a", "y", "1"), ("b", "w", "9"), ("b", "x", "1")]


def put(flow: Workflow, places: list[tuple[str, str, str]], each: int = 1) -> None:
    """So many queued tasks in each of these groups."""
    row = submit(flow)
    fields: dict[str, Any] = {
        f.attname: getattr(row, f.attname) for f in Task._meta.concrete_fields
    }
    operators.pause_task(row.pk, actor=OPERATOR)
    Task.objects.bulk_create(
        Task(**fields | {
            "id": uuid.uuid4(), "lane": lane, "workflow": workflow, "workflow_version": version,
            "rank": row.rank + number,
        })
        for number in range(each) for lane, workflow, version in places
    )  # fmt: skip


def test_every_group_is_told_once_in_order_with_the_rank_of_its_first(flow: Workflow) -> None:
    assert sql.list_heads() == []
    put(flow, PLACES, each=3)
    heads = sql.list_heads()
    assert [group for group, _ in heads] == PLACES
    queued = Task.objects.filter(status="queued")
    assert {rank for _, rank in heads} == {min(queued.values_list("rank", flat=True))}
    assert set(metrics.load_metrics().oldest) == {"w", "x", "y"}


@pytest.mark.sqlite
@pytest.mark.parametrize("look", [sql.list_heads, metrics._read_heads])
def test_a_look_costs_by_the_groups_and_not_by_their_tasks(
    flow: Workflow, look: Callable[[], object]
) -> None:
    """Counted in instructions of SQLite's machine. It read and sorted all that was queued for each
    group: 650 ms with 20,000 tasks."""
    put(flow, PLACES, each=10)
    few = count_instructions(look)
    put(flow, PLACES, each=200)
    assert count_instructions(look) < 1.5 * few
    put(flow, [("c", f"w{n:03}", "1") for n in range(200)])
    once = count_instructions(look)
    put(flow, [("c", f"x{n:03}", "1") for n in range(200)])
    assert count_instructions(look) < 2.5 * once


def count_instructions(look: Callable[[], object]) -> int:
    """In tens."""
    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return 0

    look()
    connection.connection.set_progress_handler(count, 10)
    try:
        look()
    finally:
        connection.connection.set_progress_handler(None, 10)
    return counted
