"""The costliest pages of a task, each with everything on it that takes a query."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from ledger import states
from ledger.models import Effect, Task
from ledger.transitions import holder, operators
from ledger.workflows import Workflow
from tests.dashboard.conftest import PART
from tests.factories import (
    OPERATOR,
    ask,
    claim,
    make_effect,
    make_in,
    make_unit,
    spawn,
    submit,
)

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]
TOKEN = "token:01a226da-9930-78b7-a7dd-ee53d01bdb66"
MOST = 12


def make_parent(three: Workflow, **undone: Any) -> Task:
    """A task with an output, more children than are shown, an effect, and people to name."""
    task = submit(three, priority=100)
    held = claim(three)
    holder.settle_unit(held, make_unit(held, three))
    spawn(claim(three), three, 25)
    Task.objects.filter(pk=task.pk).update(submitted_by=TOKEN)
    operators.extend_limits(task.pk, limits_given={"units": 77}, actor=OPERATOR)
    make_effect(task)
    Effect.objects.filter(task=task).update(**undone)
    return task


def open_pages(client: Client, task: Task, counted: Any, **query: str) -> str:
    """The page and its changed poll, each within the bound."""
    path = reverse("dashboard:task", args=[task.pk])
    with counted(MOST):
        page = client.get(path, query)
    with counted(MOST):
        poll = client.get(path, query, headers=PART | {"HX-PTag": "0.0"})
    assert (page.status_code, poll.status_code) == (200, 200)
    return page.content.decode()


@pytest.mark.parametrize("listed", ["", "tag=nightly", "q=timetables", "status=running"])
def test_a_task_with_many_children_takes_few_queries(
    operator: Client, three: Workflow, django_assert_max_num_queries: Any, listed: str
) -> None:
    parent = make_parent(three)
    page = open_pages(operator, parent, django_assert_max_num_queries, list=listed)
    assert 'Queued <span class="num">25</span>' in page
    assert page.count('class="fi"') == 20


def test_a_running_task_opened_from_a_list_takes_few_queries(
    operator: Client, three: Workflow, django_assert_max_num_queries: Any
) -> None:
    for _ in range(5):
        make_in(states.COMPLETED, three)
    parent = make_parent(three)
    for child in parent.children.all():
        operators.cancel_task(child.pk, actor=OPERATOR)
    operators.restart_task(parent.pk, to_step="b", note="again", actor=OPERATOR)
    assert claim(three).task_id == parent.pk
    page = open_pages(operator, parent, django_assert_max_num_queries, list="tag=nightly")
    assert "5 runs" in page


def test_a_task_that_undid_its_effects_takes_few_queries(
    operator: Client, three: Workflow, django_assert_max_num_queries: Any
) -> None:
    parent = make_parent(three, compensation="refund", undo_tries=1, status="compensated")
    open_pages(operator, parent, django_assert_max_num_queries, list="tag=nightly")


def test_a_hand_off_of_everything_takes_few_queries(
    operator: Client, three: Workflow, django_assert_max_num_queries: Any
) -> None:
    parent = make_parent(three)
    for child in parent.children.all():
        operators.cancel_task(child.pk, actor=OPERATOR)
    operators.restart_task(parent.pk, to_step="b", note="again", actor=OPERATOR)
    asked = ask(claim(three), three)
    operators.restart_task(parent.pk, to_step="b", note="once more", actor=OPERATOR)
    assert type(asked).objects.filter(pk=asked.pk).update(status="approved", decision="approve")
    path = reverse("dashboard:handoff", args=[parent.pk])
    operator.get(path)  # Django asks SQLite once in a process whether it knows JSON
    with django_assert_max_num_queries(MOST):
        page = operator.get(path)
    assert "Decisions of people" in page.content.decode()
