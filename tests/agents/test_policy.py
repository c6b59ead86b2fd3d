"""What an agent's tools may do, whom it asks, and what becomes of calls that nobody knows of."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client
from django.urls import reverse
from pydantic_ai import Agent
from pydantic_ai.capabilities import NativeTool
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.native_tools import WebSearchTool
from pydantic_ai.providers.openai import OpenAIProvider

from ledger import queries
from ledger.agents import Tool, allow, ask, call_key, deny, questions
from ledger.calls import Call, answer_call
from ledger.models import Approval, Effect
from ledger.queries import HIDDEN
from ledger.testing import LOST, run
from ledger.transitions.effects import mark_effect
from ledger.workflows import Scope
from tests.agents.kit import make_agent, make_flow, read_transcript
from tests.agents.model_server import Fault, ModelServer, Reply, count_answers, read_results
from tests.dashboard.conftest import make_user

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]


class Till:
    """The world outside."""

    def __init__(self) -> None:
        self.paid: list[int] = []
        self.keys: list[str] = []
        self.breaks = 0

    def pay(self, amount: int) -> str:
        """Pay somebody."""
        self.paid.append(amount)
        self.keys.append(call_key())
        if self.breaks:
            self.breaks -= 1
            raise OSError("no answer")
        return f"paid {amount}"

    def look(self) -> str:
        """Look at something."""
        return "seen"


def call_then_stop(*calls: tuple[str, Any]) -> Any:
    """A model that makes these calls at once and then says what came back."""

    def answer(body: dict[str, Any]) -> Reply:
        if count_answers(body) == 0:
            return Reply(calls=calls)
        return Reply(" | ".join(read_results(body)))

    return answer


def play(till: Till, calls: Any, tools: Any, **options: Any) -> Any:
    """The agent's run, and what the model was told in the end."""
    flow_options = {k: options.pop(k) for k in ("limits",) if k in options}
    with ModelServer(call_then_stop(*calls)) as server:
        flow = make_flow(make_agent(server, till.pay, till.look), tools=tools, **flow_options)
        flow.scope = options.pop("scope", None)
        ended = run(flow, **options)
        assert [call.turn for call in server.calls] == [0, 1][: len(server.calls)]
    return ended


def test_an_asked_call_waits_for_people_who_see_it_exactly_and_may_change_it() -> None:
    till = Till()
    calls = [("look", {}), ("pay", {"amount": 500})]
    rules = [allow({"properties": {"amount": {"maximum": 100}}}), ask(reason="large", risk="high")]
    answers = {"look": {"decision": "approve", "values": {"amount": 300}}}
    ended = play(till, calls, {"pay": rules}, answers=answers)
    assert (ended.status, ended.result) == ("completed", {"look": "seen | paid 300"})
    assert till.paid == [300]
    question = Approval.objects.get()
    assert (question.subject, question.risk) == ("May the agent call pay?", "high")
    assert question.payload["arguments"] == question.proposal == {"amount": 500}
    assert question.form["properties"]["amount"]["type"] == "integer"
    assert "large" in question.body
    assert [turn["calls"] for turn in read_transcript(ended.id)] == [
        [{"id": "req-1-0", "tool": "look", "decision": "allow"},
         {"id": "req-1-1", "tool": "pay", "decision": "ask", "reason": "large"}],
        [{"id": "req-1-1", "tool": "pay", "decision": "approved", "reason": "large"}],
        [],
    ]  # fmt: skip


def test_a_rejection_goes_to_the_model_with_its_comment_and_the_task_goes_on() -> None:
    till = Till()
    answers = {"look": {"decision": "reject", "comment": "too dear"}}
    ended = play(till, [("pay", {"amount": 5})], {"pay": ask()}, answers=answers)
    assert ended.result == {"look": "A person has rejected this call: too dear."}
    assert (ended.status, till.paid, ended.task["round"]) == ("completed", [], 0)


