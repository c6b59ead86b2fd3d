"""The hand-off: all that the next session needs, the same bytes each time, within its bound."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ledger import clock, limits, queries, sql, sweeper
from ledger.errors import InvalidInput, LeaseLost, TaskNotFound
from ledger.events import Actor
from ledger.handoff import LEAST_TOKENS, build_handoff, count_tokens
from ledger.ids import make_id
from ledger.models import Approval, Handoff, StepOutput, Task
from ledger.testing import LOST, run
from ledger.transitions import approvals, holder, operators, waits
from ledger.transitions.effects import begin_effect
from ledger.workflows import AskApproval, Repair, Workflow, registered
from tests.factories import (
    CLIENT,
    OPERATOR,
    ask,
    attempt,
    claim,
    complete,
    make_unit,
    make_workflow,
    spawn,
    submit,
    wait_for,
)
from tests.held import make_context

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]


@pytest.fixture(autouse=True)
def own_places(settings: Any, tmp_path: Path) -> None:
    settings.LONGWATCH_VAR = str(tmp_path / "var")
    settings.LONGWATCH_ARTIFACTS = str(tmp_path / "artifacts")


def write(ctx: Any) -> Any:
    ctx.once("tell", lambda: {"told": "the press"})
    ctx.save_artifact("draft.txt", "text", "text/plain")
    return {"draft": f"Über {ctx.round}"}


def check(ctx: Any) -> Any:
    if ctx.round == 0:
        return Repair("write", "too short", tried=1)
    return AskApproval("Publish it?")


def close(ctx: Any) -> Any:
    if ctx.attempt == 1:
        raise ValueError("the printer is out of paper")
    return {"said": ctx.handoff().markdown}


def make_flow() -> Workflow:
    flow = Workflow("press", version="3")
    for step in (write, check, close):
        flow.step(step)
    return flow


EXPECTED = """\
# A story

Task {task}, workflow press version 3.
Step 3 of 3, close; turn 0, round 1.
Feedback to this step: "too short"
The last attempt failed: "ValueError: the printer is out of paper"

## Objective

- "about": "bees"

## Progress

- "draft": "Über 1"
- "tried": 1

## Outputs that count

- write, turn 0: {{"draft":"Über 1"}}
- check, turn 0: {{}}

## Decisions of people

- check, "Publish it?": approved by user:testing, who says "well done"; values: {{"copies":2}}

## Restarts, and what was found

- round 1, from write on, by the workflow; found: "too short"

## Effects on the world outside

- tell of write, turn 0, round 0: done; result: {{"told":"the press"}}
- tell of write, turn 0, round 1: done; result: {{"told":"the press"}}

## Artifacts

- "draft.txt" of write: text/plain, 4 bytes, {first}
- "draft.txt" of write: text/plain, 4 bytes, {second}

## What is left

