"""Copies of tasks: what they start from, what they lack, and that the original stays as it is."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from django.db.models import Q

from ledger import clock, queries, states
from ledger.errors import (
    IdempotencyConflict,
    InvalidInput,
    PayloadTooLarge,
    StaleRevision,
    TaskNotFound,
    UnknownStep,
    UnknownWorkflow,
)
from ledger.events import Actor
from ledger.models import Approval, Artifact, Spend, StepOutput, Task
from ledger.testing import _describe, run
from ledger.transitions import operators
from ledger.transitions.forks import fork_task
from ledger.transitions.holder import settle_unit
from ledger.transitions.rebuilding import check_stand, read_stand
from ledger.workflows import Again, AskApproval, Workflow, registered
from tests.factories import OPERATOR, claim, make_in, make_unit, submit
from tests.ledger.copying import BIG, edit, find_seq, fork, go_on


@pytest.fixture(autouse=True)
def own_places(settings: Any, tmp_path: Path) -> None:
    settings.LONGWATCH_VAR = str(tmp_path / "var")
    settings.LONGWATCH_ARTIFACTS = str(tmp_path / "artifacts")


def make_book(version: str = "1") -> Workflow:
    """Notes, three chapters, a question, and a print that needs everything from before."""
    book = Workflow("book", version)

    @book.step
    def gather(ctx: Any) -> Any:
        saved = ctx.save_artifact("notes.txt", "all the notes")
        (ctx.workspace / "draft.md").write_text("0")
        ctx.spend(tokens_in=10, cost="0.5")
        return {"notes": BIG, "saved": str(saved.id), "last": "gather"}

    @book.step
    def write(ctx: Any) -> Any:
        (ctx.workspace / "draft.md").write_text(f"{ctx.turn}")
        ctx.save_artifact("chapter.md", f"chapter {ctx.turn}")
        return Again({f"c{ctx.turn}": True, "last": "write"}) if ctx.turn < 2 else {"done": True}

    @book.step
    def review(ctx: Any) -> Any:
        (ctx.workspace / "draft.md").write_text("reviewed")
        return AskApproval("Print it?", data={"last": "review"}, send_back_to="write")

    @book.step
    def publish(ctx: Any) -> Any:
        with ctx.open_artifact("notes.txt") as notes, ctx.open_artifact("chapter.md") as chapter:
            read = [notes.read().decode(), chapter.read().decode()]
        with ctx.open_artifact(ctx.progress["saved"]) as notes:
            read.append(notes.read().decode())
        return {
            "read": read, "keys": sorted(ctx.progress), "last": ctx.progress["last"],
            "notes": [len(ctx.progress["notes"]), len(ctx.output_of("gather")["notes"])],
            "by": (ctx.answer or {}).get("by"), "draft": (ctx.workspace / "draft.md").read_text(),
            "input": ctx.input,
        }  # fmt: skip

    return book


@pytest.fixture
def book(db: None) -> Iterator[Workflow]:
    """The workflow, known to this process."""
    workflow = make_book()
    with registered(workflow):
        yield workflow


def test_a_copy_ends_like_its_original_without_its_work(book: Workflow) -> None:
    first = run(book, {"topic": "tea"}, answers={"review": "approve"}, title="Tea", tags=["a"])
    copy = fork(first.id, "publish", reason="print it again")
    shown = queries.show_task(copy.pk)
    assert (shown["status"], shown["step"]["name"], shown["title"]) == ("queued", "publish", "Tea")
    assert shown["used"] == {"units": 0, "tokens_in": 0, "tokens_out": 0, "cost": "0.00"}
    assert (shown["copied_from"], shown["submitted_by"]) == (str(first.id), str(OPERATOR))
    for name in ("input", "limits", "lane", "priority", "tags", "repairs"):
        assert shown[name] == first.task[name]
    second = go_on(copy.pk, book)
    assert (second.status, second.result) == ("completed", first.result)
    assert second.result["read"] == ["all the notes", "chapter 2", "all the notes"]
    assert (second.result["by"], second.result["draft"]) == ("user:testing", "reviewed")
    assert second.task["used"]["units"] == 1
    assert second.kinds == ["submitted", "forked", *["checkpoint"] * 6, "completed"]
    assert not Spend.objects.filter(task=copy).exists()
    assert not Approval.objects.filter(task=copy).exists()
    assert _describe(first.id).kinds == [*first.kinds, "forked"]


def test_copied_outputs_say_where_they_come_from(book: Workflow) -> None:
    first = run(book, answers={"review": "approve"})
    copied = go_on(fork(first.id, 2).pk, book).outputs[:4]
    for output, original in zip(copied, first.outputs[:4], strict=True):
        assert output["copied_from"] == {"task": str(first.id), "seq": original["seq"]}
        assert (output["fence"], output["round"], output["edited_by"]) == (0, 0, None)
        for name in ("step", "turn", "output", "worker"):
            assert output[name] == original[name]
    events = _describe(first.id).events
    assert events[-1]["data"]["from_step"] == "review"
    assert events[-1]["actor"] == {"kind": "user", "id": "1"}


def test_a_copy_knows_only_what_the_units_before_it_left(book: Workflow) -> None:
    """Progress and files as they were then, whatever the original did since."""
    first = run(book, answers={"review": "approve"})
    copy = fork(first.id, "write")
    assert sorted(copy.progress) == ["last", "notes", "saved"]
    assert copy.progress["last"] == "gather"
    assert copy.workspace == StepOutput.objects.get(task=first.id, step_name="gather").workspace
    assert set(copy.artifacts.values_list("name", flat=True)) == {"notes.txt"}
    empty = fork(first.id, 0)
    assert (empty.progress, empty.workspace, empty.outputs.count()) == ({}, "", 0)
    assert not empty.artifacts.exists()


def test_people_are_asked_again_where_the_question_is_not_behind(book: Workflow) -> None:
    first = run(book, answers={"review": "approve"})
    asked = go_on(fork(first.id, "review").pk, book)
    assert (asked.status, asked.reason) == ("waiting", "approval")
    assert Approval.objects.filter(task=asked.id, status="open").count() == 1
    back = run(book, answers={"review": ["send_back", "approve"]})
    assert fork(back.id, "write").answer is None
    assert fork(back.id, "publish").answer == back_answer(back.id)


def back_answer(task_id: UUID) -> Any:
    """The answer that the original's last step was given."""
    return Task.objects.get(pk=task_id).answer


