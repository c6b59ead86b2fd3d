"""Compensations: what a task did outside is undone before it fails or is cancelled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ledger import clock, queries, states
from ledger.errors import Compensating, EffectConflict, LeaseLost, UnknownCompensation, WrongStatus
from ledger.models import Effect, Task
from ledger.sweeper import sweep
from ledger.testing import run
from ledger.transitions import children, edits, forks, holder, operators, sweeps
from ledger.transitions.effects import begin_undo, compensate_task, finish_undo, mark_effect
from ledger.transitions.endings import settle_undo
from ledger.workflows import Fail, RetryLater, registered
from tests.factories import LEASE, attempt, make_unit, submit
from tests.factories import make_workflow as make_plain
from tests.held import claim, make_context
from tests.shop import ANN, Shop, act_in, fail_after, list_states, work

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def own_places(settings: Any, tmp_path: Path) -> None:
    settings.LONGWATCH_VAR = str(tmp_path / "var")
    settings.LONGWATCH_ARTIFACTS = str(tmp_path / "artifacts")


@pytest.fixture
def shop() -> Shop:
    return Shop()


def test_before_it_fails_a_task_undoes_its_effects_the_last_one_first(shop: Shop) -> None:
    ended = run(shop.flow)
    assert (ended.status, ended.reason) == ("failed", "workflow_failed")
    assert ended.task["error"]["message"] == "out of stock"
    assert ended.task["ending"] is None
    assert shop.list_undone() == ["parcel", "rest", "deposit"]
    assert list_states(ended.id) == {
        "deposit": "compensated", "rest": "compensated", "tell": "done", "parcel": "compensated"
    }  # fmt: skip
    deposit = shop.undone[-1]
    assert (deposit.args, deposit.result, deposit.known) == ({"cents": 5}, "number 1", True)
    assert (deposit.key, deposit.undo_key) == (shop.done[0], f"{shop.done[0]}:undo")
    assert ended.kinds[-5:] == ["compensating", *["compensated"] * 3, "failed"]
    assert ended.events[-5]["data"]["then"] == "failed"
    assert ended.events[-1]["data"]["compensated"] == 3
    shown = queries.list_effects(ended.id).items[0]["compensation"]
    assert (shown["name"], shown["state"], shown["tries"]) == ("refund", "done", 1)
    assert shown["result"] == {"refunded": "number 1"}
    assert queries.list_effects(ended.id).items[-1]["compensation"]["result"].endswith("0:0:note")
    assert ended.task["used"]["cost"] == "0.02"


@pytest.mark.parametrize("end", [None, ValueError("a bug")], ids=["completed", "dead"])
def test_what_completes_or_dies_undoes_nothing(shop: Shop, end: Any) -> None:
    shop.end = end
    assert run(shop.flow).status == ("completed" if end is None else "dead")
    assert shop.undone == []


# --- One compensation ---


def test_each_compensation_is_a_unit_of_its_own(shop: Shop) -> None:
    task = fail_after(shop, "a", "b")
    fence = task.fence
    held = claim(shop.flow)
    assert queries.show_task(task.pk)["status_reason"] == "compensating"
    assert queries.show_task(task.pk)["ending"] == {"status": "failed", "reason": "workflow_failed"}
    holder.release_task(held, why="drain")
    task = work(shop, task)
    assert (task.status, task.status_reason, task.fence) == ("queued", "compensating", fence + 2)
    assert shop.list_undone() == ["b"]
    task = work(shop, task)
    assert (task.status, shop.list_undone()) == ("failed", ["b", "a"])
    assert task.error == attempt().error


def test_no_limit_stops_a_compensation(shop: Shop) -> None:
    """Not its units, its money, its time nor its deadline."""
    bounds = {"units": 1, "cost": "0.005", "wall": 100, "deadline_at": "2027-01-01T00:00:00Z"}
    task = fail_after(shop, "a", "b", limits_given=bounds)
    clock.offset += 900 * 86_400
    assert sweep().enforced == 0
    assert sweeps.enforce_limit(task.pk) is False
    Task.objects.filter(pk=task.pk).update(used_units=1)
    assert work(shop, task, 2).status == "failed"
    assert task.used_cost > task.limit_cost


def test_what_nobody_knows_is_undone_as_unknown(shop: Shop) -> None:
    ctx = act_in(shop)
    with pytest.raises(OSError, match="lost"):
        ctx.once("a", lambda: 1 / 0 if shop.done else fail_with(OSError("lost")),
                 compensate="refund")  # fmt: skip
    holder.fail_task(ctx._claimed, attempt())
    work(shop, Task.objects.get(pk=ctx.task_id))
    assert [(one.known, one.result) for one in shop.undone] == [(False, None)]
    assert list_states(ctx.task_id) == {"a": "compensated"}


def fail_with(error: BaseException) -> None:
    raise error


def test_what_was_not_done_is_not_undone(shop: Shop) -> None:
    ctx = act_in(shop, "a")
    Effect.objects.update(status="intent", done_at=None)
    operators.retry_task(ctx.task_id, actor=ANN)
    mark_effect(ctx.task_id, Effect.objects.get().pk, to="not_done", actor=ANN)
    operators.cancel_task(ctx.task_id, actor=ANN)
    assert Task.objects.get().status == "cancelled"


def test_a_failed_compensation_backs_off_and_is_tried_again(shop: Shop) -> None:
    shop.accidents = [OSError("the bank is closed")]
    task = fail_after(shop, "a", limits_given={"units": 1})
    Task.objects.update(used_units=1)  # which is no reason to give up now
    task = work(shop, task)
    assert (task.status, task.status_reason, task.attempts) == ("scheduled", "backoff", 1)
    assert (task.error["type"], task.error["step"]) == ("OSError", "pay")
    clock.offset += 400
    sweep()
    task.refresh_from_db()
    assert (task.status, task.status_reason) == ("queued", "compensating")
    work(shop, task)
    assert (task.status, task.error) == ("failed", attempt().error)
    assert shop.asked == [shop.undone[0].undo_key]
    assert Effect.objects.get().undo_tries == 2


@pytest.mark.parametrize("error", [OSError("closed"), Fail("no refunds")], ids=["retries", "fail"])
def test_one_that_fails_for_good_is_dead_with_its_effect_open(shop: Shop, error: Any) -> None:
    """And a person says that it is undone, after which the task ends as it was to."""
    shop.accidents = [error] * 2
    task = work(shop, fail_after(shop, "a", "b"))
    if not isinstance(error, Fail):
        operators.retry_task(task.pk, actor=ANN)
        work(shop, task)
    assert (task.status, task.status_reason) == ("dead", "compensation_failed")
    assert task.error["message"] in {"closed", "no refunds"}
    assert list_states(task.pk) == {"a": "done", "b": "done"}
    assert queries.list_effects(task.pk).items[1]["compensation"]["state"] == "unknown"
    mark_effect(task.pk, Effect.objects.get(name="b").pk, to="compensated", actor=ANN)
    operators.retry_task(task.pk, actor=ANN)
    task.refresh_from_db()
    assert (task.status, task.status_reason, task.attempts) == ("queued", "compensating", 0)
    shop.accidents = []
    work(shop, task)
    assert (task.status, task.error, shop.list_undone()[-1]) == ("failed", attempt().error, "a")


def test_a_compensation_may_ask_for_another_time(shop: Shop) -> None:
    shop.accidents = [RetryLater(30, "at night")]
    task = work(shop, fail_after(shop, "a"))
    assert (task.status, task.status_reason, task.attempts) == ("scheduled", "released", 0)


def test_what_is_named_is_there_before_anything_is_done(shop: Shop) -> None:
    ctx = act_in(shop)
    for unknown in ("undo", shop.act):
        with pytest.raises(UnknownCompensation, match="which has refund, call-back; register it"):
            ctx.once("a", shop.act, compensate=unknown)
    assert (shop.done, Effect.objects.count()) == ([], 0)
    with pytest.raises(ValueError, match="takes \\(ctx, effect\\)"):
        shop.flow.compensation(lambda ctx: None, name="x")
    with pytest.raises(ValueError, match="two compensations named refund"):
        shop.flow.compensation(lambda ctx, effect: None, name="refund")
    with pytest.raises(ValueError, match="is no name of a compensation"):
        shop.flow.compensation(lambda ctx, effect: None)


def test_a_compensation_is_part_of_the_digest(shop: Shop) -> None:
    before = shop.flow.digest()
    shop.flow.compensation(lambda ctx, effect: None, name="more")
    assert shop.flow.digest() != before


def test_one_whose_code_is_gone_waits_for_a_person(shop: Shop) -> None:
    task = fail_after(shop, "a")
    refund = shop.flow.compensations.pop("refund")
    work(shop, task)
    assert (task.status, task.status_reason) == ("paused", "version_misfit")
    assert "'refund' is no compensation of the workflow shop" in task.error["message"]
    shop.flow.compensations["refund"] = refund
    operators.resume_task(task.pk, actor=ANN)
    assert work(shop, task).status == "failed"


# --- Lost workers ---


def test_a_lost_compensation_is_asked_about_and_called_again(shop: Shop) -> None:
    task = fail_after(shop, "a")
    held = claim(shop.flow)
    begin_undo(held, Effect.objects.get().pk)
    clock.offset += LEASE + 1
    assert sweeps.reclaim_task(task.pk, LEASE) == "queued"
    task.refresh_from_db()
    assert (task.status_reason, task.reclaims) == ("compensating", 1)
    work(shop, task)
    assert (task.status, len(shop.asked), len(shop.undone)) == ("failed", 1, 1)


def test_what_was_undone_before_the_worker_was_lost_is_not_undone_again(shop: Shop) -> None:
    task = fail_after(shop, "a")
    held = claim(shop.flow)
    begin_undo(held, Effect.objects.get().pk)
    finish_undo(held, Effect.objects.get().pk, "refunded")
    clock.offset += LEASE + 1
    assert sweeps.reclaim_task(task.pk, LEASE) == "queued"
    assert (work(shop, task).status, shop.undone, shop.asked) == ("failed", [], [])


def test_a_stale_holder_tells_what_it_undid_and_moves_nothing(shop: Shop) -> None:
    task = fail_after(shop, "a")
    held, pk = claim(shop.flow), Effect.objects.get().pk
    with pytest.raises(LeaseLost):
        finish_undo(held, pk, "never begun")
    begin_undo(held, pk)
    with pytest.raises(EffectConflict, match="is being undone by a worker now"):
        mark_effect(task.pk, pk, to="compensated", actor=ANN)
    operators.retry_task(task.pk, actor=ANN)
    finish_undo(held, pk, "the first")
    finish_undo(held, pk, "the second")
    with pytest.raises(LeaseLost):
        settle_undo(held)
    effect = Effect.objects.get()
    assert (effect.status, effect.undo_result) == ("compensated", "the first")
    task.refresh_from_db()
    assert task.status == "queued"
    assert work(shop, task).status == "failed"
    assert shop.undone == []


# --- What people and parents do ---


def test_a_cancelled_task_compensates_first(shop: Shop) -> None:
    ctx = act_in(shop, "a")
    operators.cancel_task(ctx.task_id, actor=ANN, reason="wrong address")
    unit = make_unit(ctx._claimed, shop.flow)
    holder.settle_unit(ctx._claimed, unit)
    task = Task.objects.get()
    assert (task.status, task.cancel_requested) == ("queued", False)
    revision = task.revision
    operators.cancel_task(task.pk, actor=ANN)  # it will be
    assert Task.objects.get().revision == revision
    assert work(shop, task).status == "cancelled"
    assert task.status_reason == "cancelled_by_operator"
    last = queries.list_events(task.pk).items[-1]
    assert (last["kind"], last["actor"]["kind"]) == ("cancelled", "user")


def test_a_cancel_has_nothing_to_do_where_a_task_compensates_to_fail(shop: Shop) -> None:
    task = fail_after(shop, "a")
    for act in (operators.cancel_task, operators.stop_task):
        with pytest.raises((Compensating, WrongStatus)):
            act(task.pk, actor=ANN)
    claim(shop.flow)
    for act in (operators.cancel_task, operators.stop_task):
        with pytest.raises(Compensating, match="is undoing its effects and then fails"):
            act(task.pk, actor=ANN)
    task.refresh_from_db()
    with pytest.raises(Compensating):
        edits.edit_task(task.pk, changes={"status": "cancelled"}, actor=ANN, reason="x",
                        revision=task.revision)  # fmt: skip
    edits.edit_task(task.pk, changes={"title": "x"}, actor=ANN, reason="x", revision=task.revision)
    task.refresh_from_db()
    assert (task.status, task.status_reason) == ("queued", "compensating")
    assert work(shop, task).status == "failed"


def test_it_can_be_paused(shop: Shop) -> None:
    task = fail_after(shop, "a", "b")
    held = claim(shop.flow)
    operators.pause_task(task.pk, actor=ANN)
    for effect in Effect.objects.filter(name="b"):
        begin_undo(held, effect.pk)
        finish_undo(held, effect.pk, None)
    settle_undo(held)
    task.refresh_from_db()
    assert (task.status, task.ending["status"]) == ("paused", "failed")
    operators.resume_task(task.pk, actor=ANN)
    assert work(shop, task).status == "failed"


def test_a_restart_ends_it_and_does_what_is_undone_anew(shop: Shop) -> None:
    task = work(shop, fail_after(shop, "a", "b"))
    with registered(shop.flow):
        operators.restart_task(task.pk, to_step="pay", note="", actor=ANN)
    task.refresh_from_db()
    assert (task.ending, task.status_reason) == (None, "")
    assert list_states(task.pk) == {"a": "done", "b": "compensated"}
    ctx = make_context(claim(shop.flow), shop.flow)
    ctx.once("b", shop.act, compensate="refund")
    assert len(set(shop.done)) == 3
    holder.fail_task(ctx._claimed, attempt())
    work(shop, task, 2)
    assert [(one.name, one.round) for one in shop.undone] == [("b", 0), ("b", 1), ("a", 0)]


def test_a_retry_never_goes_on_as_if_it_were_done(shop: Shop) -> None:
    task = work(shop, fail_after(shop, "a"))
    with pytest.raises(WrongStatus, match="Its effect a of pay was undone; restart it from"):
        operators.retry_task(task.pk, actor=ANN)
    with registered(shop.flow):
        operators.restart_task(task.pk, to_step="pay", note="", actor=ANN)
    holder.fail_task(claim(shop.flow), attempt())
    operators.retry_task(task.pk, actor=ANN)  # that of the round before is history
    ctx = make_context(claim(shop.flow), shop.flow)
    ctx.once("b", shop.act, compensate="refund")
    holder.settle_unit(ctx._claimed, make_unit(ctx._claimed, shop.flow))
    holder.fail_task(claim(shop.flow), attempt())
    work(shop, task)
    with pytest.raises(WrongStatus, match="Its effect b of pay was undone; restart it from"):
        operators.retry_task(task.pk, actor=ANN)  # it stands at ship


def test_a_dead_task_compensates_when_a_person_asks_for_it(shop: Shop) -> None:
    ctx = act_in(shop, "a", limits_given={"units": 9})
    with pytest.raises(WrongStatus):
        compensate_task(ctx.task_id, actor=ANN)
    holder.bury_task(ctx._claimed, attempt(), states.LIMIT_UNITS)
    task = Task.objects.get()
    assert (task.status, task.ending) == ("dead", None)
    compensate_task(task.pk, actor=ANN, reason="we give the money back")
    assert work(shop, task).status == "dead"
    assert (task.status_reason, task.error) == ("limit_units", attempt().error)
    with pytest.raises(WrongStatus, match="None of its effects is both open and has"):
        compensate_task(task.pk, actor=ANN)
    with pytest.raises(WrongStatus, match="restart it from pay"):
        operators.extend_limits(task.pk, limits_given={"units": 99}, actor=ANN)


def test_a_child_ends_for_its_parent_after_it_has_compensated(shop: Shop) -> None:
    parent = submit(make_plain("parents"), lane="elsewhere")
    ctx = act_in(shop, "a")
    Task.objects.filter(pk=ctx.task_id).update(parent=parent, parent_seq=1)
    Task.objects.filter(pk=parent.pk).update(children_open=1, cascade_upto=1)
    holder.release_task(ctx._claimed, why="drain")
    sweep()
    child = Task.objects.get(pk=ctx.task_id)
    assert (child.status, child.ending["reason"]) == ("queued", "cancelled_by_parent")
    assert children.cancel_child(child.pk) is False
    sweep()
    parent.refresh_from_db()
    assert (parent.children_open, parent.cascade_upto) == (1, None)
    assert work(shop, child).status_reason == "cancelled_by_parent"
    sweep()
    parent.refresh_from_db()
    assert parent.children_open == 0


def test_a_copy_has_nothing_to_undo(shop: Shop) -> None:
    task = fail_after(shop, "a")
    with registered(shop.flow):
        copy, _ = forks.fork_task(task.pk, from_step="pay", actor=ANN)
    operators.cancel_task(copy.pk, actor=ANN)
    copy.refresh_from_db()
    assert (copy.status, copy.ending) == ("cancelled", None)
