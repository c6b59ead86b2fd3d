"""A used-up limit as a question: who is asked, what they see, and what their answer does."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.test import override_settings

from ledger import clock, limits, queries, states, sweeper
from ledger.errors import ApprovalClosed, InvalidInput, LimitReached, NotAllowed
from ledger.events import Actor
from ledger.models import Approval, ApprovalVote, Task
from ledger.testing import EXPIRE, run
from ledger.transitions import approvals, edits, forks, holder, operators, outputs, sweeps
from ledger.workflows import Again, Limits, Sleep, WaitFor, Workflow, registered
from tests.factories import (
    CLIENT,
    OPERATOR,
    ask,
    attempt,
    claim,
    complete,
    make_unit,
    make_workflow,
    submit,
    wait_for,
)

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]
APPROVER = Actor("user", "7")


def find_question(task: Task) -> Approval:
    """The open question about the task's limit."""
    return Approval.objects.get(task=task, status="open", kind="limit")


def answer(request: Approval, decision: str = "approve", **given: Any) -> None:
    """An approver's, with time to undo, which money has not."""
    approvals.decide_approval(request.pk, decision=decision, digest=request.digest,
                              **{"actor": APPROVER, "undo_seconds": 8, **given})  # fmt: skip


def reach_limit(on: str = "units", **options: Any) -> Task:
    """A task that people are asked about, since its second unit found no room."""
    flow = make_workflow(on_limit="ask", **options)
    task = submit(flow, limits_given={"units": 1} if on == "units" else {"cost": "1.00"})
    held = claim(flow)
    if on == "cost":
        with pytest.raises(LimitReached):
            limits.record_spend(held, key="a", cost="1.20")
    holder.settle_unit(held, make_unit(held, flow))
    task.refresh_from_db()
    return task


def count_turns(most: int) -> Workflow:
    """A loop of `most` units of one step, each with money spent, and a last step."""
    flow = Workflow("loop", on_limit="ask", self_approval=True)

    @flow.step
    def turn(ctx: Any) -> Any:
        ctx.spend(cost="0.40", tokens_in=10)
        done = [*ctx.progress.get("done", []), ctx.turn]
        return Again({"done": done}) if len(done) < most else {"done": done}

    @flow.step
    def end(ctx: Any) -> Any:
        return {"turns": ctx.progress["done"]}

    return flow


def test_a_used_up_limit_asks_people_and_holds_no_lease() -> None:
    task = reach_limit("cost")
    assert (task.status, task.status_reason, task.lease_owner) == ("waiting", "approval", "")
    assert (task.step_name, task.turn, task.used_units) == ("b", 0, 1)
    request = find_question(task)
    assert (request.step, request.payload["limit"]) == ("b", "cost")
    assert (request.payload["used"], request.payload["bound"]) == ("1.20", "1.00")
    assert "Used so far: **1.20** cost; the limit is **1.00**" in request.body
    assert queries.show_approval(queries.find_approval(request.pk))["kind"] == "limit"
    last = task.events.order_by("-seq")[0]
    assert (last.kind, last.data["limit"]) == ("approval_requested", "cost")
    assert last.seq == task.event_seq


def test_an_answer_about_a_limit_agrees_to_no_work_so_an_edit_and_a_copy_stay_possible() -> None:
    task = reach_limit()
    answer(find_question(task), values={"units": 5})
    flow = make_workflow(on_limit="ask")
    held = claim(flow)
    holder.settle_unit(held, make_unit(held, flow))
    with registered(flow):
        copy, _ = forks.fork_task(task.pk, from_step="c", input={"other": 1}, actor=OPERATOR)
        assert copy.step_name == "c"
        row = task.outputs.get(step_name="b")
        outputs.edit_output(
            task.pk, seq=row.seq, output={"ok": 2}, actor=OPERATOR, reason="better so"
        )
    task.refresh_from_db()
    assert (task.status, task.step_name) == ("queued", "c")


def test_without_on_limit_the_task_is_dead_by_it() -> None:
    flow = make_workflow()
    task = submit(flow, limits_given={"units": 1})
    held = claim(flow)
    holder.settle_unit(held, make_unit(held, flow))
    task.refresh_from_db()
    assert (task.status, task.status_reason) == ("dead", "limit_units")
    assert not Approval.objects.exists()


