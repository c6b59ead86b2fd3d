"""One budget for a task and its children, whatever of them runs at once."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from ledger import clock, limits, sweeper
from ledger.conf import parse_money
from ledger.errors import LimitReached
from ledger.models import Reservation, Spend, Task
from ledger.runner import Engine, run_attempt
from ledger.sql import Claimed
from ledger.testing import run
from ledger.transitions import approvals, budgets, operators, sweeps
from ledger.workflows import Child, Spawn, Workflow, registered
from tests.factories import (
    LEASE,
    OPERATOR,
    OWNER,
    ask,
    attempt,
    claim,
    make_workflow,
    spawn,
    submit,
)
from tests.ledger.threads import MOST, Crew

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]
flow = make_workflow("family")
LATER = 11.0
"""Longer than a child that waits for room waits until it looks again."""


def make_family(count: int, cost: str = "100", claimed: int | None = None) -> list[Claimed]:
    """Claimed children of a task with so much money."""
    submit(flow, limits_given={"cost": cost})
    spawn(claim(flow), flow, count)
    return [claim(flow, f"host:{number}:boot") for number in range(claimed or count)]


def read_parent() -> Task:
    return Task.objects.get(parent=None)


def spend_at_once(held: list[Claimed], cost: str, reserve: bool) -> list[str]:
    """Every child makes a call of that cost at the same instant; what came of each."""

    def call(one: Claimed) -> str:
        try:
            key = limits.reserve_amount(one, key="call", cost=cost) if reserve else ""
        except LimitReached as error:
            return f"refused by {error.owner}"
        try:
            limits.record_spend(one, key="paid", cost=cost, reservation=key)
        except LimitReached:
            return "paid, no more"
        return "paid"

    crew = Crew()
    try:
        told: list[str] = crew(*[functools.partial(call, one) for one in held])
        return told
    finally:
        crew.close()


@pytest.mark.case(56)
def test_reserved_calls_of_many_children_at_once_never_pass_the_budget() -> None:
    with registered(flow):
        held = make_family(MOST)
    told = spend_at_once(held, "30", reserve=True)
    parent = read_parent()
    assert sorted(told) == ["paid"] * 3 + [f"refused by {parent.pk}"] * (MOST - 3)
    assert (parent.used_cost, parent.reserved_cost) == (parse_money("90"), 0)
    assert sum(s.cost for s in Spend.objects.filter(task=parent)) == parse_money("90")


@pytest.mark.case(56)
def test_without_reservations_the_budget_is_passed_by_what_is_in_flight_and_no_step_starts() -> (
    None
):
    with registered(flow):
        held = make_family(6, claimed=5)
        told = spend_at_once(held, "30", reserve=False)
        assert sorted(told) == ["paid"] * 3 + ["paid, no more"] * 2
        assert read_parent().used_cost == parse_money("150")  # one call each, and never more
        last = claim(flow, "host:9:boot")
        assert run_attempt(Engine("host:9:boot"), last) is None
    child = Task.objects.get(pk=last.task_id)
    assert (child.status, child.status_reason) == ("waiting", "budget")
    assert child.used_units == 0


def make_tree(calls: list[str], asks: bool = False, count: int = 3) -> Workflow:
    """A task with children that pay the calls, each reserved in its own unit's call."""
    child = Workflow("child-of-tree", self_approval=True)
    tree = Workflow("tree", on_limit="ask" if asks else "dead", self_approval=True)

    @child.step
    def pay(ctx: Any) -> Any:
        for number, cost in enumerate(calls):
            with ctx.reserve(cost=cost, key=f"call-{number}") as held:
                held.settle(cost=cost)

    @tree.step
    def plan(ctx: Any) -> Any:
        return Spawn([Child(child) for _ in range(count)])

    @tree.step
    def sum_up(ctx: Any) -> Any:
        return {"done": len(ctx.children)}

    tree.child = child  # type: ignore[attr-defined]
    return tree


def run_tree(tree: Workflow, cost: str, **options: Any) -> Any:
    with registered(tree.child):  # type: ignore[attr-defined]
        return run(tree, limits_given={"cost": cost}, **options)


