"""A deploy changes a workflow's steps while its tasks are under way."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from ledger import queries, runner
from ledger.errors import InvalidInput, UnknownStep, UnknownWorkflow
from ledger.models import StepOutput, Task
from ledger.runner import Engine, run_attempt
from ledger.transitions import operators
from ledger.workflows import AskApproval, Repair, Workflow, registered
from tests.dashboard.fleet import make_worker
from tests.factories import OPERATOR, OWNER, submit
from tests.ledger.stages import decide

pytestmark = [pytest.mark.django_db, pytest.mark.case(26)]


def make_flow(names: str, version: str = "1", **steps: Callable[[Any], Any]) -> Workflow:
    """A workflow of the steps that `names` lists; each notes its name unless it is given."""
    flow = Workflow("changing", version)
    for name in names.split():
        flow.step(steps.get(name, lambda ctx: {ctx.step: True}), name=name)
    return flow


def work(flow: Workflow | None, units: int = 50) -> None:
    """A worker that knows `flow` only: so many units, then it leaves in good order."""
    engine = Engine(OWNER)
    engine.stop = lambda: engine.units >= units
    with registered(*[flow] if flow else []):
        held = None
        while not engine.stop() and (held := held or engine.claim()):
            held = run_attempt(engine, held)


def start(flow: Workflow, units: int) -> Task:
    """A task whose first units are done by the code of `flow`."""
    with registered(flow):
        task = submit(flow)
    work(flow, units)
    return task


def live(task: Task) -> list[str]:
    """The steps with a live output, in the order in which they were stored."""
    rows = StepOutput.objects.filter(task=task, superseded_in_round__isnull=True)
    return list(rows.order_by("seq").values_list("step_name", flat=True))


def read(task: Task) -> tuple[str, str]:
    task.refresh_from_db()
    return task.status, task.status_reason


@pytest.mark.parametrize(
    ("old", "units", "new", "ends"),
    [
        ("a b c d", 2, "a c d", "a b c d"),
        ("a b c d", 2, "c d", "a b c d"),
        ("a b c", 1, "a x b c", "a b c"),
        ("a b c", 2, "x y a b c d", "a b c d"),
        ("a b c", 2, "c", "a b c"),
        ("a b", 1, "b a", "a b a"),
    ],
    ids=["before removed", "two removed", "one put in", "put in and added", "last left", "turned"],
)
def test_a_task_goes_on_at_the_step_of_its_name(old: str, units: int, new: str, ends: str) -> None:
    """Every later unit finds a place of its own, whatever its index was in the list of old."""
    task = start(make_flow(old), units)
    work(make_flow(new))
    assert read(task) == ("completed", ""), task.error
    assert live(task) == ends.split()
    assert (task.attempts, task.round) == (0, 0)


def test_a_question_leads_to_the_step_after_it_in_the_list_of_now() -> None:
    task = start(make_flow("a b ask d"), 2)
    work(make_flow("a ask d", ask=lambda ctx: AskApproval("Go on?")))
    assert read(task) == ("waiting", "approval")
    request = task.approvals.get()
    assert request.next_step == "d"
    decide(request)
    work(make_flow("a ask d"))
    assert read(task) == ("completed", "")
    assert live(task) == ["a", "b", "ask", "d"]


def test_a_repair_after_a_change_finds_its_step() -> None:
    tries: list[int] = []

    def check(ctx: Any) -> Any:
        tries.append(1)
        return Repair(to="b", feedback="again") if len(tries) == 1 else {}

    task = start(make_flow("a b check"), 2)
    work(make_flow("a x b check", check=check))
    assert read(task) == ("completed", "")
    assert task.outputs.filter(step_name="b").count() == 2
    assert live(task) == ["a", "b", "check"]


def test_a_sending_back_after_a_change_leaves_no_second_output_alive() -> None:
    task = start(make_flow("a b ask"), 2)
    changed = make_flow("a x b ask", ask=lambda ctx: AskApproval("Go on?", send_back_to="b"))
    work(changed)
    decide(task.approvals.get(), "send_back")
    work(changed)
    assert task.outputs.filter(step_name="b").count() == 2
    assert live(task) == ["a", "b", "ask"]


def test_a_step_that_is_gone_pauses_its_task_and_charges_nobody() -> None:
    task = start(make_flow("a b c"), 1)
    work(make_flow("a c"))
    assert read(task) == ("paused", "version_misfit")
    assert (task.attempts, task.reclaims) == (0, 0)
    assert "b" in task.error["message"]
    assert queries.show_task(task.pk)["claimable"]["why"].startswith("its position does not fit")


# --- The operator's choice ------------------------------------------------------------------------


def make_misfit() -> Task:
    task = start(make_flow("a b c"), 1)
    work(make_flow("a c"))
    assert read(task) == ("paused", "version_misfit")
    return task


def test_a_misfit_waits_for_an_old_worker() -> None:
    task = make_misfit()
    operators.resume_task(task.pk, actor=OPERATOR)
    work(make_flow("a b c"))
    assert read(task) == ("completed", "")
    assert live(task) == ["a", "b", "c"]


def test_a_misfit_moves_to_a_step_of_its_own_version() -> None:
    task = make_misfit()
    with registered(make_flow("a c")):
        operators.restart_task(task.pk, to_step="c", note="b is gone", actor=OPERATOR)
    task.refresh_from_db()
    assert task.total_steps == 2
    work(make_flow("a c"))
    assert read(task) == ("completed", "")
    assert live(task) == ["a", "c"]


def test_a_misfit_is_cancelled() -> None:
    task = make_misfit()
    operators.cancel_task(task.pk, actor=OPERATOR)
    assert read(task)[0] == "cancelled"


@pytest.mark.parametrize(
    ("to", "left", "ends"),
    [("a", [], "a x b c"), ("b", ["a"], "a b c"), ("c", ["a", "b"], "a b c")],
)
def test_a_task_moves_to_any_step_of_another_version(to: str, left: list[str], ends: str) -> None:
    """What stands before that step there stays; the rest is superseded, and nothing is lost."""
    task = start(make_flow("a b c"), 2)
    new = make_flow("a x b c", "2")
    with registered(new):
        operators.restart_task(task.pk, to_step=to, note="", actor=OPERATOR, version="2")
    assert live(task) == left
    task.refresh_from_db()
    assert (task.workflow_version, task.definition_digest) == ("2", new.digest())
    assert (task.total_steps, task.round, task.repair_count) == (4, 1, 0)
    work(new)
    assert read(task) == ("completed", "")
    assert live(task) == ends.split()
    assert task.events.get(kind="repaired").data["version"] == "2"


def test_a_move_is_refused_where_it_can_not_go_on() -> None:
    class Topic(BaseModel):
        subject: str

    task = start(make_flow("a b c"), 1)
    typed = Workflow("changing", "2", input=Topic)
    typed.step(lambda ctx: None, name="a")
    for version, step, error in [
        ("2", "a", InvalidInput),
        ("2", "nowhere", UnknownStep),
        ("3", "a", UnknownWorkflow),
    ]:
        with registered(typed), pytest.raises(error):
            operators.restart_task(task.pk, to_step=step, note="", actor=OPERATOR, version=version)
    assert read(task) == ("queued", "")
    assert (task.workflow_version, task.round) == ("1", 0)


def test_a_version_that_only_a_worker_knows_is_moved_to() -> None:
    task = start(make_flow("a b c"), 1)
    make_worker(make_flow("a d", "2"))
    operators.restart_task(task.pk, to_step="d", note="", actor=OPERATOR, version="2")
    work(make_flow("a d", "2"))
    assert read(task) == ("completed", "")


# --- Code changed under a version -----------------------------------------------------------------


def test_changed_code_is_warned_of_once_and_stops_nobody(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_changed", set())
    tasks = [start(make_flow("a b"), 1) for _ in range(2)]
    caplog.set_level(logging.WARNING)
    changed = make_flow("a b", b=lambda ctx: {"b": "otherwise"})
    work(changed, 1)
    work(changed, 1)
    assert [read(task)[0] for task in tasks] == ["completed"] * 2
    warned = [m for m in caplog.messages if "code changed under version 1" in m]
    assert len(warned) == 1


def test_a_task_tells_that_its_code_was_changed() -> None:
    flow = make_flow("a b")
    with registered(flow):
        task = submit(flow)
    make_worker(flow)
    assert queries.show_task(task.pk)["warnings"] == []
    make_worker(make_flow("a b", b=lambda ctx: {"b": "otherwise"}))
    assert queries.show_task(task.pk)["warnings"] == ["code changed under version 1"]
    assert queries.show_task(task.pk)["claimable"]["ok"] is True


def test_unknown_versions_keep_nobody_waiting() -> None:
    old, new = make_flow("a", "1"), make_flow("a", "2")
    with registered(old, new):
        stuck, runs = submit(old), submit(new)
    work(new)
    assert read(runs)[0] == "completed"
    assert read(stuck) == ("queued", "")
    assert (stuck.attempts, stuck.fence) == (0, 0)
