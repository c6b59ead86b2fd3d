"""`manage.py demo_data`: many copies of tasks that ran, each as sound as its source."""

from __future__ import annotations

import io
from itertools import pairwise
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db.models import Sum
from django.test import Client
from django.urls import reverse

from ledger import clock, hours, queries
from ledger.management.plays import COURSES
from ledger.models import Approval, Event, Spend, StepOutput, Task
from tests.dashboard.conftest import make_user

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]


def make_data(count: int) -> str:
    out = io.StringIO()
    call_command("demo_data", tasks=count, stdout=out, stderr=io.StringIO())
    return out.getvalue()


def check_copy(task: Task) -> None:
    """Its record has no gap and goes forward, its sums are those of its rows."""
    outputs = list(StepOutput.objects.filter(task=task).values_list("seq", "finished_at"))
    events = list(Event.objects.filter(task=task).values_list("seq", "at"))
    record = sorted(outputs + events)
    assert [seq for seq, _ in record] == list(range(1, task.event_seq + 1))
    assert all(before <= after for (_, before), (_, after) in pairwise(record))
    assert record[0][1] == task.created_at
    late = record[-1][1] - (task.finished_at or record[-1][1])
    assert abs(late.total_seconds()) < 1  # SQLite reads its clock once for each of them
    spent = Spend.objects.filter(task=task).aggregate(Sum("tokens_in"), Sum("cost"))
    assert (spent["tokens_in__sum"] or 0, spent["cost__sum"] or 0) == (
        task.used_tokens_in, task.used_cost,
    )  # fmt: skip
    assert task.used_units == len(outputs)
    questions = {str(one.pk): one for one in Approval.objects.filter(task=task)}
    named = {e.data["approval"] for e in Event.objects.filter(task=task) if "approval" in e.data}
    assert named == set(questions)
    waits = task.status == "waiting"
    assert waits == any(one.status == "open" for one in questions.values())


def test_each_copy_is_as_sound_as_the_task_that_ran_and_more_can_be_added() -> None:
    told = make_data(250)
    copies = Task.objects.exclude(lane__startswith="testing-").exclude(lane="demo-data")
    assert copies.count() == 250
    assert told.startswith(f"250 tasks, {sum(task.event_seq for task in copies):,} outputs and")
    assert {task.status for task in copies} >= {"completed", "failed", "dead", "queued", "waiting"}
    for task in copies.order_by("-id")[:60]:
        check_copy(task)
    waiting = copies.filter(status="waiting").first()
    assert waiting is not None
    check_copy(waiting)
    shown = see_pages(waiting)
    assert all(status == 200 for status in shown.values()), shown
    # More can be added, also to hours that are summed.
    while hours.sum_hour():
        pass
    make_data(5)
    week = 7 * 86_400
    counted = sum(one.tasks for one in queries.sum_ended(week, 3600).amounts.values())
    assert counted == Task.objects.filter(finished_at__gt=clock.now(-week)).count()
    assert Task.objects.count() == 250 + 5 + 2 * len(COURSES)


def see_pages(task: Task) -> dict[str, int]:
    client = Client()
    client.force_login(make_user("operator"))
    names: list[tuple[str, list[Any]]] = [
        ("tasks", []), ("overview", []), ("task", [task.pk]), ("events", [task.pk]),
        ("approval", [Approval.objects.get(task=task).pk]),
    ]  # fmt: skip
    paths = [reverse(f"dashboard:{name}", args=args) for name, args in names]
    return {path: client.get(path).status_code for path in paths}


def test_a_count_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(CommandError, match="--tasks"):
        make_data(0)