def test_what_people_agreed_to_never_stands_for_other_work(book: Workflow) -> None:
    first = run(book, {"topic": "tea"}, answers={"review": "approve"})
    again = fork(first.id, "publish")
    for source in (first.id, again.pk):
        with pytest.raises(InvalidInput, match=r"at review .* copy from review or earlier"):
            fork(source, "publish", input={"topic": "coffee"})
    with registered(make_book("2")), pytest.raises(InvalidInput, match="asked at review"):
        fork(first.id, "publish", version="2")
    assert fork(first.id, "review", input={"topic": "coffee"}).input == {"topic": "coffee"}


def test_a_copy_of_a_copy_reads_what_the_first_one_saved(book: Workflow) -> None:
    first = run(book, answers={"review": "approve"})
    second = fork(fork(first.id, "publish").pk, "publish")
    ended = go_on(second.pk, book)
    assert ended.result == first.result
    assert queries.list_lineage(second.pk)[-1] == first.id


def test_values_too_large_for_a_row_are_no_error(book: Workflow) -> None:
    """Neither many small values in one output, nor many outputs that add up to too much."""
    wide = Workflow("wide")
    wide.step(lambda ctx: {f"k{n}": "v" * 20 for n in range(4_000)}, name="many")

    @wide.step
    def add(ctx: Any) -> Any:
        data = {f"b{ctx.turn}": "w" * 60_000}
        return Again(data) if ctx.turn < 4 else data

    wide.step(lambda ctx: {"sizes": [len(str(ctx.progress)), len(ctx.progress)]}, name="last")
    first = run(wide)
    assert first.result["sizes"][1] == 4_005
    with registered(wide):
        copy = fork(first.id, "last")
        assert len(str(copy.progress)) < 262_144
        assert Artifact.objects.filter(task=copy, name__startswith="$progress").exists()
        assert go_on(copy.pk, wide).result == first.result
        assert go_on(fork(copy.pk, "last").pk, wide).result == first.result


@pytest.mark.parametrize("status", states.STATUSES)
def test_any_status_can_be_copied_and_stays_as_it_is(status: str, flow: Workflow) -> None:
    task = make_in(status, flow)
    before = Task.objects.filter(pk=task.pk).values().get()
    copy = fork(task.pk, "a", revision=task.revision)
    assert (copy.status, copy.step_name) == ("queued", "a")
    after = Task.objects.filter(pk=task.pk).values().get()
    moved = {name for name, value in after.items() if value != before[name]}
    assert moved <= {"revision", "event_seq", "updated_at"}
    assert (after["revision"], after["event_seq"]) == (task.revision + 1, task.event_seq + 1)


def test_the_holder_of_the_original_notices_nothing(flow: Workflow) -> None:
    submit(flow)
    held = claim(flow)
    fork(held.task_id, "a")
    settle_unit(held, make_unit(held, flow))
    assert Task.objects.get(pk=held.task_id).step_name == "b"


def test_the_same_key_gives_the_same_copy(flow: Workflow) -> None:
    task, other = submit(flow), submit(flow)
    first, created = fork_task(task.pk, from_step="a", actor=OPERATOR, key="k", input={"x": 1})
    assert created
    operators.cancel_task(task.pk, actor=OPERATOR)
    again, created = fork_task(task.pk, from_step=0, actor=OPERATOR, key="k", input={"x": 1})
    assert (again.pk, created) == (first.pk, False)
    for source, given in ((task, {"x": 2}), (task, None), (other, {"x": 1})):
        with pytest.raises(IdempotencyConflict):
            fork_task(source.pk, from_step="a", actor=OPERATOR, key="k", input=given)
    _, created = fork_task(
        task.pk, from_step="a", actor=Actor("user", "9"), key="k", input={"x": 1}
    )
    assert created
    assert Task.objects.count() == 4