@pytest.mark.parametrize("name", ["dad", "", None, True])
def test_a_workflow_says_dead_or_ask_and_nothing_else(name: Any) -> None:
    with pytest.raises(ValueError, match="on_limit"):
        Workflow("wrong", on_limit=name)


def test_an_answer_continues_the_same_unit_under_the_new_limit() -> None:
    task = reach_limit()
    answer(find_question(task), values={"units": 5}, comment="go on")
    task.refresh_from_db()
    assert (task.status, task.step_name, task.turn, task.limit_units) == ("queued", "b", 0, 5)
    assert task.error is None
    assert task.answer is None  # no step takes it for an answer of its own
    changed = task.events.get(kind="limits_changed")
    assert (changed.actor, changed.data["after"]["units"]) == (str(APPROVER), 5)
    assert claim(make_workflow()).step_name == "b"


def test_approving_as_it_is_takes_the_forecast() -> None:
    task = reach_limit("cost")
    request = find_question(task)
    assert request.proposal == {"cost": "3.60"}  # one step of three used 1.20
    assert "1 of 3 steps" in request.payload["basis"]
    answer(request)
    task.refresh_from_db()
    assert (task.status, task.limit_cost) == ("queued", 3_600_000_000)


def test_the_forecast_is_the_median_of_tasks_of_the_workflow_that_completed() -> None:
    flow = make_workflow(steps=1)
    for cost in ("2.00", "9.00", "4.00"):
        task = submit(flow)
        held = claim(flow)
        limits.record_spend(held, key="a", cost=cost)
        complete(held, flow)
    task = reach_limit("cost")
    request = find_question(task)
    assert request.proposal == {"cost": "4.00"}
    assert "median of the 3 tasks" in request.body


def test_without_a_forecast_the_approver_has_to_name_the_limit() -> None:
    flow = make_workflow(on_limit="ask")
    task = submit(flow, limits_given={"units": 1})
    held = claim(flow)
    holder.bury_task(held, attempt(), states.LIMIT_TOKENS)
    request = find_question(task)
    assert request.proposal is None
    assert "No forecast" in request.body
    with pytest.raises(InvalidInput):
        answer(request)
    assert ApprovalVote.objects.count() == 0
    answer(request, values={"tokens": 20_000_000})


def test_nobody_is_asked_about_the_limit_of_a_task_that_was_cancelled_meanwhile() -> None:
    task = submit(flow := make_workflow(on_limit="ask"))
    held = claim(flow)
    operators.cancel_task(task.pk, actor=OPERATOR)
    holder.bury_task(held, attempt(), states.LIMIT_TOKENS)
    task.refresh_from_db()
    assert (task.status, task.status_reason) == ("cancelled", "cancelled_by_operator")
    assert not Approval.objects.exists()


def test_a_limit_that_is_used_up_already_is_refused_and_nothing_is_written() -> None:
    task = reach_limit("cost")
    request = find_question(task)
    for values, field in [({"cost": "1.20"}, "values.cost"), ({"cost": "-1"}, "values.cost"),
                          ({"units": 9}, "values")]:  # fmt: skip
        with pytest.raises(InvalidInput) as caught:
            answer(request, values=values)
        assert caught.value.field.startswith(field)
    fresh = Task.objects.get(pk=task.pk)
    assert (fresh.revision, fresh.event_seq) == (task.revision, task.event_seq)
    assert ApprovalVote.objects.count() == 0


@pytest.mark.parametrize("expire", [True, False])
def test_a_no_or_silence_is_the_end_by_that_limit(expire: bool) -> None:
    task = reach_limit()
    if expire:
        clock.offset += 8 * 86_400
        assert sweeper.sweep().expired == 1
    else:
        answer(find_question(task), "reject", comment="It has cost enough.")
    task.refresh_from_db()
    assert (task.status, task.status_reason) == ("dead", "limit_units")
    assert task.error["type"] == "LimitReached"
    operators.extend_limits(task.pk, limits_given={"units": 9}, actor=OPERATOR)
    task.refresh_from_db()
    assert (task.status, task.step_name) == ("queued", "b")


