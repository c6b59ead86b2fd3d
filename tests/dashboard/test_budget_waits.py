"""A child that waits for its parent's budget is shown everywhere, and people can act on it."""

from __future__ import annotations

import dataclasses
import datetime as dt

import pytest
from django.test import Client

from ledger import clock, sql, states
from ledger.access import SCOPES
from ledger.errors import LimitReached
from ledger.models import StepOutput, Task
from ledger.tokens import make_token
from ledger.transitions import budgets, operators, outputs, sweeps
from ledger.transitions.forks import fork_task
from ledger.workflows import Workflow
from tests.api.conftest import Api
from tests.factories import LEASE, OPERATOR, attempt, claim, make_unit, spawn, submit

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]


@pytest.fixture
def child(three: Workflow) -> Task:
    """A child at its second step that finds no money left in its parent's limit."""
    submit(three, limits_given={"cost": "1"})
    spawn(claim(three), three, 1)
    held = claim(three)
    settled = sql.checkpoint_unit(held, make_unit(held, three), lease_seconds=LEASE, groups=None)
    assert settled is not None
    assert settled.kept_fence is not None
    again = dataclasses.replace(held, fence=settled.kept_fence, step_index=1, step_name="b")
    short = LimitReached(states.LIMIT_COST, "no money left", 0, str(held.parent_id), 5 * 10**8)
    budgets.await_budget(again, attempt(), short)
    task = Task.objects.get(pk=held.task_id)
    assert (task.status, task.status_reason) == (states.WAITING, states.BUDGET)
    return task


def test_what_waits_for_a_budget_is_listed_and_read(child: Task, operator: Client) -> None:
    api = Api(make_token("test", SCOPES, created_by="cli:test")[1])
    assert {one["id"] for one in api.get("/tasks").expect(200)["items"]} >= {str(child.pk)}
    shown = api.get(f"/tasks/{child.pk}").expect(200)
    assert shown["waiting_for"] == {"budget": {"tokens": 0, "cost": "0.50"}}
    for path in ("/tasks/", f"/tasks/{child.pk}/", f"/tasks/{child.parent_id}/"):
        assert operator.get(path).status_code == 200, path


def test_what_waits_for_a_budget_is_restarted_and_copied_from_the_step_that_waits(
    child: Task,
) -> None:
    copy, _ = fork_task(child.pk, from_step="b", actor=OPERATOR)
    assert copy.step_name == "b"
    operators.restart_task(child.pk, to_step="b", note="try again", actor=OPERATOR)
    child.refresh_from_db()
    assert (child.status, child.step_name, child.waits) == (states.QUEUED, "b", None)


def test_what_a_unit_that_waits_for_a_budget_was_given_can_be_edited(child: Task) -> None:
    seq = StepOutput.objects.get(task=child).seq
    outputs.edit_output(child.pk, seq=seq, output={"ok": False}, actor=OPERATOR, reason="as it was")
    child.refresh_from_db()
    assert (child.status, child.step_name, child.waits) == (states.QUEUED, "b", None)


def test_what_died_while_it_waited_for_a_budget_is_shown_and_waits_for_it_again(
    child: Task, operator: Client
) -> None:
    past = clock.read() - dt.timedelta(seconds=1)
    Task.objects.filter(pk=child.pk).update(deadline_at=past)
    assert sweeps.enforce_limit(child.pk)
    page = operator.get(f"/tasks/{child.pk}/retry/")
    assert page.status_code == 200
    assert "waits for its children" not in page.content.decode()
    later = (clock.read() + dt.timedelta(hours=1)).isoformat()
    operators.extend_limits(child.pk, limits_given={"deadline_at": later}, actor=OPERATOR)
    assert budgets.go_on_with_budget(child.pk)
    child.refresh_from_db()
    assert (child.status, child.step_name) == (states.QUEUED, "b")