@pytest.mark.django_db(transaction=True)
def test_a_double_click_with_a_key_makes_one_copy(flow: Workflow, transactional_db: None) -> None:
    task = submit(flow)
    gate, made = threading.Barrier(4), []

    def click() -> None:
        try:
            gate.wait(20)
            made.append(fork_task(task.pk, from_step="a", actor=OPERATOR, key="click"))
        finally:
            connection.close()

    threads = [threading.Thread(target=click) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(created for _, created in made) == [False, False, False, True]
    assert len({copy.pk for copy, _ in made}) == 1
    assert list(task.events.order_by("seq").values_list("kind", flat=True)) == [
        "submitted", "forked",
    ]  # fmt: skip


def test_what_cannot_be_copied_is_said_by_name(flow: Workflow) -> None:
    task = submit(flow)
    with pytest.raises(TaskNotFound):
        fork("00000000-0000-0000-0000-000000000000", "a")
    with pytest.raises(UnknownStep, match="the steps are a, b, c"):
        fork(task.pk, "nowhere")
    with pytest.raises(InvalidInput, match="from_step: b has not been reached; copy from a"):
        fork(task.pk, "b")
    with pytest.raises(UnknownWorkflow, match="version 7"):
        fork(task.pk, "a", version="7")
    with pytest.raises(StaleRevision):
        fork(task.pk, "a", revision=task.revision + 1)
    with pytest.raises(InvalidInput, match="input: takes a JSON object"):
        fork(task.pk, "a", input=[1])
    with pytest.raises(PayloadTooLarge):
        fork(task.pk, "a", input={"x": "y" * 300_000})
    with pytest.raises(InvalidInput, match="key: takes a text"):
        fork(task.pk, "a", key="")
    with pytest.raises(InvalidInput, match="reason"):
        fork(task.pk, "a", reason="x" * 5_000)
    assert Task.objects.count() == 1


def make_other(version: str, *names: str) -> Workflow:
    """The same workflow with other steps."""
    workflow = Workflow("three", version)
    for name in names:
        workflow.step(lambda ctx: None, name=name)
    return workflow


def test_a_copy_may_take_another_version(flow: Workflow) -> None:
    """From where its step stands among the outputs; a new step stands after those before it."""
    task = submit(flow)
    for _ in range(2):
        held = claim(flow)
        settle_unit(held, make_unit(held, flow))
    other = make_other("2", "z", "a", "new", "c", "d")
    with registered(other):
        copied = {
            step: list(fork(task.pk, step, version="2").outputs.values_list("step_name", flat=True))
            for step in ("z", "a", "new", "c", "d")
        }
        copy = fork(task.pk, "c", version="2")
        assert (copy.workflow_version, copy.total_steps) == ("2", 5)
        assert copy.definition_digest == other.digest()
        assert copy.progress == {"ok": True}
        assert edit(copy.pk, find_seq(copy.pk, "a")).step_name == "new"
        assert go_on(copy.pk, other).status == "completed"
    assert copied == {"z": [], "a": [], "new": ["a"], "c": ["a", "b"], "d": ["a"]}


def test_a_copy_of_a_task_whose_steps_changed_has_all_that_came_before(flow: Workflow) -> None:
    task = submit(flow)
    for _ in range(2):
        held = claim(flow)
        settle_unit(held, make_unit(held, flow))
    shorter = make_other("1", "a", "c", "d")
    with registered(shorter):
        go_on(task.pk, shorter)
        copy = fork(task.pk, "d")
        assert list(copy.outputs.values_list("step_name", flat=True)) == ["a", "b", "c"]
        assert edit(copy.pk, find_seq(copy.pk, "c")).step_name == "d"
        assert copy.outputs.filter(superseded_in_round=None).count() == 3
        assert go_on(copy.pk, shorter).status == "completed"


def test_a_deadline_that_has_passed_is_not_taken_over(flow: Workflow) -> None:
    soon = clock.read() + dt.timedelta(seconds=100)
    task = submit(flow, limits_given={"deadline_at": soon, "units": 5})
    assert fork(task.pk, "a").deadline_at == Task.objects.get(pk=task.pk).deadline_at
    clock.offset += 200
    late = fork(task.pk, "a")
    assert (late.deadline_at, late.limit_units) == (None, 5)


def test_a_restart_between_reading_and_copying_is_noticed(flow: Workflow) -> None:
    submit(flow)
    held = claim(flow)
    settle_unit(held, make_unit(held, flow))
    before = Q(step_index__lt=1)
    stand = read_stand(held.task_id, before)
    check_stand(Task.objects.get(pk=held.task_id), before, stand, 1)
    operators.restart_task(held.task_id, to_step="a", note="", actor=OPERATOR)
    with pytest.raises(StaleRevision):
        check_stand(Task.objects.get(pk=held.task_id), before, stand, 1)
