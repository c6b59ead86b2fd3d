"""The life of an attempt, run in this process on the real ledger."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import OperationalError

from ledger import artifacts, states
from ledger.models import Event, StepOutput, Task
from ledger.runner import Engine, run_attempt
from ledger.sweeper import sweep
from ledger.transitions import approvals, operators
from ledger.workflows import (
    Again,
    AskApproval,
    Fail,
    Finish,
    Repair,
    RetryLater,
    Sleep,
    Workflow,
    registered,
)
from tests.factories import OPERATOR, OWNER, expire_lease, submit

pytestmark = pytest.mark.django_db

Step = Callable[[Any], Any]


@pytest.fixture
def run(db: None) -> Iterator[Callable[..., Task]]:
    """Run a workflow of the given steps until it is finished, waits, or stands."""
    with registered():
        yield run_steps


def run_steps(*steps: Step, units: int = 50, **options: Any) -> Task:
    workflow = Workflow("probe", **{k: options.pop(k) for k in ("max_repairs",) if k in options})
    for step in steps:
        workflow.step(step)
    with registered(workflow):
        task = submit(workflow, **options)
        drive(units)
        task.refresh_from_db()
    return task


def drive(units: int = 50) -> None:
    """Claim and run until nothing is claimable; backoffs and sleeps are skipped by the clock."""
    engine = Engine(OWNER)
    while units > 0:
        held = engine.claim()
        if held is None:
            if not Task.objects.filter(status=states.SCHEDULED).exists():
                return
            expire_lease(400)
            sweep()
            continue
        while held is not None and units > 0:
            units -= 1
            held = run_attempt(engine, held)


def kinds(task: Task) -> list[str]:
    return list(task.events.values_list("kind", flat=True))


def test_a_dict_is_the_output_and_merges_into_progress(run: Callable[..., Task]) -> None:
    def first(ctx: Any) -> Any:
        return {"x": 1, "y": {"deep": 1}}

    def second(ctx: Any) -> Any:
        assert ctx.progress == {"x": 1, "y": {"deep": 1}}
        assert ctx.output_of("first") == {"x": 1, "y": {"deep": 1}}
        return {"y": 2}

    task = run(first, second)
    assert (task.status, task.progress, task.result) == ("completed", {"x": 1, "y": 2}, {"y": 2})
    assert [o.step_name for o in task.outputs.all()] == ["first", "second"]
    assert kinds(task) == ["submitted", "completed"]


def test_again_runs_the_step_as_its_next_turn(run: Callable[..., Task]) -> None:
    def loop(ctx: Any) -> Any:
        return Again({"n": ctx.turn}) if ctx.turn < 3 else {"n": ctx.turn}

    task = run(loop)
    assert (task.status, task.progress, task.turn) == ("completed", {"n": 3}, 3)
    assert [o.turn for o in task.outputs.all()] == [0, 1, 2, 3]


def test_a_repair_restarts_with_feedback_and_keeps_progress(run: Callable[..., Task]) -> None:
    seen = []

    def draft(ctx: Any) -> Any:
        seen.append((ctx.round, ctx.feedback))
        return {"draft": f"round {ctx.round}"}

    def verify(ctx: Any) -> Any:
        if ctx.round == 0:
            return {"needs_repair": True, "restart_step": 0, "feedback": "thin", "found": 1}
        return {"verified": True}

    task = run(draft, verify)
    assert (task.status, task.round, task.repair_count) == ("completed", 1, 1)
    assert seen == [(0, None), (1, "thin")]
    assert task.progress == {"draft": "round 1", "found": 1, "verified": True}
    assert [(o.step_name, o.superseded_in_round) for o in task.outputs.all()] == [
        ("draft", 1), ("verify", 1), ("draft", None), ("verify", None),
    ]  # fmt: skip


@pytest.mark.case(55)
def test_repairs_are_bounded(run: Callable[..., Task]) -> None:
    def work(ctx: Any) -> Any:
        return Repair(to="work", feedback="again")

    task = run(work, max_repairs=2)
    assert (task.status, task.status_reason, task.round) == ("dead", "repairs_exhausted", 2)


@pytest.mark.case(17)
@pytest.mark.parametrize(
    "error",
    [ValueError("x"), SystemExit(0), SystemExit("x"), KeyboardInterrupt(), GeneratorExit()],
    ids=repr,
)
def test_any_exception_is_a_counted_attempt(run: Callable[..., Task], error: BaseException) -> None:
    def broken(ctx: Any) -> Any:
        raise error

    task = run(broken)
    assert (task.status, task.status_reason, task.attempts) == ("dead", "retries_exhausted", 4)
    assert task.error["type"] == type(error).__name__
    assert kinds(task).count("attempt_failed") == 4


class NamelessMeta(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise ValueError("no name")


class Nameless(Exception, metaclass=NamelessMeta):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.case(19)
def test_an_exception_that_cannot_be_described_is_a_counted_attempt(
    run: Callable[..., Task],
) -> None:
    def broken(ctx: Any) -> Any:
        raise Nameless

    task = run(broken)
    assert (task.status, task.status_reason, task.attempts) == ("dead", "retries_exhausted", 4)
    assert task.error["type"] == "Nameless"
    assert "can't be printed" in task.error["message"]


class Hanging(Exception):
    def __str__(self) -> str:
        while True:
            time.sleep(0.01)


class HangingDict(dict[str, Any]):
    def items(self) -> Any:
        while True:
            time.sleep(0.01)


@pytest.mark.case(19)
@pytest.mark.parametrize("kind", ["error", "output"])
def test_what_a_step_leaves_is_read_within_its_deadline(kind: str) -> None:
    def leave(ctx: Any) -> Any:
        if kind == "error":
            raise Hanging
        return {"value": HangingDict(a=1)}

    workflow = Workflow("leaves")
    workflow.step(leave, timeout=0.2, retries=0)
    with registered(workflow):
        task = submit(workflow)
        drive()
    task.refresh_from_db()
    assert (task.status, task.status_reason) == ("dead", "retries_exhausted")
    assert task.error["type"] == ("Hanging" if kind == "error" else "UnitTimeout")


def test_fail_ends_the_task_at_once(run: Callable[..., Task]) -> None:
    def broken(ctx: Any) -> Any:
        raise Fail("no_such_package", "there is no package of this name")

    task = run(broken)
    assert (task.status, task.status_reason) == ("failed", "workflow_failed")
    assert "no_such_package" in task.error["message"]


def test_retry_later_is_not_charged(run: Callable[..., Task]) -> None:
    calls = []

    def busy(ctx: Any) -> Any:
        calls.append(1)
        if len(calls) < 6:
            raise RetryLater(30, "busy")

    task = run(busy)
    assert (task.status, len(calls)) == ("completed", 6)
    assert kinds(task).count("released") == 5
    assert "attempt_failed" not in kinds(task)


@pytest.mark.case(40)
@pytest.mark.case(41)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\x00", "\ud800", object(), {1: 2}])
def test_what_json_cannot_hold_ends_the_task(run: Callable[..., Task], value: Any) -> None:
    task = run(_returning({"value": [value]}))
    assert (task.status, task.status_reason) == ("dead", "unserialisable_output")
    assert "value" in task.error["message"]


def _returning(value: Any) -> Step:
    def give(ctx: Any) -> Any:
        return value

    return give


def test_a_wrong_return_value_is_a_failed_attempt(run: Callable[..., Task]) -> None:
    task = run(_returning(42))
    assert (task.status, task.error["type"]) == ("dead", "TypeError")


def test_sleep_and_finish(run: Callable[..., Task]) -> None:
    def nap(ctx: Any) -> Any:
        return Sleep(seconds=60, data={"slept": True})

    def end(ctx: Any) -> Any:
        return Finish({"answer": 42})

    def never(ctx: Any) -> Any:
        raise AssertionError

    task = run(nap, end, never)
    assert (task.status, task.result, task.step_name) == ("completed", {"answer": 42}, "end")
    assert kinds(task) == ["submitted", "scheduled", "promoted", "completed"]


def test_an_approval_holds_no_lease_and_its_answer_reaches_the_next_step(
    run: Callable[..., Task],
) -> None:
    def review(ctx: Any) -> Any:
        return AskApproval("Publish it?", data={"asked": True})

    def publish(ctx: Any) -> Any:
        return {"said": ctx.answer["comment"]}

    workflow = Workflow("asks", self_approval=False)
    workflow.step(review)
    workflow.step(publish)
    with registered(workflow):
        task = submit(workflow)
        drive()
        task.refresh_from_db()
        assert (task.status, task.status_reason, task.step_name) == (
            "waiting",
            "approval",
            "review",
        )
        assert (task.lease_owner, task.lease_until) == ("", None)
        request = task.approvals.get()
        approvals.decide_approval(
            request.id, decision="approve", actor=OPERATOR, digest=request.digest, comment="fine"
        )
        drive()
    task.refresh_from_db()
    assert (task.status, task.result) == ("completed", {"said": "fine"})


@pytest.mark.case(11)
def test_a_unit_past_its_deadline_is_a_failed_attempt(run: Callable[..., Task]) -> None:
    def hang(ctx: Any) -> Any:
        while True:
            pass

    workflow = Workflow("hangs")
    workflow.step(hang, timeout=0.2, retries=0)
    with registered(workflow):
        task = submit(workflow)
        drive()
    task.refresh_from_db()
    assert (task.status, task.error["type"]) == ("dead", "UnitTimeout")


def test_money_is_counted_and_a_passed_limit_ends_the_task(run: Callable[..., Task]) -> None:
    def spender(ctx: Any) -> Any:
        ctx.spend(tokens_in=60, tokens_out=10, cost="0.50")
        return Again()

    task = run(spender, limits_given={"tokens": 150})
    assert (task.status, task.status_reason) == ("dead", "limit_tokens")
    assert task.used_tokens_in + task.used_tokens_out == 210
    assert task.used_cost == 1_500_000_000
    assert StepOutput.objects.filter(task=task).count() == 2


def test_no_unit_starts_beyond_the_limit_of_units(run: Callable[..., Task]) -> None:
    task = run(_looping, limits_given={"units": 5})
    assert (task.status, task.status_reason, task.used_units) == ("dead", "limit_units", 5)


def _looping(ctx: Any) -> Any:
    return Again()


@pytest.mark.case(53)
def test_a_cancel_during_a_unit_ends_the_task_at_the_boundary(run: Callable[..., Task]) -> None:
    def work(ctx: Any) -> Any:
        operators.cancel_task(ctx.task_id, actor=OPERATOR, reason="enough")
        return {"done": 1}

    task = run(work, _looping)
    assert (task.status, task.status_reason) == ("cancelled", "cancelled_by_operator")
    assert StepOutput.objects.filter(task=task).count() == 1
    assert Event.objects.get(task=task, kind="cancelled").actor == str(OPERATOR)


@pytest.mark.case(44)
def test_a_large_output_becomes_an_artifact(run: Callable[..., Task]) -> None:
    def big(ctx: Any) -> Any:
        return {"text": "x" * 300_000, "small": 1}

    def reads(ctx: Any) -> Any:
        assert len(ctx.progress["text"]) == 300_000
        return {"n": len(ctx.output_of("big")["text"])}

    task = run(big, reads)
    assert (task.status, task.result) == ("completed", {"n": 300_000})
    assert set(task.progress["text"]) == {"$artifact"}


def test_an_outage_while_a_large_output_is_stored_charges_nobody(
    run: Callable[..., Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    fit, tries = artifacts.fit_values, []

    def fit_late(*args: Any) -> Any:
        tries.append(1)
        if len(tries) < 3:
            raise OperationalError("the connection is lost")
        return fit(*args)

    monkeypatch.setattr(artifacts, "fit_values", fit_late)
    runs = []

    def large(ctx: Any) -> Any:
        runs.append(1)
        return {"text": "x" * 100_000}

    task = run(large)
    assert (task.status, task.attempts, len(runs)) == ("completed", 0, 1)
    assert len(tries) >= 3


@pytest.mark.case(20)
def test_a_forked_child_never_goes_on_as_the_worker(run: Callable[..., Task]) -> None:
    def forks(ctx: Any) -> Any:
        if pid := os.fork():
            os.waitpid(pid, 0)
        return {"pid": os.getpid()}

    task = run(forks)
    assert task.result == {"pid": os.getpid()}


def test_an_unknown_step_pauses_the_task(run: Callable[..., Task]) -> None:
    workflow = Workflow("changed")
    workflow.step(_looping, name="old")
    with registered(workflow):
        task = submit(workflow)
    workflow = Workflow("changed")
    workflow.step(_looping, name="new")
    with registered(workflow):
        drive()
    task.refresh_from_db()
    assert (task.status, task.status_reason) == ("paused", "version_misfit")


def test_what_a_step_reported_is_forgotten_at_the_next_step(run: Callable[..., Task]) -> None:
    def counts(ctx: Any) -> Any:
        ctx.report(3, 4, "three of four")
        return {"counted": True}

    def waits(ctx: Any) -> Any:
        seen = Task.objects.get(pk=ctx.task_id)
        return {"seen": [seen.progress_done, seen.progress_note]}

    task = run(counts, waits)
    assert task.result == {"seen": [None, ""]}
