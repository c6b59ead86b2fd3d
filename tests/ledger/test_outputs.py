"""A person edits a stored output: what comes to be, what goes on, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledger import queries, states
from ledger.errors import (
    InvalidInput,
    LeaseLost,
    LedgerError,
    NotEditable,
    NotFound,
    PayloadTooLarge,
    StaleRevision,
    TaskNotFound,
    UnparsableInput,
    WrongStatus,
)
from ledger.models import Approval, StepOutput, Task
from ledger.testing import run
from ledger.transitions.holder import settle_unit
from ledger.transitions.waits import send_signal
from ledger.workflows import Again, AskApproval, WaitFor, Workflow, registered
from tests.factories import OPERATOR, claim, make_unit
from tests.ledger.copying import BIG, edit, find_seq, fork, go_on
from tests.ledger.stages import PLAIN, set_stage


@pytest.fixture(autouse=True)
def own_places(settings: Any, tmp_path: Path) -> None:
    settings.LONGWATCH_VAR = str(tmp_path / "var")
    settings.LONGWATCH_ARTIFACTS = str(tmp_path / "artifacts")


@pytest.fixture
def plan(db: None) -> Iterator[Workflow]:
    """Plans, works in two turns, fails until the plan is good, and reports."""
    workflow = Workflow("plan")

    @workflow.step
    def think(ctx: Any) -> Any:
        (ctx.workspace / "state").write_text("thought")
        return {"plan": "bad", "guess": 1}

    @workflow.step
    def work(ctx: Any) -> Any:
        (ctx.workspace / "state").write_text(f"worked {ctx.turn}")
        done = {f"w{ctx.turn}": ctx.progress["plan"]}
        return Again(done) if ctx.turn < 1 else done

    @workflow.step(retries=0)
    def check(ctx: Any) -> Any:
        if ctx.progress["plan"] != "good":
            raise ValueError("no good")
        return {"state": (ctx.workspace / "state").read_text(), "keys": sorted(ctx.progress)}

    workflow.step(lambda ctx: ctx.progress, name="report")
    with registered(workflow):
        yield workflow


def test_a_task_goes_on_as_if_the_unit_had_left_the_new_output(plan: Workflow) -> None:
    first = run(plan)
    assert (first.status, first.task["step"]["name"]) == ("dead", "check")
    task = edit(first.id, find_seq(first.id, "think"))
    assert (task.status, task.step_name, task.turn, task.round) == ("queued", "work", 0, 1)
    assert task.progress == {"plan": "good"}
    assert (task.attempts, task.finished_at) == (0, None)
    ended = go_on(first.id, plan)
    assert ended.status == "completed"
    assert ended.result == {
        "plan": "good", "w0": "good", "w1": "good", "state": "worked 1",
        "keys": ["plan", "w0", "w1"],
    }  # fmt: skip
    assert ended.task["used"]["units"] == 3 + 4
    assert ended.kinds[-7:] == ["checkpoint", "edited", *["checkpoint"] * 4, "completed"]


def test_the_old_output_is_superseded_and_who_and_why_is_on_record(plan: Workflow) -> None:
    first = run(plan)
    seq = find_seq(first.id, "think")
    edit(first.id, seq)
    old, *later, new = queries.list_outputs(first.id, superseded=True).items
    assert (old["seq"], old["output"]["plan"], old["superseded_in_round"]) == (seq, "bad", 1)
    assert [one["superseded_in_round"] for one in later] == [1, 1]
    assert (new["output"], new["edited_by"], new["worker"]) == (
        {"plan": "good"},
        "user:1",
        "user:1",
    )
    assert (new["fence"], new["round"], new["superseded"]) == (0, 1, False)
    *_, checkpoint, event = queries.list_events(first.id).items
    assert checkpoint["actor"] == event["actor"] == {"kind": "user", "id": "1"}
    assert (event["kind"], event["step"], event["turn"]) == ("edited", "think", 0)
    assert event["data"] | {"before": 0, "after": 0} == {
        "reason": "it was bad", "to": "work", "round": 1, "output": new["seq"], "replaces": seq,
        "taken_from": "", "before": 0, "after": 0,
    }  # fmt: skip
    assert event["data"]["before"] == {"status": "dead", "output": {"plan": "bad", "guess": 1}}
    assert event["data"]["after"] == {"status": "queued", "output": {"plan": "good"}}


def test_a_turn_of_a_loop_that_went_on_is_followed_by_the_next_turn(plan: Workflow) -> None:
    first = run(plan)
    task = edit(first.id, find_seq(first.id, "work"), {"w0": "mine"})
    assert (task.step_name, task.turn) == ("work", 1)
    assert task.progress == {"plan": "bad", "guess": 1, "w0": "mine"}
    task = edit(first.id, find_seq(first.id, "work"), {"w0": "again"})
    assert (task.step_name, task.turn, task.round) == ("work", 1, 2)
    go_on(first.id, plan)
    task = edit(first.id, find_seq(first.id, "work", 1), {"plan": "good"})
    assert (task.step_name, task.turn) == ("check", 0)
    assert go_on(first.id, plan).status == "completed"


def test_the_files_are_those_that_the_unit_left(plan: Workflow) -> None:
    first = run(plan)
    row = StepOutput.objects.get(task=first.id, step_name="work", turn=0)
    task = edit(first.id, row.seq, {"w0": "mine"})
    assert (
        task.workspace
        == row.workspace
        != StepOutput.objects.get(task=first.id, step_name="work", turn=1).workspace
    )


def test_large_values_around_an_edit_stay_readable(db: None) -> None:
    large = Workflow("large")
    for name in ("one", "two"):
        large.step(lambda ctx: {f"{ctx.step}{n}": BIG for n in range(2)}, name=name)
    large.step(lambda ctx: AskApproval("Fine?"), name="ask")
    large.step(lambda ctx: {"sizes": {k: len(str(v)) for k, v in ctx.progress.items()}}, name="end")
    first = run(large)
    with registered(large):
        kept = StepOutput.objects.get(task=first.id, step_name="two").output["two0"]
        edit(first.id, find_seq(first.id, "two"), {"two0": kept, "two1": "short"})
        assert [a.status for a in Approval.objects.all()] == ["void"]
        asked = go_on(first.id, large)
    assert {key: len(value) for key, value in asked.progress.items()} == {
        "one0": 70_000, "one1": 70_000, "two0": 70_000, "two1": 5,
    }  # fmt: skip


def test_a_running_worker_is_fenced_off(flow: Workflow) -> None:
    stage = set_stage(states.RUNNING, flow, {})
    task = edit(stage.task.pk, PLAIN)
    assert (task.status, task.fence, task.lease_owner) == ("queued", stage.held.fence + 1, "")
    with pytest.raises(LeaseLost):
        settle_unit(stage.held, make_unit(stage.held, flow))
    assert claim(flow).fence == stage.held.fence + 2


@pytest.mark.parametrize("status", sorted(states.FINAL))
def test_what_is_final_is_copied_instead(status: str, flow: Workflow) -> None:
    stage = set_stage(status, flow, {})
    with pytest.raises(WrongStatus, match="final; copy it from a step"):
        edit(stage.task.pk, PLAIN)
    copy = fork(stage.task.pk, "b")
    assert edit(copy.pk, find_seq(copy.pk, "a")).round == 1


def test_what_people_were_asked_about_is_not_edited(flow: Workflow) -> None:
    stage = set_stage(states.WAITING, flow, {})
    for step, turn in (("a", 1), ("b", 0)):
        with pytest.raises(NotEditable, match=f"people were asked .* restart from {step}"):
            edit(stage.task.pk, find_seq(stage.task.pk, step, turn))
    copy = fork(stage.task.pk, "b")
    with pytest.raises(NotEditable, match="people were asked"):
        edit(copy.pk, find_seq(copy.pk, "a", 1))


def test_a_superseded_output_stays(flow: Workflow) -> None:
    stage = set_stage(states.RUNNING, flow, {})
    edit(stage.task.pk, PLAIN)
    with pytest.raises(NotEditable, match="it is superseded"):
        edit(stage.task.pk, PLAIN)


def test_a_signal_is_not_lost_by_an_edit_and_a_wait_is_not_skipped(db: None) -> None:
    waiter = Workflow("waiter")
    waiter.step(lambda ctx: {"ready": True}, name="one")
    waiter.step(lambda ctx: WaitFor("go", data={"asked": 1}), name="wait")
    waiter.step(lambda ctx: {"got": ctx.signal, "asked": ctx.progress["asked"]}, name="end")
    first = run(waiter)
    with registered(waiter):
        with pytest.raises(NotEditable, match="the task waits since then; restart from wait"):
            edit(first.id, find_seq(first.id, "wait"), {"asked": 2})
        send_signal(first.id, name="go", data={"n": 1}, actor=OPERATOR)
        edit(first.id, find_seq(first.id, "wait"), {"asked": 2})
        copy = fork(first.id, "end")
        for task_id in (first.id, copy.pk):
            ended = go_on(task_id, waiter)
            assert (ended.status, ended.result["asked"]) == ("completed", 2)
            assert ended.result["got"]["data"] == {"n": 1}
        waiting = go_on(fork(first.id, "one").pk, waiter)
        assert waiting.status == "waiting"
        edit(waiting.id, find_seq(waiting.id, "one"), {"ready": False})
        assert go_on(waiting.id, waiter).status == "waiting"


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"output": [1]}, InvalidInput, "output: takes a JSON object"),
        ({"output": {"x": float("nan")}}, UnparsableInput, "output.x: nan is not a JSON number"),
        ({"output": {"x": "a\x00"}}, UnparsableInput, "output.x: contains a NUL"),
        ({"output": {"x": {1}}}, UnparsableInput, "output.x: a set is not JSON"),
        ({"output": {"x": "y" * 70_000}}, PayloadTooLarge, "output: is 70,?008 bytes"),
        ({"reason": " "}, InvalidInput, "reason: is required"),
        ({"reason": "x" * 5_000}, InvalidInput, "reason: takes a text"),
        ({"revision": 1}, StaleRevision, "has changed"),
        ({"seq": 99}, NotFound, "no output 99"),
        ({"seq": 1}, NotFound, "no output 1"),
        ({"seq": 2**70}, NotFound, "no output"),
        ({"task_id": "00000000-0000-0000-0000-000000000000"}, TaskNotFound, "no task"),
    ],
)
def test_a_bad_edit_is_refused_by_name_and_changes_nothing(
    given: dict[str, Any], error: type[LedgerError], said: str, flow: Workflow
) -> None:
    stage = set_stage(states.QUEUED, flow, {})
    before = Task.objects.filter(pk=stage.task.pk).values().get()
    with pytest.raises(error, match=said):
        edit(**({"task_id": stage.task.pk, "seq": PLAIN} | given))
    assert Task.objects.filter(pk=stage.task.pk).values().get() == before
    assert stage.task.outputs.count() == 2
