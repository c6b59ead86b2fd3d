"""A cancel where nothing runs: final at once, without a worker, and who comes late is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from dashboard.actions import name_position
from ledger import clock, sql, states
from ledger.access import SCOPES
from ledger.models import Approval, Event, Task, Worker
from ledger.runner import Engine
from ledger.sweeper import sweep
from ledger.tokens import make_token
from ledger.transitions import holder, operators
from ledger.workflows import Workflow
from tests.api.conftest import Api
from tests.factories import (
    LEASE,
    OPERATOR,
    OTHER,
    ask,
    claim,
    complete,
    make_in,
    make_unit,
    spawn,
    submit,
    wait_for,
)

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db, pytest.mark.case(52)]

type Maker = Callable[[Workflow], Task]


def make_repaired(three: Workflow) -> Task:
    """Restarted by its own check, and not claimed since."""
    task = submit(three, max_repairs=2)
    held = claim(three)
    sql.checkpoint_unit(held, make_unit(held, three), lease_seconds=LEASE, groups=[])
    operators.retry_task(task.id, actor=OPERATOR)
    held = claim(three)
    holder.repair_task(
        held, make_unit(held, three), to_index=0, to_name="a", feedback="thin", named=["a"]
    )
    return task


def make_waiting(three: Workflow, how: Callable[..., Any]) -> Task:
    """It waits, as `how` makes it."""
    task = submit(three)
    how(claim(three), three)
    return task


def make_sleeping(three: Workflow) -> Task:
    """Its step asked for an hour."""
    task = submit(three)
    held = claim(three)
    holder.settle_unit(held, make_unit(held, three), delay=3600)
    return task


MAKERS: dict[str, Maker] = {
    "queued, no worker": submit,
    "backing off": lambda three: make_in(states.SCHEDULED, three),
    "sleeping": make_sleeping,
    "repaired": make_repaired,
    "paused": lambda three: make_in(states.PAUSED, three),
    "for a person": lambda three: make_waiting(three, ask),
    "for a signal": lambda three: make_waiting(three, wait_for),
    "for children": lambda three: make_waiting(three, spawn),
    "failed": lambda three: make_in(states.FAILED, three),
    "gave up": lambda three: make_in(states.DEAD, three),
}


def make_api() -> Api:
    """A caller with every scope."""
    return Api(make_token("test", SCOPES, created_by="cli:test")[1])


def post_form(client: Client, task: Task, name: str, **typed: str) -> Any:
    """What a tab sends that was opened when the task was as `task` has it."""
    seen = {"revision": str(task.revision), "seen": name_position(task)}
    return client.post(reverse("dashboard:act", args=[task.id, name]), seen | typed)


@pytest.mark.parametrize("name", MAKERS)
def test_a_cancel_where_nothing_runs_is_final_at_once(
    operator: Client,
    sign_in: Callable[..., Client],
    three: Workflow,
    name: str,
) -> None:
    task = MAKERS[name](three)
    task.refresh_from_db()
    asked = Approval.objects.filter(task=task).first()
    assert not Worker.objects.exists()
    operators.cancel_task(task.id, actor=OPERATOR, reason="not needed")
    now = Task.objects.get(pk=task.pk)
    assert (now.status, now.finished_at is not None) == (states.CANCELLED, True)

    api, path = make_api(), f"/tasks/{task.id}"
    late: dict[str, dict[str, Any]] = {
        "retry": {}, "resume": {}, "pause": {}, "stop": {}, "limits": {"units": 99},
        "repair": {"to_step": 0}, "signals/go": {}, "change": {"priority": 1},
    }  # fmt: skip
    for action, body in late.items():
        told = api.post(f"{path}/{action}", body).expect_problem(409, "wrong_status")
        assert "cancelled" in told["detail"]
    for action, typed in (
        ("retry", {}), ("resume", {}), ("restart", {"to_step": "a", "note": "again"}),
    ):  # fmt: skip
        answer = post_form(operator, task, action, **typed)
        assert answer.status_code == 409
        assert "The task has changed since you looked" in answer.content.decode()
    if asked is not None:
        told = api.post(
            f"/approvals/{asked.id}/answer", {"decision": "approve", "digest": asked.digest}
        ).expect_problem(409, "approval_closed")
        assert "void" in told["detail"]
        tab = {"decision": "approve", "digest": asked.digest}
        answer = sign_in("approver").post(reverse("dashboard:answer", args=[asked.id]), tab)
        assert answer.status_code == 409

    api.post(f"{path}/cancel").expect(200)  # twice is harmless
    assert post_form(operator, now, "cancel").status_code == 302
    assert Event.objects.filter(task=task, kind="cancelled").count() == 1
    assert Task.objects.get(pk=task.pk).revision == now.revision

    clock.offset += 30 * 86_400
    sweep()
    taken = Engine(OTHER).claim()  # a worker at last: of a cancelled parent, not even a child
    assert taken is None or name == "for children"
    assert taken is None or taken.task_id != task.id
    assert Task.objects.get(pk=task.pk).revision == now.revision


def test_what_is_final_says_so_to_a_cancel(three: Workflow) -> None:
    task = submit(three)
    held = claim(three)
    held.step_index = 2
    complete(held, three)
    told = make_api().post(f"/tasks/{task.id}/cancel").expect_problem(409, "wrong_status")
    assert "completed" in told["detail"]
