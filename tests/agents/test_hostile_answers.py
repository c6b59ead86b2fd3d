"""Answers that no provider should send: they end no task, get past no rule and lose no result."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Tool as AgentTool

from ledger.agents import allow, deny
from ledger.agents.refusals import read_reset
from ledger.models import Reservation, Spend
from ledger.testing import LOST, run
from tests.agents.kit import list_parts, make_agent, make_flow
from tests.agents.model_server import ModelServer, Reply, count_answers, read_results

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]


def play(answers: list[Reply], *tools: Any, **options: Any) -> tuple[Any, list[str]]:
    """An agent's run by these answers, and what its tools returned in the end."""
    run_options = {k: options.pop(k) for k in ("faults",) if k in options}
    with ModelServer(lambda body: answers[count_answers(body)]) as server:
        ended = run(make_flow(make_agent(server, *tools), **options), **run_options)
        bodies = [call.body for call in server.calls]
    for earlier, later in itertools.pairwise(bodies):
        sent = earlier["messages"]
        assert later["messages"][: len(sent)] == sent, "what was sent is sent again as it was"
    return ended, read_results(bodies[-1])


def set_ids(*ids: str) -> Callable[[dict[str, Any]], None]:
    def change(whole: dict[str, Any]) -> None:
        for call, given in zip(whole["choices"][0]["message"]["tool_calls"], ids, strict=True):
            call["id"] = given

    return change


@pytest.mark.parametrize("ids", [("call_0", "call_1"), ("x", "x"), ("", ""), ("a\0", "\ud800")])
def test_ids_that_a_provider_uses_again_part_no_call_from_its_result(ids: tuple[str, ...]) -> None:
    added: list[int] = []

    def add(n: int) -> int:
        added.append(n)
        return n * 10

    turns = [
        Reply(calls=[("add", {"n": n}), ("add", {"n": n + 1})], change=set_ids(*ids))
        for n in (1, 3, 5)
    ]
    ended, results = play(
        [*turns, Reply("done")], add, faults={"look": [LOST, None, LOST, None]},
    )  # fmt: skip
    assert (ended.status, added) == ("completed", [1, 2, 3, 4, 5, 6])
    assert results == ["10", "20", "30", "40", "50", "60"]
    called = [part["tool_call_id"] for part in list_parts(ended.id) if "tool_call_id" in part]
    assert len(set(called)) == 6
    assert Spend.objects.count() == 4


class Order(BaseModel):
    """The only argument of a tool."""

    amount: int = 500
    note: str = ""


def buy(order: Order) -> str:
    """Buy something."""
    return f"bought for {order.amount}"


def pay(amount: float = 500) -> str:
    """Pay somebody."""
    return f"paid {amount:g}"


SMALL = {"properties": {"amount": {"maximum": 100}}}


@pytest.mark.parametrize("tool", [pay, buy])
@pytest.mark.parametrize("args", ['{"amount": "500"}', "{}", '{"amount": 5, "amount": 500}'])
@pytest.mark.parametrize("when", [SMALL, lambda args: not float(args.get("amount", 0)) > 100])
def test_a_call_is_judged_as_the_tool_gets_it(tool: Any, args: str, when: Any) -> None:
    rules = {tool.__name__: [allow(when), deny(reason="large")]}
    ended, results = play([Reply(calls=[(tool.__name__, args)]), Reply("done")], tool, tools=rules)
    assert (ended.status, results) == ("completed", ["This call is not allowed: large."])


def test_a_tool_whose_schema_names_no_argument_is_called() -> None:
    tool = AgentTool.from_schema(lambda **args: args, "find", "Find.", {"type": "object"})
    ended, results = play([Reply(calls=[("find", {"by": {"a": 1}})]), Reply("done")], tool)
    assert (ended.status, results) == ("completed", ['{"by":{"a":1}}'])


def test_a_rule_that_breaks_on_the_arguments_denies_the_call() -> None:
    rules = {"pay": [deny(lambda args: args["account"] > 1), allow()]}
    ended, results = play([Reply(calls=[("pay", {"amount": 1})]), Reply("done")], pay, tools=rules)
    assert ended.status == "completed"
    assert results == ["This call is not allowed: its rules can't judge it (KeyError: 'account')."]
    assert ended.kinds.count("tool_denied") == 1


def set_message(**given: Any) -> Callable[[dict[str, Any]], None]:
    return lambda whole: whole["choices"][0]["message"].update(given)


def set_call(**given: Any) -> Callable[[dict[str, Any]], None]:
    return lambda whole: whole["choices"][0]["message"]["tool_calls"][0]["function"].update(given)


@pytest.mark.parametrize(
    "change",
    [
        set_message(content="a\0\ud800"),
        lambda whole: whole.update(id="a\0\ud800", model="b\0"),
        set_call(name="a\0\ud800"),
        set_call(arguments='{"n": "a\ud800"}'),
        set_call(arguments='{"n": "a\\u0000"}'),
        set_call(arguments='{"n": NaN}'),
        set_call(arguments='{"n": ' + "[" * 60 + "]" * 60 + "}"),
        set_call(arguments='{"a\\u0000": 1}'),
    ],
    ids=["text", "names", "tool", "surrogate", "nul", "nan", "deep", "key"],
)
def test_what_no_database_takes_is_kept_without_it_and_paid_once(change: Any) -> None:
    def show(n: Any) -> str:
        return f"{n}"

    first = Reply("looking", calls=[("show", {"n": 1})], change=change)
    ended, results = play([first, Reply("done")], show, faults={"look": LOST})
    assert (ended.status, len(results), Spend.objects.count()) == ("completed", 1, 2)


def test_a_tools_result_that_no_database_takes_is_kept_without_it() -> None:
    def show(n: int) -> Any:
        return ["a\0b\ud800", float("nan"), {"\0": 1}]

    ended, results = play([Reply(calls=[("show", {"n": 1})]), Reply("done")], show)
    assert (ended.status, results) == ("completed", ['["a\ufffdb\ufffd",null,{"\ufffd":1}]'])


@pytest.mark.filterwarnings("ignore:Failed to extract usage")
@pytest.mark.parametrize("count", [-5, 0, 10**12, 10**30])
def test_a_count_of_tokens_that_cant_be_is_not_believed_and_the_estimate_counts(count: int) -> None:
    usage = {"prompt_tokens": count, "completion_tokens": count, "total_tokens": 2 * count}
    ended, _ = play([Reply("done", change=lambda whole: whole.update(usage=usage))])
    assert ended.status == "completed"
    spent, held = Spend.objects.get(), Reservation.objects.get()
    assert (spent.tokens_in + spent.tokens_out, held.state) == (held.tokens, "settled")
    assert 4096 < held.tokens < 5000


def test_a_time_of_reset_that_is_none_is_passed_over() -> None:
    assert read_reset({"x-ratelimit-reset-tokens": "1.2.3s", "x-ratelimit-reset": "1m0.5s"}) == 60.5
