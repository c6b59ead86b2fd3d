"""What is undone: no task goes on as if it were still done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ledger import artifacts, clock
from ledger.errors import EffectConflict, InvalidInput, NotEditable
from ledger.models import Artifact, Effect, StepOutput, Task
from ledger.runner import Engine, run_attempt
from ledger.sql import Claimed
from ledger.testing import run
from ledger.transitions import edits, holder, operators
from ledger.transitions.effects import begin_undo, finish_undo, mark_effect
from ledger.transitions.forks import fork_task
from ledger.transitions.outputs import edit_output
from ledger.workflows import Again, Fail, PastEffect, Workflow, registered
from tests.factories import attempt
from tests.held import OWNER, claim, claim_new, make_context
from tests.shop import ANN, Shop, work

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def own_places(settings: Any, tmp_path: Path) -> Any:
    settings.LONGWATCH_VAR = str(tmp_path / "var")
    settings.LONGWATCH_ARTIFACTS = str(tmp_path / "artifacts")
    yield
    clock.offset = 0.0


@pytest.fixture
def shop() -> Any:
    shop = Shop()
    with registered(shop.flow):
        yield shop


def run_to_close(shop: Shop, held: Claimed) -> Claimed:
    """The claim of its last step, when all before have run."""
    while held.step_name != "close":
        held = run_attempt(Engine(OWNER), held) or claim(shop.flow)
    return held


def fail_at_close(shop: Shop, *, undone: int) -> Task:
    """A task that has paid twice and shipped, and has undone so many of these, the last first."""
    held = run_to_close(shop, claim_new(shop.flow))
    holder.fail_task(held, attempt())
    return work(shop, Task.objects.get(pk=held.task_id), undone)


def find_seq(task: Task, step: str, turn: int = 0) -> int:
    """The number of the live output of a unit."""
    live = StepOutput.objects.filter(task=task, superseded_in_round__isnull=True)
    return live.get(step_name=step, turn=turn).seq


def restart(task: Task, step: str) -> None:
    operators.restart_task(task.pk, to_step=step, note="", actor=ANN)


def test_a_restart_begins_no_later_than_at_what_is_undone(shop: Shop) -> None:
    task = fail_at_close(shop, undone=1)
    assert (task.status, shop.list_undone()) == ("queued", ["parcel"])
    with pytest.raises(InvalidInput, match="its effect parcel of ship was undone; restart it fr"):
        restart(task, "close")
    restart(task, "ship")
    shop.end = None
    assert run_attempt(Engine(OWNER), run_to_close(shop, claim(shop.flow))) is None
    task.refresh_from_db()
    assert task.status == "completed"
    assert [key.split(":")[1:] for key in shop.done] == [
        ["pay", "0", "0", "deposit"], ["pay", "1", "0", "rest"], ["ship", "0", "0", "parcel"],
        ["ship", "0", "1", "parcel"],
    ]  # fmt: skip


def test_nor_does_a_copy(shop: Shop) -> None:
    task = fail_at_close(shop, undone=2)
    operators.pause_task(task.pk, actor=ANN)
    for step in ("close", "ship"):
        with pytest.raises(InvalidInput, match="its effect rest of pay was undone; copy it from"):
            fork_task(task.pk, from_step=step, actor=ANN)
    copy, _ = fork_task(task.pk, from_step="pay", actor=ANN)
    assert copy.step_name == "pay"


def test_nor_an_edited_output(shop: Shop) -> None:
    """Neither that of the unit itself nor a later one; and what it stands on is not forgotten."""
    task = fail_at_close(shop, undone=0)
    seq = find_seq(task, "ship")
    edit_output(task.pk, seq, output={"by": "hand"}, actor=ANN, reason="x")
    holder.fail_task(claim(shop.flow), attempt())
    task = work(shop, task, 1)
    assert (task.step_name, task.round, shop.list_undone()) == ("close", 1, ["parcel"])
    with pytest.raises(NotEditable, match="its effect parcel of ship was undone"):
        edit_output(task.pk, find_seq(task, "ship"), output={}, actor=ANN, reason="x")
    with pytest.raises(InvalidInput, match="parcel"):
        restart(task, "close")
    edit_output(task.pk, find_seq(task, "pay", 1), output={}, actor=ANN, reason="x")
    task.refresh_from_db()
    assert (task.step_name, task.ending) == ("ship", None)


def test_nor_a_raw_edit(shop: Shop) -> None:
    task = work(shop, fail_at_close(shop, undone=0), 3)
    changes: list[dict[str, Any]] = [
        {"status": "queued"}, {"status": "paused", "step_name": "ship"}, {"step_name": "pay",
        "turn": 1, "status": "queued"},
    ]  # fmt: skip
    for change in changes:
        with pytest.raises(InvalidInput, match="was undone"):
            edits.edit_task(task.pk, changes=change, actor=ANN, reason="x", revision=task.revision)
    edits.edit_task(task.pk, changes={"title": "x"}, actor=ANN, reason="x", revision=task.revision)
    task.refresh_from_db()
    first = {"status": "queued", "step_name": "pay", "turn": 0}
    edits.edit_task(task.pk, changes=first, actor=ANN, reason="x", revision=task.revision)


def test_what_was_done_anew_stands(shop: Shop) -> None:
    """Undone in the first round, done in the second, edited in the third."""
    task = fail_at_close(shop, undone=3)
    restart(task, "pay")
    assert run_to_close(shop, claim(shop.flow)).round == 1
    edit_output(task.pk, find_seq(task, "ship"), output={"by": "hand"}, actor=ANN, reason="x")
    restart(task, "close")
    fork_task(task.pk, from_step="close", actor=ANN)


def test_a_restart_waits_for_who_is_undoing_what_it_stands_on(shop: Shop) -> None:
    """Else it would go on, and a moment later be undone behind its back."""
    task = fail_at_close(shop, undone=0)
    held, parcel = claim(shop.flow), Effect.objects.get(name="parcel")
    begin_undo(held, parcel.pk)
    with pytest.raises(InvalidInput, match="is being undone by a worker now"):
        restart(task, "close")
    restart(task, "ship")
    finish_undo(held, parcel.pk, None)
    operators.cancel_task(task.pk, actor=ANN)
    work(shop, task, 2)
    assert shop.list_undone() == ["rest", "deposit"]


def test_where_nobody_knows_a_person_says_that_it_is_not_undone(shop: Shop) -> None:
    """The word of who did undo it counts all the same, and a person is not asked twice."""
    task = fail_at_close(shop, undone=0)
    held, parcel = claim(shop.flow), Effect.objects.get(name="parcel")
    with pytest.raises(EffectConflict, match="is done, so it can't be marked done"):
        mark_effect(task.pk, parcel.pk, to="done", actor=ANN)
    begin_undo(held, parcel.pk)
    holder.record_failure(held, attempt(), retries=0, backoff=1.0)
    with pytest.raises(InvalidInput, match="may be undone, which nobody knows; settle it, or res"):
        restart(task, "close")
    mark_effect(task.pk, parcel.pk, to="done", actor=ANN)
    with pytest.raises(EffectConflict, match="is done, so it can't be marked done"):
        mark_effect(task.pk, parcel.pk, to="done", actor=ANN)
    restart(task, "close")
    ctx = make_context(claim(shop.flow), shop.flow)
    finish_undo(held, parcel.pk, "after all")
    parcel.refresh_from_db()
    assert (parcel.status, parcel.undo_result) == ("compensated", "after all")
    holder.fail_task(ctx._claimed, attempt())
    work(shop, task, 2)
    assert shop.list_undone() == ["rest", "deposit"]


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_what_a_compensation_keeps_stands_with_its_effect(is_async: bool) -> None:
    """Beside what the unit saved, and never in the place of what another one keeps."""
    flow = Workflow("keeper")

    def refund(ctx: Any, effect: PastEffect) -> Any:
        ctx.save_artifact("receipt", f"{effect.name} {ctx.turn} is paid back")
        return [effect.name, ctx.turn, "x" * 300_000]

    async def refund_async(ctx: Any, effect: PastEffect) -> Any:
        return refund(ctx, effect)

    flow.compensation(refund_async if is_async else refund, name="refund")

    @flow.step
    def pay(ctx: Any) -> Any:
        for name in ("a", "b"):
            ctx.once(name, lambda: 1, compensate="refund")
        ctx.save_artifact("receipt", "paid")
        return Again() if ctx.turn == 0 else None

    @flow.step
    def close(ctx: Any) -> Any:
        raise Fail("no")

    ended = run(flow)
    effects = Effect.objects.filter(task=ended.id).order_by("pk")
    for effect in effects:
        told = artifacts.resolve(effect.undo_result, ended.id)
        assert told[:2] == [effect.name, effect.turn]
        unit = {"step": "pay", "step_index": 0, "turn": effect.turn, "round": 0}
        receipt = Artifact.objects.get(name=f"{effect.name}.undo.receipt", **unit)
        with artifacts.open_content(receipt) as file:
            assert file.read().decode() == f"{effect.name} {effect.turn} is paid back"
        assert Artifact.objects.filter(name=f"${effect.name}.undo.json", **unit).exists()
    assert Artifact.objects.filter(name="receipt").count() == 2
    assert (effects.count(), Artifact.objects.count()) == (4, 10)


def test_what_is_said_not_to_be_undone_is_undone_without_a_question(shop: Shop) -> None:
    task = fail_at_close(shop, undone=1)
    rest = Effect.objects.get(name="rest")
    held = claim(shop.flow)
    begin_undo(held, rest.pk)
    operators.retry_task(task.pk, actor=ANN)
    mark_effect(task.pk, rest.pk, to="done", actor=ANN)
    assert work(shop, task, 2).status == "failed"
    assert (shop.asked, shop.list_undone()) == ([], ["parcel", "rest", "deposit"])