Of the limits: 9996 units, 10000000 tokens, 100.00 of money, 2 repairs.
Steps after this one: none.
"""


def test_it_holds_all_that_the_next_session_needs() -> None:
    said = {"decision": "approve", "comment": "well done", "values": {"copies": 2}}
    ended = run(make_flow(), {"about": "bees"}, answers={"check": said}, title="A  story")
    assert ended.status == "completed", ended.task["error"]
    first, second = Task.objects.get().artifacts.order_by("id").values_list("pk", flat=True)
    told = ended.result["said"]
    assert told == EXPECTED.format(task=ended.id, first=first, second=second)


@pytest.fixture
def flow() -> Any:
    workflow = make_workflow()
    with registered(workflow):
        yield workflow


def fill(flow: Workflow, count: int, size: int = 50) -> Any:
    """A held task with so many outputs."""
    task = submit(flow, input={"about": "bees", "more": "x" * size})
    held = claim(flow)
    for turn in range(count):
        unit = make_unit(held, flow, output=json.dumps({"n": turn, "text": "é" * size}),
                         next_index=0, next_name="a", next_turn=turn + 1)  # fmt: skip
        assert sql.checkpoint_unit(held, unit, lease_seconds=60, groups=None)
        held = sql.read_task(Task.objects.get(pk=task.pk))
    return held


def measure(sent: Any) -> int:
    text = json.dumps(sent.data, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return max(count_tokens(sent.markdown), count_tokens(text))


def test_the_same_ledger_gives_the_same_bytes(
    flow: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = fill(flow, 3)
    before = build_handoff(held.task_id)
    monkeypatch.setattr(clock, "offset", clock.offset + 30)
    operators.retry_task(held.task_id, actor=OPERATOR)
    holder.release_task(claim(flow), why="drain")
    sent = build_handoff(held.task_id)
    assert (sent.markdown, sent.data, sent.digest) == (before.markdown, before.data, before.digest)
    limits.record_spend(claim(flow), key="k", tokens_in=7)
    assert build_handoff(held.task_id).digest != sent.digest


@pytest.mark.parametrize("size", [10, 700, 3_000])
def test_it_keeps_to_its_bound_and_says_what_it_left_out(flow: Workflow, size: int) -> None:
    held = fill(flow, 60, size)
    whole = build_handoff(held.task_id, 1_000_000)
    assert (whole.data["left_out"], len(whole.data["outputs"])) == ({}, 60)
    assert "Left out" not in whole.markdown
    sent = build_handoff(held.task_id, LEAST_TOKENS)
    assert measure(sent) <= LEAST_TOKENS
    gone = sent.data["left_out"].get("outputs", 0)
    kept = [one["turn"] for one in sent.data["outputs"]]
    assert kept == list(range(gone, 60)), "the oldest go first"
    if gone:
        assert f"- Outputs that count: {gone} of 60\n" in sent.markdown
        # And no more of them than it must.
        line = next(one for one in whole.markdown.splitlines() if f"turn {gone - 1}:" in one)
        assert measure(sent) + count_tokens(line) + 40 > LEAST_TOKENS
    assert sent.data["objective"][0] == {"key": "about", "value": "bees"}


@pytest.mark.parametrize("text", ["x", "\U0001d54f", '"\\', "\n"])
def test_the_worst_of_everything_fits(text: str) -> None:
    worst = text * 60_000
    flow = make_workflow("w" * 100, steps=10)
    with registered(flow):
        task = submit(
            flow,
            input={worst[:4_000]: worst[:4_000], "a": worst[:4_000]},
            title=(text * 200)[:200].replace("\n", " "),
        )
        held = claim(flow)
        begin_effect(held, "tell", worst[:10_000])
        unit = make_unit(held, flow, output=json.dumps({"o": worst}), next_index=0,
                         next_name="a", next_turn=0)  # fmt: skip
        holder.repair_task(held, unit, to_index=0, to_name="a", feedback=worst)
        error = {"type": "E" * 200, "message": worst[:16_000], "step": "a", "turn": 0}
        held = claim(flow)
        holder.record_failure(held, holder.Attempt(error), retries=3, backoff=1)
        sent = build_handoff(task.pk, LEAST_TOKENS)
    assert measure(sent) <= LEAST_TOKENS
    assert sent.markdown.count("\n## ") == len(
        [line for line in sent.markdown.splitlines() if line.startswith("## ")]
    ), "no value breaks out of its line"


def test_rows_past_those_that_are_read_are_counted(
    flow: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ledger import handoff

    monkeypatch.setattr(handoff, "READ", 5)
    sent = build_handoff(fill(flow, 8).task_id)
    assert (len(sent.data["outputs"]), sent.data["left_out"]) == (5, {"outputs": 3})


def test_what_was_superseded_is_not_told(flow: Workflow) -> None:
    held = fill(flow, 2)
    operators.restart_task(held.task_id, to_step="a", note="once more", actor=OPERATOR)
    sent = build_handoff(held.task_id)
    assert sent.data["outputs"] == []
    assert sent.data["repairs"] == [
        {
            "to": "a",
            "round": 1,
            "by": "user:1",
            "feedback": {"comment": "once more", "by": "user:1"},
        }
    ]  # fmt: skip
    assert StepOutput.objects.count() == 2


def test_children_signals_and_every_vote_are_told(flow: Workflow) -> None:
    task = submit(flow)
    spawn(claim(flow), flow, 2, max_failed=2)
    complete(claim(flow), flow)
    holder.fail_task(claim(flow), attempt())
    waits.send_signal(task.pk, name="early", data={"n": 1}, actor=CLIENT)
    waits.send_signal(task.pk, name="go", data=None, actor=CLIENT)
    sweeper.sweep()
    wait_for(claim(flow), flow)
    ask(claim(flow), flow, votes=2, then="again")
    asked = Approval.objects.get()
    for number, said in ((1, "fine"), (2, "")):
        approvals.decide_approval(asked.pk, decision="approve", comment=said, digest=asked.digest,
                                  actor=Actor("user", str(number)))  # fmt: skip
    sent = build_handoff(task.pk)
    good, bad = Task.objects.filter(parent=task).order_by("id")
    told = sent.markdown.partition("## Child tasks\n\n")[2].splitlines()
    error = '{"message":"it broke","step":"a","turn":0,"type":"Boom"}'
    first, second = (f'{{"by":"user:{n}","comment":"{said}","decision":"approve"}}'
                     for n, said in ((1, "fine"), (2, "")))  # fmt: skip
    assert told[:9] == [
        f'- three, "", {good.pk}: completed; result: {{"done":true}}',
        f'- three, "", {bad.pk}: failed; error: {error}',
        "", "## Signals from outside", "",
        '- early by cli:tester, not read; data: {"n":1}', "- go by cli:tester, read",
        "", "## Decisions of people",
    ]  # fmt: skip
    assert told[10] == f'- c, "Go on?": approved by user:2; votes: [{first},{second}]'
    assert [one["status"] for one in sent.data["children"]] == ["completed", "failed"]
    operators.restart_task(task.pk, to_step="a", note="", actor=OPERATOR)
    assert build_handoff(task.pk).data["children"] == [], "of a unit that was superseded"


def test_a_limit_left_is_what_may_still_be_reserved(flow: Workflow) -> None:
    submit(flow)
    held = claim(flow)
    before = build_handoff(held.task_id).data["left"]
    make_context(held, flow).reserve(tokens=100, cost="1.50")
    after = build_handoff(held.task_id).data["left"]
    assert (before["tokens"] - after["tokens"], before["cost"], after["cost"]) == (
        100, "100.00", "98.50",
    )  # fmt: skip


def test_the_last_texts_are_kept_and_every_digest(
    flow: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ledger import handoff

    monkeypatch.setattr(handoff, "KEPT", 3)
    task = submit(flow)
    held = claim(flow)
    sent = []
    for n in range(6):
        limits.record_spend(held, key=str(n), tokens_in=1)
        sent.append(handoff.build_handoff(task.pk))
        handoff.record_handoff(held, sent[-1])
    rows = Handoff.objects.order_by("id")
    assert [row.text for row in rows] == ["", "", "", *(one.markdown for one in sent[3:])]
    assert [row.digest for row in rows] == [one.digest for one in sent]
    unit = make_unit(held, flow)
    sql.checkpoint_unit(held, unit, lease_seconds=60, groups=None)
    [shown] = queries.list_outputs(task.pk).items
    assert shown["handoff"] == {"id": rows.last().pk, "digest": sent[-1].digest}


def test_what_a_unit_was_told_is_on_record_by_its_fence(flow: Workflow) -> None:
    held = fill(flow, 1)
    ctx = make_context(held, flow)
    assert not Handoff.objects.exists()
    sent = ctx.handoff()
    ctx.handoff()
    row = Handoff.objects.get()
    assert (row.fence, row.digest, row.text) == (held.fence, sent.digest, sent.markdown)
    unit = make_unit(held, flow)
    sql.checkpoint_unit(held, unit, lease_seconds=60, groups=None)
    assert StepOutput.objects.filter(task=held.task_id, fence=row.fence).count() == 1
    with pytest.raises(LeaseLost):
        ctx.handoff()


def test_a_bound_that_holds_nothing_is_refused(flow: Workflow) -> None:
    task = submit(flow)
    for tokens in (0, -1, LEAST_TOKENS - 1, 10**9, True):
        with pytest.raises(InvalidInput, match="tokens: takes a number"):
            build_handoff(task.pk, tokens)
    with pytest.raises(TaskNotFound):
        build_handoff(make_id())


@pytest.mark.django_db(transaction=True)
def test_an_isolated_step_gets_it_too() -> None:
    from tests.poison.alone import told_alone

    ended = run(told_alone, {"about": "bees"}, faults={"read": LOST})
    assert ended.result == {"key": "about", "same": True}, ended.task["error"]
    assert set(Handoff.objects.values_list("step", flat=True)) == {"read"}
    assert Handoff.objects.count() == 2
