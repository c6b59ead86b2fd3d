"""What an operator does: without a script a form and a redirect, with one the changed parts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse

from dashboard.actions import ACTIONS, name_position
from ledger import clock, registry, sql, states
from ledger.models import Effect, Event, Signal, StepOutput, Task
from ledger.queries import STOP_AFTER
from ledger.transitions import holder, operators
from ledger.transitions.effects import begin_undo, mark_effect
from ledger.transitions.steering import steer_task
from ledger.workflows import Workflow
from tests.dashboard.conftest import PART
from tests.factories import (
    LEASE,
    OPERATOR,
    attempt,
    claim,
    make_effect,
    make_in,
    make_unit,
    make_workflow,
    submit,
)

pytestmark = pytest.mark.both_databases

FROM = {
    "pause": states.QUEUED, "resume": states.PAUSED, "retry": states.DEAD,
    "restart": states.DEAD, "limits": states.QUEUED, "cancel": states.QUEUED,
    "stop": states.RUNNING, "change": states.SCHEDULED, "signal": states.QUEUED,
    "fork": states.COMPLETED, "edit": states.DEAD, "effect": states.DEAD,
    "compensate": states.DEAD, "steer": states.QUEUED, "withdraw": states.QUEUED,
}  # fmt: skip
TO = {
    "pause": states.PAUSED, "resume": states.QUEUED, "retry": states.QUEUED,
    "restart": states.QUEUED, "limits": states.QUEUED, "cancel": states.CANCELLED,
    "stop": states.CANCELLED, "change": states.SCHEDULED, "signal": states.QUEUED,
    "fork": states.COMPLETED, "edit": states.QUEUED, "effect": states.DEAD,
    "compensate": states.QUEUED, "steer": states.QUEUED, "withdraw": states.QUEUED,
}  # fmt: skip
ELSEWHERE = {"stop", "edit", "effect", "compensate", "steer", "withdraw"}
"""Those that do not stand, or not always, in the bar of actions."""
TYPED: dict[str, dict[str, str]] = {
    "restart": {"to_step": "a", "note": "try the other source"},
    "limits": {"units": "20000", "tokens": "5", "cost": "7.50", "wall": "1.5"},
    "cancel": {"reason": "not needed"},
    "compensate": {"reason": "we give it back"},
    "change": {"title": "Ferries", "lane": "night", "priority": "5", "tags": "a, b"},
    "signal": {"name": "go", "carries": '{"n": 1}', "token": "t1"},
    "fork": {"from_step": "a", "input": "{}", "token": "t1"},
    "edit": {"output": '{"ok": false}', "reason": "the source is wrong"},
    "steer": {"text": "go left", "token": "t1"},
}


def prepare(name: str, workflow: Workflow) -> Task:
    """A task that the action can be taken on."""
    if name == "edit":
        return make_dead_at_b(workflow)
    task = make_in(FROM[name], workflow)
    if name == "effect":
        TYPED["effect"] = {"mark": f"{make_effect(task).pk}:done", "reason": "seen at the bank"}
    if name == "compensate":
        make_effect(task, compensation="refund")
    if name == "withdraw":
        steer_task(task.pk, text="go left", actor=OPERATOR)
        task.refresh_from_db()
    if name == "stop":
        operators.cancel_task(task.id, actor=OPERATOR)
        task.refresh_from_db()
        clock.offset += STOP_AFTER + 1
    return task


def make_dead_at_b(workflow: Workflow) -> Task:
    """A task that stored what a left and gave up at b."""
    task = submit(workflow)
    held = claim(workflow)
    sql.checkpoint_unit(held, make_unit(held, workflow), lease_seconds=LEASE, groups=[])
    operators.retry_task(task.id, actor=OPERATOR)
    holder.record_failure(claim(workflow), attempt(), retries=0, backoff=1)
    task.refresh_from_db()
    return task


def path_of(task: Task, name: str) -> str:
    """Where the action is posted."""
    return reverse("dashboard:act", args=[task.id, name])


def ask_path(task: Task, name: str) -> str:
    """Where its form is."""
    units = {"edit": StepOutput, "withdraw": Signal}
    if name not in units:
        return path_of(task, name)
    one = units[name].objects.get(task=task)
    return f"{path_of(task, name)}?unit={one.seq if name == 'edit' else one.pk}"


def fill(task: Task, name: str, /, **more: str) -> dict[str, str]:
    """The form as the page sent it, typed into."""
    seen = {"revision": str(task.revision), "seen": name_position(task)}
    if name == "edit":
        seen["seq"] = str(StepOutput.objects.get(task=task).seq)
    if name == "withdraw":
        seen["message"] = str(Signal.objects.get(task=task).pk)
    return seen | TYPED.get(name, {}) | more


@pytest.fixture
def agents(three: Workflow, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step is an agent's."""
    monkeypatch.setattr(three.steps[0].fn, registry.AGENT, True, raising=False)


