"""What an agent spends: reserved before each request, settled after, refused in time."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from ledger.agents import agent_step
from ledger.conf import format_money
from ledger.models import Event, Reservation, Spend, StepOutput, Task
from ledger.testing import run
from ledger.workflows import Limits, Workflow
from tests.agents.kit import make_agent, make_flow
from tests.agents.model_server import Fault, ModelServer, Reply, count_answers

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]


def add(n: int) -> int:
    """Add."""
    return n


def count_to(last: int, *faults: Fault) -> Any:
    """A model that fails first and then counts."""
    left = list(faults)

    def answer(body: dict[str, Any]) -> Reply | Fault:
        turn = count_answers(body)
        if left:
            return left.pop(0)
        return Reply(calls=[("add", {"n": turn})]) if turn < last else Reply("done")

    return answer


def list_reserved() -> list[str]:
    return list(Reservation.objects.order_by("pk").values_list("state", flat=True))


def test_each_request_is_reserved_then_settled_with_what_it_cost() -> None:
    with ModelServer(count_to(2)) as server:
        ended = run(make_flow(make_agent(server, add)))
    # 100 tokens at 0.15 and 20 at 0.60 for a million, three times
    assert ended.task["used"] == {
        "units": 3, "tokens_in": 300, "tokens_out": 60, "cost": "0.000081"
    }  # fmt: skip
    assert list_reserved() == ["settled"] * 3
    assert Reservation.objects.filter(tokens__gt=4096, cost__gt=0).count() == 3
    assert Spend.objects.first().note == "gpt-4o-mini req-1"
    assert set(StepOutput.objects.values_list("tokens", "cost")) == {(120, 27_000)}


def test_a_request_that_would_pass_the_limit_is_not_made() -> None:
    with ModelServer(count_to(2)) as server:
        ended = run(make_flow(make_agent(server, add), limits=Limits(tokens=4_500)))
        assert (ended.status, ended.reason) == ("dead", "limit_tokens")
        assert len(server.calls) == 1
    assert list_reserved() == ["settled"]


def test_a_busy_provider_is_asked_again_when_it_says_and_costs_no_attempt() -> None:
    faults = [
        Fault(429, {"retry-after": "17"}),
        Fault(429, {"x-ratelimit-reset-tokens": "1m30s", "x-ratelimit-reset-requests": "2s"}),
        Fault(503, message="overloaded"),
        Fault(529),
    ]
    with ModelServer(count_to(1, *faults)) as server:
        ended = run(make_flow(make_agent(server, add)))
        assert len(server.calls) == 6
    assert (ended.status, ended.task["used"]["tokens_in"]) == ("completed", 200)
    released = [one for one in ended.events if one["kind"] == "released"]
    delays = [one["data"].get("delay") for one in released]
    assert delays[:2] == [17.0, 90.0], released
    assert len(released) == 4
    assert "attempt_failed" not in ended.kinds
    assert list_reserved() == ["released"] * 4 + ["settled"] * 2


def test_a_failing_provider_is_a_failed_attempt_and_what_a_cut_answer_cost_goes_on_counting() -> (
    None
):
    with ModelServer(count_to(0, Fault(500), Fault(cut=True))) as server:
        ended = run(make_flow(make_agent(server, add)))
        assert len(server.calls) == 3
    assert (ended.status, ended.kinds.count("attempt_failed")) == ("completed", 2)
    assert list_reserved() == ["released", "open", "settled"]
    task = Task.objects.get()
    assert (task.reserved_tokens, task.reserved_cost) != (0, 0)


def test_a_provider_that_stays_away_ends_in_a_named_reason() -> None:
    with ModelServer(lambda body: Fault(500)) as server:
        ended = run(make_flow(make_agent(server, add)))
        assert len(server.calls) == 4
    assert (ended.status, ended.reason) == ("dead", "retries_exhausted")
    assert Event.objects.filter(kind="attempt_failed").count() == 4


def test_a_model_that_nobody_has_a_price_for_is_refused_before_it_is_asked(settings: Any) -> None:
    with ModelServer(count_to(0)) as server:
        ended = run(make_flow(make_agent(server, add, model="our-own-7b")))
        assert (ended.status, server.calls) == ("failed", [])
        assert "LONGWATCH_PRICES" in ended.task["error"]["message"]
        counted = run(make_flow(make_agent(server, add, model="our-own-7b"), unpriced="count"))
        assert counted.task["used"]["tokens_in"] == 100
        assert counted.task["used"]["cost"] == "0.00"
        settings.LONGWATCH_PRICES = {"our-own-7b": {"input": "10", "output": "20.5"}}
        priced = run(make_flow(make_agent(server, add, model="our-own-7b")))
        assert priced.task["used"]["cost"] == format_money(1_410_000)


def test_own_prices_go_before_all_others_and_a_wrong_line_says_what_is_wrong(
    settings: Any,
) -> None:
    settings.LONGWATCH_PRICES = {"openai:gpt-4o-mini": {"input": "1000", "output": "0"}}
    with ModelServer(count_to(0)) as server:
        assert run(make_flow(make_agent(server, add))).task["used"]["cost"] == "0.10"
        for wrong in ({"input": "1"}, {"input": 0.1, "output": "1"}, "1"):
            settings.LONGWATCH_PRICES = {"gpt-4o-mini": wrong}
            with pytest.raises(ImproperlyConfigured, match="LONGWATCH_PRICES: "):
                make_flow(make_agent(server, add))


def test_slow_tokens_end_at_the_units_deadline_and_what_they_cost_goes_on_counting() -> None:
    speeds = iter([0.2])
    with ModelServer(lambda body: Reply("done", slow=next(speeds, 0.001))) as server:
        flow = Workflow("slow")
        flow.step(agent_step(make_agent(server), goal="Wait."), name="look", timeout=1.0)
        ended = run(flow)
        assert len(server.calls) == 2
    assert (ended.status, ended.kinds.count("attempt_failed")) == ("completed", 1)
    assert "UnitTimeout" in str(ended.events)
    assert list_reserved() == ["open", "settled"]