def test_several_asked_calls_are_one_question_each_and_none_runs_before_the_last_answer() -> None:
    till = Till()
    calls = [("pay", {"amount": 1}), ("pay", {"amount": 2}), ("pay", {"amount": 3})]
    answers = {"look": ["approve", {"decision": "reject"}, "approve"]}
    ended = play(till, calls, {"*": ask()}, answers=answers, faults={"look": [None, LOST]})
    assert ended.result == {"look": "paid 1 | A person has rejected this call. | paid 3"}
    assert (till.paid, Approval.objects.count()) == ([1, 3], 3)


def test_what_is_denied_is_not_called_and_an_approver_cant_edit_a_call_into_it() -> None:
    till = Till()
    tools = {"pay": [deny(lambda args: args["amount"] > 100, reason="over 100"), ask()]}
    calls = [("pay", {"amount": 500}), ("pay", {"amount": 50})]
    answers = {"look": {"decision": "approve", "values": {"amount": 101}}}
    ended = play(till, calls, tools, answers=answers, faults={"look": [LOST]})
    assert ended.result == {"look": " | ".join(["This call is not allowed: over 100."] * 2)}
    assert (till.paid, Approval.objects.count()) == ([], 1)
    denied = [one["data"] for one in ended.events if one["kind"] == "tool_denied"]
    assert [(one["tool"], one["call"], one["reason"]) for one in denied] == [
        ("pay", "req-1-0", "over 100"), ("pay", "req-1-1", "over 100"),
    ]  # fmt: skip


def test_why_a_call_was_denied_is_shown_with_contents_only_since_it_may_quote_the_call() -> None:
    ended = play(Till(), [("pay", {"amount": 500})], {"pay": deny(reason="500 is over 100")})
    told = {}
    for payload in (True, False):
        with answer_call(Call(payload=payload)):
            (told[payload],) = [
                one["data"] for one in queries.list_events(ended.id).items
                if one["kind"] == "tool_denied"
            ]  # fmt: skip
    assert told[True]["reason"] == "500 is over 100"
    assert told[False] == {"tool": "pay", "reason": HIDDEN, "round": 0}


def test_a_tool_out_of_the_workflows_scope_is_denied() -> None:
    till = Till()
    calls = [("pay", {"amount": 1}), ("look", {})]
    ended = play(till, calls, {}, scope=Scope(tools=["look"]))
    assert till.paid == []
    assert "out of the scope" in ended.result["look"]
    assert ended.result["look"].endswith("| seen")


def test_a_call_that_no_rule_is_about_is_asked() -> None:
    till = Till()
    tools = {"pay": allow({"properties": {"amount": {"maximum": 3}}})}
    ended = play(till, [("pay", {"amount": 4})], tools)
    assert (ended.status, ended.reason, till.paid) == ("waiting", "approval", [])


@pytest.mark.parametrize(("happened", "paid"), [("done", [7]), ("not done", [7, 7])])
def test_a_call_of_unknown_outcome_is_asked_about_and_never_repeated_unasked(
    happened: str, paid: list[int]
) -> None:
    till = Till()
    till.breaks = 1
    answers = {"look": {"decision": "approve", "values": {"happened": happened}}}
    calls = [("pay", {"amount": 7}), ("look", {})]
    ended = play(till, calls, {}, answers=answers)
    assert till.paid == paid
    told = "Done; a person has confirmed it." if happened == "done" else "paid 7"
    assert sorted(ended.result["look"].split(" | ")) == sorted(["seen", told])
    question = Approval.objects.get()
    assert question.subject == "Did the call of pay happen?"
    lost = Effect.objects.get(name="tool.pay.req-1-0", turn=0)
    assert (lost.status, lost.marked_by) == (happened.replace(" ", "_"), "user:testing")
    assert len(set(till.keys)) == len(paid), "called again at a person's word it has another key"


