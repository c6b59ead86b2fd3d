"""`manage.py task ACTION ID`: every action from a terminal, and what a refusal says."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError
from django.test import override_settings

from ledger import blobs
from ledger.handoff import build_handoff
from ledger.management.commands.task import PLAIN
from ledger.models import Event, Signal, Task
from ledger.transitions import holder
from ledger.transitions.deleting import DEMO
from ledger.transitions.holder import settle_unit
from ledger.transitions.submit import submit_task
from ledger.workflows import Workflow, registered
from tests.commands.test_terminal import run
from tests.factories import attempt, claim, make_effect, make_unit, make_workflow, submit

pytestmark = pytest.mark.both_databases


@pytest.fixture
def flow(db: None) -> Any:
    """A workflow of three steps."""
    workflow = make_workflow()
    with registered(workflow):
        yield workflow


def act(action: str, task: Task, *arguments: str) -> str:
    """The last word on stdout."""
    out, _ = run("task", action, str(task.pk), *arguments)
    return out.strip()


def test_the_plain_actions_say_the_new_status(flow: Workflow) -> None:
    task = submit(flow)
    assert act("pause", task, "--reason", "lunch") == "paused"
    assert act("resume", task, "--revision", "2") == "queued"
    claim(flow)
    assert act("retry", task) == "queued"
    claim(flow)
    out, err = run("task", "cancel", str(task.pk))
    assert (out, err) == (
        "running\n", "It is asked to cancel; that takes effect after its unit.\n",
    )  # fmt: skip
    assert act("stop", task) == "cancelled"
    paused = Event.objects.get(kind="paused")
    assert paused.actor.startswith("cli:")
    assert paused.data["reason"] == "lunch"
    assert set(PLAIN) == {"cancel", "stop", "pause", "resume", "retry", "compensate"}


def test_a_task_is_repaired_edited_changed_and_copied(flow: Workflow, tmp_path: Path) -> None:
    task = submit(flow)
    held = claim(flow)
    settle_unit(held, make_unit(held, flow))
    (tmp_path / "out.json").write_text('{"by": "hand"}')
    assert act("edit", task, "2", f"@{tmp_path / 'out.json'}", "--reason", "wrong") == "queued"
    assert act("change", task, "--priority", "-7", "--tag", "x", "--tag", "y", "--lane", "l",
               "--title", "T") == "queued"  # fmt: skip
    assert act("limits", task, "--units", "9", "--cost", "2.5", "--wall", "60", "--tokens", "5",
               "--deadline-at", "2999-01-01T00:00:00Z") == "queued"  # fmt: skip
    copy = Task.objects.get(pk=act("fork", task, "b", "--key", "k", "--reason", "again"))
    assert act("fork", task, "b", "--key", "k") == str(copy.pk)
    assert (copy.priority, copy.tags, copy.lane, copy.title) == (-7, ["x", "y"], "l", "T")
    assert (copy.limit_units, copy.limit_cost, copy.limit_wall) == (9, 2_500_000_000, 60.0)
    assert (copy.progress, copy.limit_tokens) == ({"by": "hand"}, 5)
    other = Task.objects.get(pk=act("fork", task, "0", "--input", '{"x": 1}'))
    assert (other.input, other.step_name) == ({"x": 1}, "a")
    assert act("repair", task, "a", "--note", "better") == "queued"
    task.refresh_from_db()
    assert (task.step_name, task.round, task.feedback["comment"]) == ("a", 2, "better")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["stop"], "Can't stop a task that is queued"),
        (["pause", "--revision", "9"], "has changed since you looked"),
        (["repair", "nowhere"], "there is no step 'nowhere'; the steps are a, b, c"),
        (["repair", "c"], "c has not been reached; restart from a"),
        (["fork", "c"], "c has not been reached; copy from a"),
        (["fork", "a", "--input", "[1]"], "--input: takes a JSON object"),
        (["fork", "a", "--workflow-version", "7"], "nobody knows three version 7"),
        (["limits"], "name at least one of units"),
        (["limits", "--cost", "much"], "limits.cost:"),
        (["limits", "--deadline-at", "soon"], "limits.deadline_at: is no RFC 3339 time"),
        (["change"], "name at least one of title"),
        (["change", "--priority", "900"], "priority: takes a whole number"),
        (["edit", "2", "{}"], "reason: is required"),
        (["edit", "2", "{", "--reason", "x"], "output: is not JSON"),
        (["edit", "2", "{}", "--reason", "x"], "There is no output 2"),
        (["explode"], "invalid choice: 'explode'"),
    ],
)
def test_a_refusal_is_one_line(flow: Workflow, arguments: list[str], said: str) -> None:
    task = submit(flow)
    with pytest.raises(CommandError) as refused:
        act(arguments[0], task, *arguments[1:])
    assert said in str(refused.value)
    assert Task.objects.get().revision == task.revision


def test_the_effects_of_a_task_that_gave_up_are_undone(flow: Workflow) -> None:
    task = submit(flow)
    effect = make_effect(task, compensation="refund")
    holder.bury_task(claim(flow), attempt(), "limit_cost")
    assert act("effects", task).startswith(
        f"{effect.pk} pay unknown (a, turn 0; refund undoes it) "
    )
    assert run("task", "compensate", str(task.pk)) == (
        "queued\n", "It undoes its effects first, and then is dead.\n",
    )  # fmt: skip


def test_an_effect_is_listed_and_settled(flow: Workflow) -> None:
    task = submit(flow)
    effect = make_effect(task)
    key = f"{task.pk}:a:0:0:pay"
    assert act("effects", task) == f"{effect.pk} pay unknown (a, turn 0) {key}"
    assert act("mark", task, str(effect.pk), "done", "--result", '{"n": 1}') == "queued"
    effect.refresh_from_db()
    assert (effect.status, effect.result) == ("done", {"n": 1})


def test_the_demo_is_deleted_from_a_terminal(flow: Workflow) -> None:
    done, _ = submit_task(workflow=flow, input={}, key="demo-1", actor=DEMO)
    busy, _ = submit_task(workflow=flow, input={}, key="demo-2", actor=DEMO)
    act("cancel", done)
    out, err = run("task", "delete-demo", "--reason", "seen enough")
    assert out.split() == [str(done.pk)]
    assert f"{busy.pk} stays: it is queued; cancel it first." in err
    assert list(Task.objects.all()) == [busy]


def test_collect_says_what_it_removed(db: None, tmp_path: Path) -> None:
    with override_settings(LONGWATCH_ARTIFACTS=str(tmp_path)):
        blobs.store_blobs([b"nobody's"])
        assert run("collect")[0] == "0 files removed, 0 bytes; 1 are too young\n"
        path = next(tmp_path.glob("??/*"))
        os.utime(path, (1, 1))
        assert run("collect")[0] == "1 files removed, 8 bytes; 0 are too young\n"
        assert not path.exists()
    with pytest.raises(CommandError, match="--hours takes"):
        run("collect", "--hours", "-1")


def test_the_hand_off_is_printed(flow: Workflow) -> None:
    task = submit(flow, title="Bees")
    out, _ = run("handoff", str(task.pk))
    assert out == build_handoff(task.pk).markdown
    assert out.startswith("# Bees\n")
    data, _ = run("handoff", str(task.pk), "--json", "--tokens", "2000")
    assert json.loads(data) == build_handoff(task.pk, 2_000).data


def test_a_signal_carries_any_json_as_strictly_as_the_api(flow: Workflow, tmp_path: Path) -> None:
    task = submit(flow)
    file = tmp_path / "data.json"
    file.write_text('["Zoë", 1]')
    assert run("signal", str(task.pk), "go", "--data", f"@{file}")[0] == "sent\n"
    assert Signal.objects.get().data == ["Zoë", 1]
    for data in ("{", "NaN", '{"a": 1, "a": 2}', '"\\u0000"', "@/no/such/file"):
        with pytest.raises(CommandError, match="--data"):
            run("signal", str(task.pk), "go", "--data", data)
    assert Signal.objects.count() == 1