def test_money_has_no_undo_window() -> None:
    request = find_question(reach_limit("cost"))
    answer(request, undo_seconds=8)
    with pytest.raises(ApprovalClosed):
        approvals.undo_decision(request.pk, actor=APPROVER)


def test_nobody_extends_the_limit_of_what_they_submitted() -> None:
    request = find_question(reach_limit())
    with pytest.raises(NotAllowed):
        answer(request, actor=CLIENT, values={"units": 5})
    operators.cancel_task(request.task_id, actor=OPERATOR)
    request = find_question(reach_limit(self_approval=True))
    answer(request, actor=CLIENT, values={"units": 5})


def test_an_operators_limit_closes_the_question() -> None:
    task = reach_limit()
    request = find_question(task)
    operators.extend_limits(task.pk, limits_given={"tokens": 5}, actor=OPERATOR)
    assert find_question(task).pk == request.pk  # another limit: still open
    operators.extend_limits(task.pk, limits_given={"units": 7}, actor=OPERATOR, reason="it pays")
    task.refresh_from_db()
    request.refresh_from_db()
    assert (task.status, task.step_name, task.limit_units) == ("queued", "b", 7)
    assert (request.status, request.comment) == ("void", "it pays")
    with pytest.raises(ApprovalClosed):
        answer(request, values={"units": 9})


def test_an_admins_raw_limit_closes_the_question_too() -> None:
    task = reach_limit()
    request = find_question(task)
    for changes, status in (
        ({"limit_tokens": 5_000_000}, "waiting"),
        ({"limit_units": 7}, "queued"),
    ):
        task.refresh_from_db()
        edits.edit_task(task.pk, changes=changes, actor=OPERATOR, reason="it pays",
                        revision=task.revision)  # fmt: skip
        fence = task.fence
        task.refresh_from_db()
        assert (task.status, task.fence) == (status, fence + 1)
    request.refresh_from_db()
    assert (request.status, task.step_name, task.limit_units) == ("void", "b", 7)
    assert claim(make_workflow(on_limit="ask")).task_id == task.pk


def test_a_limit_that_is_found_before_a_unit_asks_too() -> None:
    flow = count_turns(3)
    ended = run(flow, limits_given={"units": 0})
    assert (ended.status, ended.reason, ended.units) == ("waiting", "approval", [])
    more = {"decision": "approve", "values": {"units": 9}}
    ended = run(flow, limits_given={"units": 0}, answers={"limit": more})
    assert (ended.status, ended.result) == ("completed", {"turns": [0, 1, 2]})


def test_a_limit_that_a_unit_passes_in_its_middle_asks_and_the_unit_runs_again() -> None:
    more = {"decision": "approve", "values": {"cost": "10.00"}}
    ended = run(count_turns(3), limits_given={"cost": "0.50"}, answers={"limit": more})
    assert (ended.status, ended.result) == ("completed", {"turns": [0, 1, 2]})
    assert ended.units == [("turn", 0), ("turn", 1), ("turn", 2), ("end", 0)]
    assert ended.task["used"]["cost"] == "1.60"  # the unit that passed it is paid twice


def test_each_answer_is_for_one_question() -> None:
    answers = [{"decision": "approve", "values": {"units": n}} for n in (2, 3, 9)]
    ended = run(count_turns(5), limits_given={"units": 1}, answers={"limit": answers})
    assert ended.status == "completed"
    assert ended.kinds.count("approval_requested") == 3
    ended = run(count_turns(5), limits_given={"units": 1}, answers={"limit": EXPIRE})
    assert (ended.status, ended.reason) == ("dead", "limit_units")


def test_a_failed_or_released_unit_asks_with_its_backoff_kept() -> None:
    flow = make_workflow(on_limit="ask")
    task = submit(flow, limits_given={"wall": 50})
    held = claim(flow)
    clock.offset += 51
    holder.record_failure(held, attempt(), retries=3, backoff=900)
    answer(find_question(task), values={"wall": 9000})
    task.refresh_from_db()
    assert (task.status, task.status_reason, task.attempts) == ("scheduled", "backoff", 1)
    assert task.available_at > clock.read() + dt.timedelta(seconds=800)
    assert task.wall_until is not None