@pytest.mark.usefixtures("agents")
@pytest.mark.parametrize("name", ACTIONS)
def test_an_action_without_a_script(operator: Client, three: Workflow, name: str) -> None:
    task = prepare(name, three)
    place = reverse(f"dashboard:{'transcript' if name == 'withdraw' else 'task'}", args=[task.id])
    page = operator.get(place).content.decode()
    assert f'href="{ask_path(task, name)}' in page or f'action="{path_of(task, name)}"' in page
    form = operator.get(ask_path(task, name))
    assert form.status_code == 200
    assert b"</html>" in form.content
    response = operator.post(path_of(task, name), fill(task, name))
    assert response.status_code == 302
    goal = Task.objects.get(copied_from=task) if name == "fork" else task
    assert response["Location"] == reverse("dashboard:task", args=[goal.id])
    task.refresh_from_db()
    assert task.status == TO[name]
    assert ACTIONS[name].done in operator.get(response["Location"]).content.decode()


@pytest.mark.usefixtures("agents")
@pytest.mark.parametrize("name", ACTIONS)
def test_an_action_with_a_script(operator: Client, three: Workflow, name: str) -> None:
    task = prepare(name, three)
    form = operator.get(ask_path(task, name), headers=PART)
    assert form.content.decode().lstrip().startswith("<form")
    response = operator.post(path_of(task, name), fill(task, name), headers=PART)
    assert response.status_code == 200
    if name == "fork":  # the whole page goes to the copy
        copy = Task.objects.get(copied_from=task)
        assert response["HX-Redirect"] == reverse("dashboard:task", args=[copy.id])
        return
    assert response["HX-Retarget"] == "#task-vitals"
    assert json.loads(response["HX-Trigger"]) == {"done": True}
    text = response.content.decode()
    assert f'data-status="{TO[name]}"' in text
    assert ACTIONS[name].done in text
    assert "</html>" not in text


def test_the_page_lists_effects_and_an_operator_settles_one(
    operator: Client, sign_in: Callable[..., Client], three: Workflow
) -> None:
    task = prepare("effect", three)
    page = reverse("dashboard:task", args=[task.id])
    text = operator.get(page).content.decode()
    assert "Unknown" in text
    assert f"{task.id}:a:0:0:pay" in text
    assert "Settle effect" not in sign_in("viewer", "of-viewer").get(page).content.decode()
    form = operator.get(path_of(task, "effect")).content.decode()
    effect = Effect.objects.get()
    assert re.findall(r'name="mark" value="([^"]*)"', form) == [
        f"{effect.pk}:{to}" for to in ("done", "not_done", "compensated")
    ]
    operator.post(path_of(task, "effect"), fill(task, "effect"))
    effect.refresh_from_db()
    assert (effect.status, effect.marked_by[:5]) == ("done", "user:")
    task.refresh_from_db()
    again = operator.post(path_of(task, "effect"), fill(task, "effect"))
    assert again.status_code == 422
    assert "it was done, and is undone" in again.content.decode()


def test_an_effect_that_nobody_knows_is_shown_before_later_ones(
    operator: Client, three: Workflow
) -> None:
    task = make_in(states.DEAD, three)
    lost = make_effect(task, "lost")
    for number in range(60):
        make_effect(task, f"done-{number}")
    Effect.objects.exclude(pk=lost.pk).update(status="done", done_at=clock.now())
    form = operator.get(path_of(task, "effect")).content.decode()
    marks = re.findall(r'name="mark" value="([^"]*)"', form)
    assert marks[:4] == [
        *(f"{lost.pk}:{to}" for to in ("done", "not_done", "compensated")),
        f"{lost.pk + 60}:compensated",
    ]
    assert len(marks) == 3 + 49


def test_what_was_done_is_on_record_with_who_and_why(operator: Client, three: Workflow) -> None:
    task = prepare("cancel", three)
    operator.post(path_of(task, "cancel"), fill(task, "cancel"))
    event = Event.objects.get(task=task, kind="cancelled")
    assert event.actor.startswith("user:")
    assert event.data["reason"] == "not needed"


@pytest.mark.parametrize("headers", [{}, PART])
def test_a_refused_action_says_what_is_true_now(
    operator: Client, three: Workflow, headers: dict[str, str]
) -> None:
    task = make_in(states.QUEUED, three)
    form = fill(task, "pause")
    operators.cancel_task(task.id, actor=OPERATOR)
    response = operator.post(path_of(task, "pause"), form, headers=headers)
    assert response.status_code == 409
    text = response.content.decode()
    assert 'data-status="cancelled"' in text
    assert "The task has changed since you looked" in text