@pytest.mark.case(56)
@pytest.mark.parametrize("cost", ["0", "5.00", "8.99"])
def test_children_stop_in_a_named_state_and_go_on_after_a_raise(cost: str) -> None:
    """Three children, three parts each, 9.00 in all; also with no budget at all."""
    ended = run_tree(make_tree(["1.00", "0.50", "1.50"]), cost)
    assert (ended.status, ended.reason) == ("dead", "limit_cost")
    used = parse_money(ended.task["used"]["cost"])
    assert used <= parse_money(cost)
    stopped = Task.objects.filter(parent=ended.id).exclude(status="completed")
    assert {(one.status, one.status_reason) for one in stopped} == {("waiting", "budget")}
    more = {"decision": "approve", "values": {"cost": "9.50"}}
    ended = run_tree(make_tree(["1.00", "0.50", "1.50"], asks=True), cost, answers={"limit": more})
    assert (ended.status, ended.result) == ("completed", {"done": 3})
    assert (ended.task["used"]["cost"], ended.task["reserved"]["cost"]) == ("9.00", "0.00")
    assert not Reservation.objects.filter(state="open").exists()


def test_a_family_within_its_budget_notices_nothing() -> None:
    ended = run_tree(make_tree(["1.00", "2.00"]), "9.50")
    assert (ended.status, ended.task["used"]["cost"]) == ("completed", "9.00")
    assert "waiting" in ended.kinds  # for its children
    assert not Task.objects.filter(events__data__reason="budget").exists()


@pytest.mark.case(56)
def test_a_budget_that_is_cut_while_children_run_stops_them_at_their_next_call() -> None:
    with registered(flow):
        held = make_family(2)
        limits.record_spend(held[0], key="one", cost="30")
        operators.extend_limits(read_parent().pk, limits_given={"cost": "20"}, actor=OPERATOR)
        with pytest.raises(LimitReached) as caught:
            limits.reserve_amount(held[1], key="two", cost="1")
        assert caught.value.owner == str(read_parent().pk)
        assert run_attempt(Engine(held[1].owner), held[1]) is None  # nor does a step start
        child = Task.objects.get(pk=held[1].task_id)
        assert (child.status_reason, child.attempts) == ("budget", 0)
        sweeper.sweep()
        assert (read_parent().status, read_parent().status_reason) == ("dead", "limit_cost")
        operators.extend_limits(read_parent().pk, limits_given={"cost": "99"}, actor=OPERATOR)
        assert read_parent().status_reason == "children"
        clock.offset += LATER
        sweeper.sweep()
    child.refresh_from_db()
    assert (child.status, child.step_name, child.turn) == ("queued", held[1].step_name, 0)


@pytest.mark.case(56)
def test_an_answer_that_comes_when_the_budget_is_gone_starts_no_step() -> None:
    with registered(flow):
        asking, spender = make_family(2)
        request = ask(asking, flow)
        with pytest.raises(LimitReached):
            limits.record_spend(spender, key="all", cost="101")
        approvals.decide_approval(
            request.pk, decision="approve", actor=OPERATOR, digest=request.digest
        )
        again = claim(flow, OWNER)
        assert again.task_id == asking.task_id
        assert run_attempt(Engine(OWNER), again) is None
    child = Task.objects.get(pk=asking.task_id)
    assert (child.status_reason, child.step_name, child.used_units) == ("budget", "b", 1)
    assert child.answer is not None  # it is still there when the task goes on


@pytest.mark.parametrize("caller", ["grandchild", "lost"])
def test_no_budget_is_over_while_a_call_of_anybody_below_may_cost_less(caller: str) -> None:
    """Of a grandchild, or of a worker that was lost in it: its next attempt takes the call over."""
    with registered(flow):
        first, second = make_family(2)
        if caller == "grandchild":
            spawn(first, flow, 1)
            first = claim(flow, first.owner)
        limits.reserve_amount(first, key="dear", cost="80")
        with pytest.raises(LimitReached) as caught:
            limits.reserve_amount(second, key="x", cost="40")
        budgets.await_budget(second, attempt(), caught.value)
        if caller == "lost":
            Task.objects.filter(pk=first.task_id).update(lease_until=clock.now(-1))
            assert sweeps.reclaim_task(first.task_id, LEASE) == "queued"
        assert not budgets.go_on_with_budget(second.task_id)
        assert read_parent().status_reason == "children"
        limits.record_spend(first, key="paid", cost="10", reservation="dear")
        clock.offset += LATER
        assert budgets.go_on_with_budget(second.task_id)


def test_a_child_that_waits_for_calls_under_way_goes_on_when_they_cost_less() -> None:
    with registered(flow):
        first, second = make_family(2)
        limits.reserve_amount(first, key="dear", cost="80")
        limits.record_spend(second, key="before", cost="1")
        step = Workflow("family", flow.version)
        for name in "abc":
            step.step(lambda ctx: ctx.reserve(cost="40", key="x") and None, name=name)
    with registered(step):
        assert run_attempt(Engine(second.owner), second) is None
        child = Task.objects.get(pk=second.task_id)
        assert (child.status_reason, child.waits["cost"]) == ("budget", parse_money("40"))  # type: ignore[index]
        sweeper.sweep()
        assert read_parent().status_reason == "children"  # somebody is still calling
        limits.record_spend(first, key="paid", cost="10", reservation="dear")
        clock.offset += LATER
        sweeper.sweep()
    child.refresh_from_db()
    assert child.status == "queued"


