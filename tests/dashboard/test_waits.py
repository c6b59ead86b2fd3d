"""What a task's page says of what it waits for, and of its parent and children."""

from __future__ import annotations

import re

import pytest
from django.test import Client
from django.urls import reverse

from ledger import states
from ledger.models import Approval, Task
from ledger.transitions import holder, operators
from ledger.workflows import Workflow
from tests.factories import (
    OPERATOR,
    ask,
    claim,
    complete,
    make_in,
    make_unit,
    spawn,
    submit,
    wait_for,
)

pytestmark = pytest.mark.both_databases


def read_page(client: Client, task: Task) -> str:
    """The task's page, white space apart."""
    response = client.get(reverse("dashboard:task", args=[task.id]))
    return re.sub(r"\s+", " ", response.content.decode())


def test_a_parent_lists_its_children_by_status(operator: Client, three: Workflow) -> None:
    task = submit(three)
    spawn(claim(three), three, 25)
    first, second = (claim(three) for _ in range(2))
    first.step_index = 2
    complete(first, three)
    operators.cancel_task(second.lease.task_id, actor=OPERATOR)
    text = read_page(operator, task)
    shown = re.search(r'<div id="task-children">.*?</section>', text)
    assert shown
    query = f"/tasks/?parent={task.id}"
    for status, label, count in (
        (states.QUEUED, "Queued", 23), (states.RUNNING, "Running", 1),
        (states.COMPLETED, "Completed", 1),
    ):  # fmt: skip
        link = f'href="{query}&amp;status={status}">{label} <span class="num">{count}</span>'
        assert link in shown[0]
    links = re.findall(r'<a href="/tasks/([0-9a-f-]{36})/">', shown[0])
    assert len(links) == 20
    assert str(first.lease.task_id) not in links  # what is completed comes last
    assert "25 of 25 children unfinished" in text
    assert "Waiting for its children" in text
    assert "Waiting for a person" not in text
    child = read_page(operator, Task.objects.get(pk=second.lease.task_id))
    assert f'child of <a class="mono" href="/tasks/{task.id}/">' in child
    assert 'id="children-h"' not in child


@pytest.mark.parametrize(
    ("timeout", "then"), [(3600, "the task goes on without it"), (None, "the task gives up")]
)
def test_a_signal_is_named_with_what_happens_without_it(
    operator: Client, three: Workflow, timeout: int | None, then: str
) -> None:
    task = submit(three)
    wait_for(claim(three), three, timeout=timeout)
    text = read_page(operator, task)
    assert 'it is called <span class="mono">go</span>' in text
    assert re.search(rf"<time [^>]*>in \w+ [^<]*</time> {then}", text)
    assert "Waiting for a signal" in text
    assert "Waiting for a person" not in text


def test_only_a_question_is_for_a_person(operator: Client, three: Workflow) -> None:
    task = submit(three)
    ask(claim(three), three)
    assert "Waiting for a person" in read_page(operator, task)


def test_an_edit_is_told_as_one(operator: Client, three: Workflow) -> None:
    task = submit(three, title="Ferry")
    operators.change_task(task.id, title="Ferries", priority=3, actor=OPERATOR, reason="typo")
    text = read_page(operator, task)
    assert "typo" in text
    assert "title: Ferry → Ferries; priority: 0 → 3" in text or (
        "priority: 0 → 3; title: Ferry → Ferries" in text
    )


def test_a_limit_that_is_asked_about_says_what_a_no_does(operator: Client, three: Workflow) -> None:
    task = submit(three)
    held = claim(three)
    Task.objects.filter(pk=task.pk).update(on_limit="ask", limit_units=1)
    holder.settle_unit(held, make_unit(held, three))
    asked = Approval.objects.get(task=task)
    text = operator.get(f"/approvals/{asked.pk}/").content.decode()
    assert "The task gives up; all outputs stay, an operator can extend the limit." in text
    assert "Goes back to dead" not in text
    assert "<b>At a limit</b>" in read_page(operator, task)


def test_what_waits_says_that_it_pauses_after_that(operator: Client, three: Workflow) -> None:
    for status in (states.SCHEDULED, states.WAITING):
        task = make_in(status, three)
        assert "pauses after that" not in read_page(operator, task)
        operators.pause_task(task.id, actor=OPERATOR)
        assert "; pauses after that" in read_page(operator, task)