@pytest.mark.parametrize("headers", [{}, PART])
def test_a_stale_form_is_refused_and_keeps_what_was_typed(
    operator: Client, three: Workflow, headers: dict[str, str]
) -> None:
    task = make_in(states.DEAD, three)
    form = fill(task, "restart", note="read the second file")
    operators.retry_task(task.id, actor=OPERATOR)
    response = operator.post(path_of(task, "restart"), form, headers=headers)
    assert response.status_code == 409
    text = response.content.decode()
    assert "read the second file" in text
    assert "The task has changed since you looked" in text
    task.refresh_from_db()
    assert (task.status, task.round) == (states.QUEUED, 0)
    # The form that came back is about the task as it is now.
    again = dict(re.findall(r'name="(revision|seen)" value="([^"]*)"', text))
    assert again == {"revision": str(task.revision), "seen": name_position(task)}
    form = again | {"to_step": "a", "note": "read the second file"}
    assert operator.post(path_of(task, "restart"), form, headers=headers).status_code in {200, 302}


def test_units_of_the_same_step_do_not_make_a_form_stale(operator: Client) -> None:
    """A busy task has a new revision each second; its operator must still get through."""
    from ledger import registry

    workflow = make_workflow("busy")
    with registry.registered(workflow):
        task = submit(workflow)
        held = claim(workflow)
        task.refresh_from_db()
        form = fill(task, "restart")
        loop = make_unit(held, workflow, next_index=0, next_name="a", next_turn=1)
        sql.checkpoint_unit(held, loop, lease_seconds=LEASE, groups=[])
        revision = Task.objects.get(pk=task.pk).revision
        assert revision > task.revision
        assert operator.post(path_of(task, "restart"), form).status_code == 302
    task.refresh_from_db()
    assert (task.status, task.round) == (states.QUEUED, 1)


@pytest.mark.parametrize("headers", [{}, PART])
@pytest.mark.parametrize(
    ("name", "typed"),
    [
        ("restart", {"note": ""}), ("restart", {"to_step": "nowhere"}),
        ("restart", {"to_step": "c"}), ("limits", {"units": "-1"}), ("limits", {"cost": "much"}),
        ("limits", {"tokens": "1e400"}), ("limits", {"wall": "nan"}), ("limits", {"wall": "9e99"}),
        ("cancel", {"reason": "x" * 4_001}), ("cancel", {"revision": "x"}), ("pause", {"seen": ""}),
        ("limits", {"cost": "99999999999999999999"}), ("cancel", {"reason": "a\x00b"}),
    ],
)  # fmt: skip
def test_an_invalid_form_is_a_422_and_changes_nothing(
    operator: Client, three: Workflow, name: str, typed: dict[str, str], headers: dict[str, str]
) -> None:
    task = prepare(name, three)
    response = operator.post(path_of(task, name), fill(task, name, **typed), headers=headers)
    assert response.status_code == 422
    before = task.revision
    task.refresh_from_db()
    assert task.revision == before


def test_limits_are_passed_on_as_they_were_typed(operator: Client, three: Workflow) -> None:
    task = prepare("limits", three)
    operator.post(path_of(task, "limits"), fill(task, "limits"))
    task.refresh_from_db()
    assert (task.limit_units, task.limit_tokens) == (20_000, 5)
    assert task.limit_cost == 7_500_000_000
    assert task.limit_wall == 5_400.0


def test_unchanged_limits_are_an_invalid_form(operator: Client, three: Workflow) -> None:
    task = prepare("limits", three)
    shown = operator.get(path_of(task, "limits")).content.decode()
    typed = dict(re.findall(r'name="(units|tokens|cost|wall)"[^>]* value="([^"]*)"', shown))
    assert typed == {"units": "10000", "tokens": "10000000", "cost": "100.00", "wall": "168"}
    response = operator.post(path_of(task, "limits"), fill(task, "limits", **typed))
    assert response.status_code == 422


def test_the_restart_form_tells_what_each_step_costs(operator: Client, three: Workflow) -> None:
    task = submit(three)
    held = claim(three)
    sql.checkpoint_unit(held, make_unit(held, three), lease_seconds=LEASE, groups=[])
    text = operator.get(path_of(task, "restart")).content.decode()
    choices = re.findall(r"<b>(\w)</b><small>(nothing is stored|\d+ output)", text)
    assert choices == [("b", "nothing is stored"), ("a", "1 output")]