def test_a_sleep_goes_on_sleeping_after_the_answer() -> None:
    flow = make_workflow(on_limit="ask")
    task = submit(flow, limits_given={"units": 1})
    held = claim(flow)
    holder.settle_unit(held, make_unit(held, flow), delay=3600)
    answer(find_question(task), values={"units": 9})
    task.refresh_from_db()
    assert (task.status, task.status_reason, task.step_name) == ("scheduled", "sleep", "b")


def miss_deadline(status: str) -> Task:
    """A task in `status` whose deadline passes."""
    flow = make_workflow(on_limit="ask")
    task = submit(flow, limits_given={"deadline_at": clock.read() + dt.timedelta(seconds=30)})
    if status == "paused":
        operators.pause_task(task.pk, actor=OPERATOR)
    if status == "signal":
        wait_for(claim(flow), flow, timeout=500)
    if status == "approval":
        ask(claim(flow), flow)
    clock.offset += 31
    sweeper.sweep()
    return task


@pytest.mark.parametrize("status", ["queued", "paused", "signal"])
def test_a_deadline_that_a_sweep_finds_asks_and_the_task_goes_back_to_where_it_was(
    status: str,
) -> None:
    task = miss_deadline(status)
    assert sweeper.sweep().enforced == 0  # asked once
    later = (clock.read() + dt.timedelta(days=1)).isoformat()
    answer(find_question(task), values={"deadline_at": later})
    task.refresh_from_db()
    back = task.status_reason or task.status
    assert back == {"paused": "paused_by_operator"}.get(status, status)


def test_one_question_at_a_time_so_a_deadline_waits_for_a_steps_answer() -> None:
    task = miss_deadline("approval")
    assert not sweeps.enforce_limit(task.pk)
    request = Approval.objects.get(task=task, status="open")
    assert request.kind == "question"
    answer(request, undo_seconds=0)
    sweeper.sweep()
    task.refresh_from_db()
    assert find_question(task).payload["reason"] == "limit_deadline"
    assert task.answer is not None  # the step's own answer is kept for its next step


def test_a_wall_limit_stands_while_people_think() -> None:
    flow = make_workflow(on_limit="ask")
    task = submit(flow, limits_given={"wall": 100})
    clock.offset += 101
    sweeper.sweep()
    request = find_question(task)
    clock.offset += 5_000
    answer(request, values={"wall": 200})
    task.refresh_from_db()
    left = (task.wall_until - clock.read()).total_seconds()  # type: ignore[operator]
    assert 90 < left < 100


def test_a_cancel_and_a_restart_close_the_question() -> None:
    cancelled, restarted = find_question(reach_limit()), find_question(reach_limit())
    operators.cancel_task(cancelled.task_id, actor=OPERATOR)
    with registered(make_workflow(on_limit="ask")):
        operators.restart_task(restarted.task_id, to_step="a", note="", actor=OPERATOR)
    for request in (cancelled, restarted):
        request.refresh_from_db()
        assert request.status == "void"


@override_settings(LONGWATCH_MAX_RELEASES=0)
def test_only_limits_are_asked_about() -> None:
    flow = make_workflow(on_limit="ask")
    task = submit(flow)
    holder.release_task(claim(flow), why="busy", retries=0)
    task.refresh_from_db()
    assert (task.status, task.status_reason) == ("dead", "retries_exhausted")


def test_a_copy_asks_as_its_original_does() -> None:
    task = reach_limit()
    with registered(make_workflow(on_limit="ask", self_approval=True)):
        copied, _ = forks.fork_task(task.pk, from_step="a", actor=OPERATOR)
    assert (copied.on_limit, copied.self_approval) == ("ask", True)


def test_sleeps_and_signals_are_as_before_around_the_question() -> None:
    flow = Workflow("soft", on_limit="ask", limits=Limits(units=1))
    flow.step(lambda ctx: Sleep(5), name="a")
    flow.step(lambda ctx: WaitFor("go"), name="b")
    flow.step(lambda ctx: {"heard": ctx.signal["data"]}, name="c")
    more = [{"decision": "approve", "values": {"units": units}} for units in (2, 3)]
    ended = run(flow, answers={"limit": more}, signals={"go": 1})
    assert (ended.units, ended.result) == ([("a", 0), ("b", 0), ("c", 0)], {"heard": 1})
