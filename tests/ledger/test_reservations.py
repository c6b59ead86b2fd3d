"""Reserve before a call, settle after it: nothing passes a limit, and money counts once."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from ledger import limits, queries
from ledger.errors import LeaseLost, LimitReached
from ledger.models import Reservation, Spend, StepOutput, Task
from ledger.sql import Claimed
from ledger.testing import LOST, run
from ledger.transitions import sweeps
from ledger.workflows import Workflow
from tests.factories import LEASE, OTHER, claim, expire_lease, make_workflow, submit

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]
flow = make_workflow("paying")


def hold(limit: str = "1.00", tokens: int = 1000) -> Claimed:
    """A claimed task with so much to spend."""
    submit(flow, limits_given={"cost": limit, "tokens": tokens})
    return claim(flow)


def read(held: Claimed) -> tuple[int, int, int, int]:
    """Cost used and reserved, tokens used and reserved."""
    task = Task.objects.get(pk=held.task_id)
    used = task.used_tokens_in + task.used_tokens_out
    return task.used_cost, task.reserved_cost, used, task.reserved_tokens


def test_what_would_pass_the_limit_is_refused_before_the_call() -> None:
    held = hold()
    limits.record_spend(held, key="before", cost="0.30")
    limits.reserve_amount(held, key="one", cost="0.50")
    with pytest.raises(LimitReached) as caught:
        limits.reserve_amount(held, key="two", cost="0.21")
    assert (caught.value.reason, caught.value.least) == ("limit_cost", 1_010_000_000)
    limits.reserve_amount(held, key="three", cost="0.20")  # just fits
    assert read(held) == (300_000_000, 700_000_000, 0, 0)
    with pytest.raises(LimitReached) as caught:
        limits.reserve_amount(held, key="tokens", tokens=1001)
    assert caught.value.reason == "limit_tokens"


def test_a_settled_amount_replaces_what_was_reserved_for_it_once() -> None:
    held = hold()
    key = limits.reserve_amount(held, key="one", cost="0.50", tokens=100)
    for _ in range(2):
        limits.record_spend(held, key="hold:one", cost="0.10", tokens_in=7, reservation=key)
    assert read(held) == (100_000_000, 0, 7, 0)
    assert limits.reserve_amount(held, key="one", cost="0.50") == "one"  # it is paid already
    assert read(held) == (100_000_000, 0, 7, 0)


def test_a_call_that_cost_more_than_reserved_is_recorded_and_may_pass_the_limit() -> None:
    held = hold()
    key = limits.reserve_amount(held, key="one", cost="1.00")
    with pytest.raises(LimitReached):
        limits.record_spend(held, key="late", cost="1.50", reservation=key)
    assert read(held) == (1_500_000_000, 0, 0, 0)


def test_a_released_reservation_leaves_its_room_and_can_be_made_again() -> None:
    held = hold()
    limits.reserve_amount(held, key="one", cost="0.90")
    limits.release_reservation(held, "one")
    limits.release_reservation(held, "one")
    assert read(held) == (0, 0, 0, 0)
    limits.reserve_amount(held, key="one", cost="0.80")
    assert read(held) == (0, 800_000_000, 0, 0)


def test_a_limit_of_nothing_refuses_the_first_call() -> None:
    held = hold("0", tokens=0)
    limits.reserve_amount(held, key="free")
    for amount in ({"cost": "0.000000001"}, {"tokens": 1}):
        with pytest.raises(LimitReached):
            limits.reserve_amount(held, key="any", **amount)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "amount", [{"tokens": -1}, {"tokens": True}, {"cost": "-1"}, {"cost": 0.5}]
)
def test_no_other_amount_can_be_reserved(amount: dict[str, Any]) -> None:
    held = hold()
    with pytest.raises(ValueError, match=r"cost|tokens"):
        limits.reserve_amount(held, key="odd", **amount)
    assert not Reservation.objects.exists()


def lose(held: Claimed) -> Claimed:
    """Its worker is lost, and another one has the task."""
    expire_lease()
    assert sweeps.reclaim_task(held.task_id, LEASE)
    return claim(flow, OTHER)


def test_what_a_lost_attempt_reserved_counts_until_somebody_knows() -> None:
    stale = hold()
    limits.reserve_amount(stale, key="call", cost="0.60")
    fresh = lose(stale)
    with pytest.raises(LimitReached):
        limits.reserve_amount(fresh, key="another", cost="0.50")
    with pytest.raises(LeaseLost):
        limits.reserve_amount(stale, key="more", cost="0.01")
    # The stale holder knows what it cost, and money is money: once.
    assert limits.record_spend(stale, key="hold:call", cost="0.25", reservation="call")
    assert not limits.record_spend(stale, key="hold:call", cost="0.25", reservation="call")
    assert read(fresh) == (250_000_000, 0, 0, 0)
    assert Spend.objects.get().stale


def test_the_next_attempt_takes_over_what_it_reserves_by_the_same_key() -> None:
    stale = hold()
    limits.reserve_amount(stale, key="call", cost="0.60")
    fresh = lose(stale)
    limits.reserve_amount(fresh, key="call", cost="0.60")
    assert read(fresh) == (0, 600_000_000, 0, 0)
    limits.release_reservation(stale, "call")  # it is not the stale one's any more
    assert read(fresh) == (0, 600_000_000, 0, 0)
    limits.record_spend(fresh, key="hold:call", cost="0.40", reservation="call")
    assert read(fresh) == (400_000_000, 0, 0, 0)


def test_an_amount_that_is_on_record_already_frees_the_second_reservation() -> None:
    held = hold()
    for key in ("one", "two"):
        limits.reserve_amount(held, key=key, cost="0.40")
        limits.record_spend(held, key="request-77", cost="0.30", reservation=key)
    assert read(held) == (300_000_000, 0, 0, 0)


def make_caller(step: Any, isolate: bool = False) -> Workflow:
    """A workflow of one step."""
    made = Workflow("caller")
    made.step(step, name="call", isolate=isolate)
    return made


def test_a_step_reserves_calls_and_settles() -> None:
    def call(ctx: Any) -> Any:
        with ctx.reserve(cost="0.40", tokens=50) as held:
            shown = queries.show_task(ctx.task_id)["reserved"]
            held.settle(cost="0.30", tokens_in=9, note="model")
        with ctx.reserve(cost="0.70"):
            pass  # not called after all
        return {"shown": shown}

    ended = run(make_caller(call), limits_given={"cost": "1.00"})
    assert ended.result == {"shown": {"tokens": 50, "cost": "0.40"}}
    assert (ended.task["used"]["cost"], ended.task["used"]["tokens_in"]) == ("0.30", 9)
    assert ended.task["reserved"] == {"tokens": 0, "cost": "0.00"}


def test_a_unit_counts_a_call_once_however_often_it_is_settled() -> None:
    paying = Workflow("twice", self_approval=True)

    @paying.step
    def pay(ctx: Any) -> None:
        for _ in range(2):
            ctx.reserve(cost="0.50", key="call").settle(cost="0.40", tokens_in=7)

    ended = run(paying)
    unit = StepOutput.objects.get(task=ended.id)
    assert (ended.task["used"]["cost"], unit.cost, unit.tokens) == ("0.40", 400_000_000, 7)


def test_a_call_that_raises_may_have_cost_it_all() -> None:
    def call(ctx: Any) -> Any:
        with ctx.reserve(cost="0.40"):
            raise ConnectionError("cut off")

    ended = run(make_caller(call), limits_given={"cost": "1.00"})
    assert (ended.status, ended.reason) == ("dead", "limit_cost")  # two in doubt, no third
    assert (ended.task["used"]["cost"], ended.task["reserved"]["cost"]) == ("0.00", "0.80")


def test_a_lost_worker_is_paid_once_by_the_same_key() -> None:
    def call(ctx: Any) -> Any:
        with ctx.reserve(cost="0.40", key=ctx.idempotency_key("model")) as held:
            held.settle(cost="0.25")

    ended = run(make_caller(call), limits_given={"cost": "0.50"}, faults={"call": [LOST]})
    assert ended.status == "completed"
    assert ended.task["used"]["cost"] == "0.25"
    assert ended.task["reserved"]["cost"] == "0.00"


def test_an_isolated_step_reserves_through_its_worker() -> None:
    from tests import scoped_flows

    ended = run(scoped_flows.paying, limits_given={"cost": "1.00"})
    assert ended.result == {"refused": "limit_cost"}
    assert (ended.task["used"]["cost"], ended.task["reserved"]["cost"]) == ("0.30", "0.00")


def test_a_refused_reservation_asks_for_what_it_needs() -> None:
    def call(ctx: Any) -> Any:
        with ctx.reserve(cost="7.00") as held:
            held.settle(cost="6.50")

    made = make_caller(call)
    made.on_limit = "ask"
    low = {"decision": "approve", "values": {"cost": "6.99"}}
    with pytest.raises(Exception, match=r"at least 7\.00"):
        run(made, limits_given={"cost": "5.00"}, answers={"limit": low})
    enough = {"decision": "approve", "values": {"cost": "7.00"}}
    ended = run(made, limits_given={"cost": "5.00"}, answers={"limit": enough})
    assert (ended.status, ended.task["used"]["cost"]) == ("completed", "6.50")


def test_a_task_without_a_parent_pays_no_statement_for_it() -> None:
    held = hold()
    with CaptureQueriesContext(connection) as asked:
        limits.record_spend(held, key="one", cost="0.10")
    verbs = [query["sql"].split()[0] for query in asked]
    assert [verb for verb in verbs if verb not in {"BEGIN", "COMMIT"}] == [
        "SELECT", "INSERT", "UPDATE",
    ]  # fmt: skip