def make_asking() -> Workflow:
    """The workflow of `make_family`, whose step reserves 40."""
    step = Workflow("family", flow.version)
    for name in "abc":
        step.step(lambda ctx: ctx.reserve(cost="40", key="x") and None, name=name)
    return step


def set_priority(held: Claimed, priority: int) -> None:
    Task.objects.filter(pk=held.task_id).update(priority=priority)


@pytest.mark.case(59)
@pytest.mark.parametrize("priority", [1, 0])
def test_no_call_of_the_less_urgent_begins_while_a_more_urgent_child_waits_for_room(
    priority: int,
) -> None:
    """What was held when it came is all that it waits for; of the same priority nobody is first."""
    with registered(flow):
        low, high, other = make_family(3)
        set_priority(high, priority)
        limits.reserve_amount(low, key="dear", cost="80")
    with registered(make_asking()):
        assert run_attempt(Engine(high.owner), high) is None  # it waits
        limits.record_spend(low, key="paid", cost="10", reservation="dear")
        if not priority:
            assert limits.reserve_amount(low, key="next", cost="80")
            return
        for one in (low, other):
            with pytest.raises(LimitReached, match="more urgent") as refused:
                limits.reserve_amount(one, key="next", cost="1")
            assert refused.value.owner == str(read_parent().pk)
        assert run_attempt(Engine(other.owner), other) is None
        sweeper.sweep()  # at once, for what was given back made it look
        waiting = {row.pk: row.status_reason for row in Task.objects.filter(status="waiting")}
        assert waiting == {read_parent().pk: "children", other.task_id: "budget"}
        again = claim(flow, high.owner)
        assert again.task_id == high.task_id
        assert run_attempt(Engine(again.owner), again) is not None  # it has its 40
        clock.offset += LATER
        sweeper.sweep()
    assert Task.objects.get(pk=other.task_id).status == "queued"


@pytest.mark.case(59)
def test_a_call_that_no_waiting_makes_room_for_keeps_nobody_from_theirs() -> None:
    with registered(flow):
        low, high = make_family(2, "50")
        set_priority(high, 1)
        limits.reserve_amount(low, key="dear", cost="20")
    with registered(make_asking()):
        assert run_attempt(Engine(high.owner), high) is None
        with pytest.raises(LimitReached, match="more urgent"):  # its 40 would fit into 50
            limits.reserve_amount(low, key="next", cost="5")
        limits.record_spend(low, key="paid", cost="20", reservation="dear")
        assert limits.reserve_amount(low, key="next", cost="5")


@pytest.mark.case(59)
def test_a_raise_is_there_for_the_most_urgent_first() -> None:
    with registered(flow):
        low, high = make_family(2, "10")
        set_priority(high, 50)
    with registered(make_asking()):
        for held in (low, high):
            assert run_attempt(Engine(held.owner), held) is None
        Task.objects.filter(parent=None).update(limit_cost=parse_money("45"))
        assert not budgets.go_on_with_budget(low.task_id)
        assert budgets.go_on_with_budget(high.task_id)
        clock.offset += LATER
        assert budgets.go_on_with_budget(low.task_id)


def test_grandchildren_share_the_budget_of_the_whole_line() -> None:
    with registered(flow):
        (middle,) = make_family(1, "10")
        spawn(middle, flow, 1)
        leaf = claim(flow)
    limits.reserve_amount(leaf, key="call", cost="4")
    line = [leaf.task_id, middle.task_id, read_parent().pk]
    reserved = {t.pk: t.reserved_cost for t in Task.objects.all()}
    assert [reserved[key] for key in line] == [parse_money("4")] * 3
    limits.record_spend(leaf, key="paid", cost="3", reservation="call")
    assert {t.used_cost for t in Task.objects.all()} == {parse_money("3")}
    with pytest.raises(LimitReached):
        limits.reserve_amount(leaf, key="next", cost="8")


def test_a_cancel_ends_a_child_that_waits_for_money() -> None:
    with registered(flow):
        held = make_family(2)
        with pytest.raises(LimitReached):
            limits.record_spend(held[0], key="all", cost="101")
        assert run_attempt(Engine(held[1].owner), held[1]) is None
        operators.cancel_task(read_parent().pk, actor=OPERATOR)
        sweeper.sweep()
    assert Task.objects.get(pk=held[1].task_id).status == "cancelled"