@pytest.mark.parametrize("status", states.STATUSES)
def test_a_button_that_can_not_be_used_says_why(
    operator: Client, three: Workflow, status: str
) -> None:
    """What the page offers is what the state diagram allows."""
    task = make_in(status, three)
    text = operator.get(reverse("dashboard:task", args=[task.id])).content.decode()
    bar = re.search(r'<div class="acts" id="task-actions">(.*?)\n  </div>', text, re.DOTALL)
    assert bar
    offered = set(re.findall(rf"{task.id}/([a-z]+)/", bar[1]))
    expected = {
        name
        for name, action in ACTIONS.items()
        if not action.find_obstacle(task) and name not in ELSEWHERE
    }
    expected -= {"pause"} if task.status == states.PAUSED else {"resume"}
    assert offered == expected
    why = re.search(r'<p class="why">(.*?)</p>', bar[1], re.DOTALL)
    if status in states.FINAL:  # seven dead buttons would say less
        assert offered == {"fork"}
        assert "be changed any more." in bar[1]
        return
    titles = re.findall(r'disabled title="([^"]*)"', bar[1])
    assert len(titles) + len(offered) == 8
    for title in titles:
        assert title.endswith(".")
        assert why
        assert title in why[1]


def test_pause_becomes_resume_and_cancel_becomes_stop(operator: Client, three: Workflow) -> None:
    task = make_in(states.RUNNING, three)
    for name in ("pause", "cancel"):
        task.refresh_from_db()
        operator.post(path_of(task, name), fill(task, name))
    path = reverse("dashboard:task", args=[task.id])
    text = operator.get(path).content.decode().replace("</svg>", ">")
    assert "Resume</button>" in text
    assert "cancel asked" in text
    # A unit has a moment to end by itself; the button keeps its place meanwhile.
    assert "Stop now" in text
    assert "Stop now…" not in text
    assert re.search(r"disabled[^>]*>.*?Cancel…</button>", text)
    clock.offset += STOP_AFTER + 1
    assert "Stop now…" in operator.get(path).content.decode()


def test_the_restart_dialog_says_what_it_does(operator: Client, three: Workflow) -> None:
    task = submit(three)
    held = claim(three)
    sql.checkpoint_unit(held, make_unit(held, three), lease_seconds=LEASE, groups=[])
    text = operator.get(path_of(task, "restart")).content.decode()
    for part in (
        "host:1 is fenced off at once; what it does in b, turn 0 is then refused.",
        "Round 1. It does not count against the 3 repairs.",
        "9,999 of 10,000 units", "Restart from b</button>", "; to do again: ", ", $0.00</small>",
    ):  # fmt: skip
        assert part in text
    asked = operator.post(path_of(task, "restart"), fill(task, "restart", to_step="a", note=""))
    assert "Restart from a</button>" in asked.content.decode()


def test_no_step_after_what_is_undone_is_offered(operator: Client, three: Workflow) -> None:
    """To restart or to copy; where nobody knows, a person settles whether it is undone."""
    task = submit(three)
    held = claim(three)
    effect = make_effect(task, compensation="refund")
    holder.settle_unit(held, make_unit(held, three))
    holder.fail_task(claim(three), attempt())
    begin_undo(claim(three), effect.pk)
    operators.retry_task(task.pk, actor=OPERATOR)
    for name, cure in (("restart", "restart it from a or before"), ("fork", "copy it from a or")):
        text = operator.get(path_of(task, name)).content.decode()
        assert re.findall(r'name="(?:to|from)_step" value="([^"]*)"', text) == ["a"]
        assert f"settle it, or {cure}" in text
    mark_effect(task.pk, effect.pk, to="done", actor=OPERATOR)
    text = operator.get(path_of(task, "restart")).content.decode()
    assert re.findall(r'name="to_step" value="([^"]*)"', text) == ["b", "a"]
    text = operator.get(path_of(task, "fork")).content.decode()
    assert "where it fails or is cancelled it is undone" in text


def test_a_limit_that_ended_a_task_is_extended_and_it_goes_on(
    operator: Client, three: Workflow
) -> None:
    task = submit(three)
    operators.extend_limits(task.id, limits_given={"units": 1}, actor=OPERATOR)
    held = claim(three)
    holder.settle_unit(held, make_unit(held, three))
    task.refresh_from_db()
    assert task.status_reason == states.LIMIT_UNITS
    text = operator.get(path_of(task, "limits")).content.decode()
    assert "Extend limit and continue</button>" in text
    assert "The task goes on at b, turn 0." in text
    assert operator.post(path_of(task, "limits"), fill(task, "limits")).status_code == 302
    task.refresh_from_db()
    assert task.status == states.QUEUED
