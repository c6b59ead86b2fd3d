"""`ledger.testing.run`: a workflow to its end in this process, on the real ledger."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Any

import pytest
from django.db import transaction

from ledger import clock, secrets
from ledger.errors import InvalidInput, NotAllowed, UnknownStep
from ledger.events import Actor
from ledger.models import Approval, Task
from ledger.testing import EXPIRE, LOST, run
from ledger.workflows import (
    Again,
    AskApproval,
    Fail,
    Finish,
    Limits,
    Repair,
    RetryLater,
    Sleep,
    Workflow,
    days,
)

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]


@pytest.fixture(autouse=True)
def own_places(settings: Any, tmp_path: Any) -> None:
    settings.LONGWATCH_VAR = str(tmp_path / "var")
    settings.LONGWATCH_ARTIFACTS = str(tmp_path / "artifacts")


def make_report(**options: Any) -> Workflow:
    report = Workflow("sample-report", **options)

    @report.step
    def draft(ctx: Any) -> Any:
        return {"text": f"{ctx.input['about']} {ctx.round}", "heard": ctx.feedback}

    @report.step
    def verify(ctx: Any) -> Any:
        if ctx.round == 0:
            return Repair(to="draft", feedback=["too short"], seen=ctx.progress["text"])
        return None

    @report.step
    def review(ctx: Any) -> Any:
        return AskApproval("Publish?", body=ctx.progress["text"], send_back_to="draft")

    @report.step
    def publish(ctx: Any) -> Any:
        ctx.save_artifact("report.md", ctx.progress["text"])
        return {"by": ctx.answer["by"], "draft": ctx.output_of("draft")["text"]}

    return report


def test_an_answer_is_seen_where_it_led_to_and_no_later_question_takes_it_for_its_own() -> None:
    flow = Workflow("asks-twice")
    seen = []

    @flow.step
    def review(ctx: Any) -> Any:
        seen.append(ctx.answer and ctx.answer["comment"])
        return AskApproval("The first?")

    @flow.step
    def prepare(ctx: Any) -> Any:
        seen.append(ctx.answer["comment"])
        return Again() if ctx.turn == 0 else None

    @flow.step
    def gate(ctx: Any) -> Any:
        seen.append(ctx.answer and ctx.answer["comment"])
        if ctx.answer is None:
            return AskApproval("This?", then="again")
        return Again() if ctx.turn == 1 else {"turns": ctx.turn}

    @flow.step
    def publish(ctx: Any) -> Any:
        seen.append(ctx.answer)

    yes = [{"decision": "approve", "comment": word} for word in ("one", "two", "three")]
    ended = run(flow, {}, answers={"review": yes[0], "gate": yes[1:]})
    assert ended.status == "completed"
    assert seen == [None, "one", "one", None, "two", None, "three", None]
    assert ended.progress == {"turns": 3}


def test_a_workflow_runs_to_its_end() -> None:
    ended = run(make_report(), {"about": "tea"}, answers={"review": "approve"}, title="Tea")
    assert (ended.status, ended.reason) == ("completed", "")
    assert ended.units == [
        ("draft", 0), ("verify", 0), ("draft", 0), ("verify", 0), ("review", 0), ("publish", 0),
    ]  # fmt: skip
    assert ended.result == {"by": "user:testing", "draft": "tea 1"}
    assert ended.progress == ended.result | {
        "text": "tea 1", "heard": ["too short"], "seen": "tea 0",
    }  # fmt: skip
    assert ended.read_artifact("report.md") == b"tea 1"
    assert ended.task["title"] == "Tea"
    assert ended.task["repairs"]["count"] == 1


@pytest.mark.parametrize(
    ("answers", "status", "reason"),
    [
        ({}, "waiting", "approval"),
        ({"review": []}, "waiting", "approval"),
        ({"review": "reject"}, "failed", "approval_rejected"),
        ({"review": EXPIRE}, "dead", "approval_expired"),
        ({"review": {"decision": "approve", "comment": "good"}}, "completed", ""),
        ({"review": ["send_back", "approve"]}, "completed", ""),
        ({"review": ["send_back"]}, "waiting", "approval"),
    ],
)
def test_answers_lead_where_people_would(answers: Any, status: str, reason: str) -> None:
    ended = run(make_report(), {"about": "tea"}, answers=answers)
    assert (ended.status, ended.reason) == (status, reason)


def test_an_answer_goes_through_the_same_checks_as_a_persons() -> None:
    me = Actor("user", "7")
    answer = {"review": {"decision": "approve", "actor": me}}
    with pytest.raises(NotAllowed, match="what they submitted"):
        run(make_report(), {"about": "tea"}, answers=answer, actor=me)
    ended = run(make_report(self_approval=True), {"about": "tea"}, answers=answer, actor=me)
    assert ended.status == "completed"


def test_a_lost_worker_costs_a_run_and_no_output() -> None:
    ran: list[int] = []
    workflow = Workflow("lossy")

    @workflow.step
    def one(ctx: Any) -> Any:
        ran.append(ctx.attempt)
        return {"n": len(ran)}

    @workflow.step
    async def two(ctx: Any) -> Any:
        ctx.report(1, 2, "half")
        return {"two": True}

    ended = run(workflow, faults={"one": [LOST, None, LOST], "two": LOST})
    assert ended.status == "completed"
    assert ran == [1, 2]
    assert ended.units == [("one", 0), ("two", 0)]
    assert ended.progress == {"n": 2, "two": True}
    assert ended.kinds.count("reclaimed") == 2
    assert ended.kinds.count("stale_write_refused") == 2
    assert (ended.task["reclaims"], ended.task["attempts"]) == (0, 0)


def test_one_loss_too_many_is_dead() -> None:
    ended = run(make_report(), {"about": "tea"}, faults={"verify": [LOST] * 4})
    assert (ended.status, ended.reason) == ("dead", "reclaims_exhausted")
    assert ended.units == [("draft", 0)]


def test_a_raised_fault_is_a_failed_attempt_and_its_backoff_is_skipped() -> None:
    faults = {"draft": [TimeoutError("busy"), SystemExit, None]}
    ended = run(make_report(), {"about": "tea"}, faults=faults, answers={"review": "approve"})
    assert ended.status == "completed"
    failures = [event for event in ended.events if event["kind"] == "attempt_failed"]
    assert [event["data"]["error"]["type"] for event in failures] == ["TimeoutError", "SystemExit"]
    dead = run(make_report(), {"about": "tea"}, faults={"draft": [KeyError("k")] * 4})
    assert (dead.status, dead.reason) == ("dead", "retries_exhausted")


def test_a_fault_of_an_unknown_step_is_told() -> None:
    with pytest.raises(UnknownStep):
        run(make_report(), {"about": "tea"}, faults={"polish": LOST})


def test_every_outcome_does_what_it_says() -> None:
    workflow = Workflow("outcomes")

    @workflow.step
    def loop(ctx: Any) -> Any:
        if ctx.turn < 3:
            return Again({"turn": ctx.turn}, after=3600 if ctx.turn == 1 else 0)
        return None

    @workflow.step
    def nap(ctx: Any) -> Any:
        return Sleep(seconds=days(1), data={"slept": True})

    @workflow.step
    def until(ctx: Any) -> Any:
        return Sleep(until=clock.read() + dt.timedelta(hours=5))

    @workflow.step
    def busy(ctx: Any) -> Any:
        seen.append(ctx.attempt)
        if ctx.attempt == 1:
            raise RetryLater(600)
        return Finish({"done": [1, None]}, data={"last": 1})

    @workflow.step
    def never(ctx: Any) -> Any:
        seen.append("never")

    seen: list[Any] = []
    before = clock.offset
    ended = run(workflow)
    assert (ended.status, ended.result) == ("completed", {"done": [1, None]})
    assert ended.units[:4] == [("loop", turn) for turn in range(4)]
    assert [name for name, _ in ended.units[4:]] == ["nap", "until", "busy"]
    assert ended.progress == {"turn": 2, "slept": True, "last": 1}
    assert seen == [1, 2]
    assert ended.task["attempts"] == 0
    assert clock.offset == before


def test_failing_is_final_and_its_reason_is_kept() -> None:
    workflow = Workflow("failing")

    @workflow.step
    def only(ctx: Any) -> Any:
        raise Fail("no_such_topic", "Nobody wrote about it.")

    ended = run(workflow)
    assert (ended.status, ended.reason) == ("failed", "workflow_failed")
    assert ended.task["error"]["message"] == "no_such_topic: Nobody wrote about it."


def test_an_async_steps_writes_and_reads_work() -> None:
    workflow = Workflow("async")

    @workflow.step
    async def first(ctx: Any) -> Any:
        await asyncio.sleep(0)
        ctx.spend(tokens_in=3, cost="0.01")
        ctx.save_artifact("a.txt", "text")
        (ctx.workspace / "f").write_text("kept")
        return {"x": 1}

    @workflow.step
    async def second(ctx: Any) -> Any:
        with ctx.open_artifact("a.txt") as file:
            read = file.read().decode()
        kept = (ctx.workspace / "f").read_text()
        return {"read": read, "x": ctx.output_of("first")["x"], "file": kept}

    ended = run(workflow)
    assert ended.result == {"read": "text", "x": 1, "file": "kept"}
    assert ended.task["used"]["tokens_in"] == 3


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(units=2), "limit_units"),
        (Limits(tokens=10), "limit_tokens"),
        (Limits(cost="0.05"), "limit_cost"),
    ],
)
def test_a_used_up_limit_ends_the_task(limits: Limits, reason: str) -> None:
    workflow = Workflow("spender", limits=limits)

    @workflow.step
    def loop(ctx: Any) -> Any:
        ctx.spend(tokens_in=2, tokens_out=2, cost="0.02")
        return Again()

    ended = run(workflow)
    assert (ended.status, ended.reason) == ("dead", reason)


def test_large_values_come_back_whole(settings: Any) -> None:
    settings.LONGWATCH_INLINE_OUTPUT_BYTES = 1_000
    settings.LONGWATCH_INLINE_PROGRESS_BYTES = 2_000
    workflow = Workflow("large")

    @workflow.step
    def make(ctx: Any) -> Any:
        return Again({f"k{ctx.turn}": "x" * 3_000}) if ctx.turn < 3 else {"many": list(range(900))}

    @workflow.step
    def use(ctx: Any) -> Any:
        assert ctx.output_of("make") == {"many": list(range(900))}
        return {"sizes": {key: len(part) for key, part in ctx.progress.items()}}

    ended = run(workflow)
    sizes = {"k0": 3_000, "k1": 3_000, "k2": 3_000, "many": 900}
    assert ended.result == {"sizes": sizes}, ended.task["error"]
    assert len(str(ended.task["progress"])) < 2_000
    assert ended.progress["k1"] == "x" * 3_000


def test_very_many_small_values_join_the_progress_before_them(settings: Any) -> None:
    """They are spilled as one artifact, which must be opened before it is merged."""
    settings.LONGWATCH_INLINE_OUTPUT_BYTES = 1_000
    workflow = Workflow("many")
    workflow.step(lambda ctx: {"first": 1, "k0": "old"}, name="one")
    workflow.step(lambda ctx: {f"k{n}": "new" for n in range(200)}, name="many")
    workflow.step(lambda ctx: {"last": len(ctx.progress), "k0": ctx.progress["k0"]}, name="last")
    ended = run(workflow)
    assert ended.result == {"last": 201, "k0": "new"}
    assert ended.progress["first"] == 1


def test_what_no_database_can_hold_is_dead_at_once() -> None:
    workflow = Workflow("hostile")

    @workflow.step
    def only(ctx: Any) -> Any:
        return {"text": "a\x00b"}

    ended = run(workflow)
    assert (ended.status, ended.reason) == ("dead", "unserialisable_output")
    assert ended.task["error"]["message"] == "output.text: contains a NUL character"


@pytest.mark.django_db(transaction=True)
def test_a_transaction_left_open_is_rolled_back_and_told() -> None:
    workflow = Workflow("leaky")

    @workflow.step
    def only(ctx: Any) -> Any:
        block = transaction.atomic()
        block.__enter__()
        Task.objects.filter(pk=ctx.task_id).update(title="never")
        return {"x": 1}

    ended = run(workflow, title="kept")
    assert (ended.status, ended.reason) == ("dead", "retries_exhausted")
    assert "transaction_left_open" in ended.task["error"]["message"]
    assert ended.task["title"] == "kept"


def test_bad_input_and_other_queued_tasks_are_left_to_others() -> None:
    report = make_report()
    with pytest.raises(InvalidInput):
        run(report, ["no object"])
    first = run(report, {"about": "one"})
    second = run(report, {"about": "two"}, answers={"review": "approve"})
    assert (first.status, second.status) == ("waiting", "completed")
    assert Task.objects.get(pk=first.id).status == "waiting"


def test_a_secret_reaches_nothing_that_is_stored(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.LONGWATCH_INLINE_OUTPUT_BYTES = 1_000
    monkeypatch.setattr(secrets, "_forms", set())
    monkeypatch.setattr(secrets, "_pattern", None)
    monkeypatch.setenv("LONGWATCH_SECRET_CANARY", "canary-7f3a")
    workflow = Workflow("leaking", max_repairs=1)

    @workflow.step
    def leak(ctx: Any) -> Any:
        token = ctx.secret("CANARY")
        ctx.log.info("log %s", token)
        if ctx.attempt == 1:
            raise ValueError(f"error {token}")
        if ctx.round == 0:
            return Repair("leak", feedback=[token], key=token)
        return {token: [f"output {token}"], "large": token * 1_000}

    @workflow.step
    def ask(ctx: Any) -> Any:
        token = ctx.secret("CANARY")
        return AskApproval(
            f"Send {token}?", body=token, payload={"p": token}, proposal={"t": token}
        )

    @workflow.step
    def end(ctx: Any) -> Any:
        return Finish({"result": ctx.secret("CANARY") * 1_000})

    ended = run(workflow, answers={"ask": "approve"})
    assert ended.status == "completed"
    request = Approval.objects.get()
    stored = [str(ended), str(ended.result), str(ended.progress), str(vars(request))]
    assert all("[secret]" in text and "canary-7f3a" not in text for text in stored)


def test_a_step_shows_what_it_saved_and_asks_the_next_ones_when_nobody_answers() -> None:
    flow = Workflow("shows")

    @flow.step
    def review(ctx: Any) -> Any:
        old = ctx.save_artifact("a.txt", "old")
        ctx.save_artifact("b.txt", "new")
        chain = [("user:testing", 60)]
        return AskApproval("So?", diff=(old, "b.txt"), assignees=["group:x"], escalate=chain)

    ended = run(flow, answers={"review": [EXPIRE, "approve"]})
    assert (ended.status, ended.kinds.count("approval_escalated")) == ("completed", 1)
    attached = Approval.objects.get().attached
    assert attached is not None
    assert [one["name"] for one in attached["diff"]] == ["a.txt", "b.txt"]
    assert run(flow, answers={"review": EXPIRE}).reason == "approval_expired"


def test_an_artifact_that_is_not_the_tasks_is_a_failed_attempt() -> None:
    flow = Workflow("strays")

    @flow.step(retries=1)
    def review(ctx: Any) -> Any:
        return AskApproval("So?", artifacts=["none.txt"])

    ended = run(flow)
    assert (ended.status, ended.kinds.count("attempt_failed")) == ("dead", 2)
    assert ended.task["error"]["type"] == "InvalidInput"
    assert "'none.txt' is no artifact of this task" in ended.task["error"]["message"]
    assert not Approval.objects.exists()