def test_an_outage_while_an_answer_settles_a_lost_call_is_no_failure_of_the_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    till, tries = Till(), []
    till.breaks = 1

    def mark_and_lose_the_answer(*args: Any, **named: Any) -> None:
        tries.append(named["to"])
        mark_effect(*args, **named)
        raise OperationalError("the connection is lost")

    monkeypatch.setattr(questions, "mark_effect", mark_and_lose_the_answer)
    answers = {"look": {"decision": "approve", "values": {"happened": "done"}}}
    ended = play(till, [("pay", {"amount": 7})], {}, answers=answers)
    assert ended.result == {"look": "Done; a person has confirmed it."}
    assert (till.paid, tries) == ([7], ["done"])
    assert [one["kind"] for one in ended.events].count("attempt_failed") == 1, "that of the call"


def test_verify_says_what_came_of_a_call_and_nobody_is_asked() -> None:
    till = Till()
    till.breaks = 1
    asked: list[str] = []

    async def find(args: dict[str, Any], key: str) -> str | None:
        asked.append(key)
        return f"paid {args['amount']} before" if key in till.keys else None

    ended = play(till, [("pay", {"amount": 7})], {"pay": Tool(verify=find)})
    assert (ended.result, till.paid) == ({"look": "paid 7 before"}, [7])
    assert asked == till.keys
    assert not Approval.objects.exists()


def test_an_idempotent_tool_is_simply_called_again_under_the_same_key() -> None:
    till = Till()
    till.breaks = 1
    ended = play(till, [("pay", {"amount": 7})], {"pay": Tool([allow()], idempotent=True)})
    assert (ended.result, till.paid) == ({"look": "paid 7"}, [7, 7])
    assert len(set(till.keys)) == 1


def test_rules_that_cant_be_are_refused_when_the_step_is_made() -> None:
    for wrong in ("ask", {"when": 1}, [1]):
        with pytest.raises(ValueError, match="takes a Tool"):
            make_flow(None, tools={"pay": wrong})
    with pytest.raises(ValueError, match="no predicate"):
        deny("amount > 3")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="risk"):
        ask(risk="huge")  # type: ignore[arg-type]


def test_the_page_shows_the_exact_call_with_its_arguments_to_change_and_what_a_no_leads_to() -> (
    None
):
    ended = play(Till(), [("pay", {"amount": 500})], {"pay": ask(reason="large")})
    question = Approval.objects.get()
    browser = Client()
    browser.force_login(make_user("approver"))
    page = browser.get(reverse("dashboard:approval", args=[question.pk])).content.decode()
    assert "May the agent call pay?" in page
    assert re.search(r'<input[^>]*value="500"', page)
    assert "The call is not made; the agent is told no, with your comment, and goes on" in page
    shown = browser.get(reverse("dashboard:task", args=[ended.id]))
    assert shown.status_code == 200


@pytest.mark.parametrize("name", ["web_search", "*"])
@pytest.mark.parametrize("rules", [deny(), ask(), [allow({"required": ["query"]}), deny()], []])
def test_a_tool_that_the_provider_runs_is_not_even_offered_against_a_rule(
    name: str, rules: Any
) -> None:
    ended, asked = search_by_provider({name: rules})
    assert (ended.status, asked) == ("failed", 0)
    assert "provider_tool: The provider runs web_search" in ended.task["error"]["message"]


def test_a_tool_that_the_provider_runs_is_offered_where_it_is_allowed_and_in_scope() -> None:
    assert search_by_provider({"web_search": allow(), "*": deny()})[1] > 0
    ended, asked = search_by_provider({}, Scope(tools=["look"]))
    assert (ended.status, asked) == ("failed", 0)


def search_by_provider(tools: Any, scope: Scope | None = None) -> tuple[Any, int]:
    """An agent with a search of its provider's; how many requests it made."""
    with ModelServer(lambda body: Fault(400)) as server:
        provider = OpenAIProvider(base_url=server.url, api_key="none")
        model = OpenAIResponsesModel("gpt-4o-mini", provider=provider)
        agent = Agent(model, capabilities=[NativeTool(WebSearchTool())])
        flow = make_flow(agent, tools=tools)
        flow.scope = scope
        return run(flow), len(server.calls)
