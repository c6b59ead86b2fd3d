"""Sub-agents: calls that are child tasks, what the model hears of them, and whose limits hold."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent

from ledger.agents import agent_step, ask, child_task
from ledger.events import Actor
from ledger.models import Task
from ledger.sweeper import sweep
from ledger.testing import LOST, run
from ledger.transitions import operators
from ledger.workflows import OWN_LANE, AskApproval, Fail, Limits, Scope, Workflow, registered
from tests.agents.kit import list_parts, make_agent, make_flow, read_transcript
from tests.agents.model_server import ModelServer, Reply, count_answers, read_results

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]


class Topic(BaseModel):
    """What a sub-agent looks up."""

    subject: str


research = Workflow("research", input=Topic)


@research.step
def look_up(ctx: Any) -> Any:
    """No model: what a child does is its own affair."""
    if ctx.input.subject == "nothing":
        raise Fail("not_found", "There is nothing of that name.")
    if ctx.input.subject == "people":
        return AskApproval("Shall I?")
    if ctx.input.subject == "dear":
        ctx.spend(tokens_in=1_000, cost="0.01")
    return {"found": f"all about {ctx.input.subject}"}


def ask_about(*subjects: Any, tool: str = "research") -> Any:
    """A model that sends a child for each at once, and says what came back."""
    calls = [(tool, {"subject": one} if isinstance(one, str) else one) for one in subjects]

    def answer(body: dict[str, Any]) -> Reply:
        return Reply(" | ".join(read_results(body))) if count_answers(body) else Reply(calls=calls)

    return answer


def play(script: Any, *, tool: Any = None, rules: Any = None, **options: Any) -> Any:
    run_options = {name: options.pop(name) for name in ("faults", "answers") if name in options}
    with ModelServer(script) as server, registered(research):
        tool = tool or child_task(research, "Looks a thing up.")
        flow = make_flow(make_agent(server, tool), tools=rules, **options)
        ended = run(flow, **run_options)
    ended.__dict__["server"] = server
    return ended


def test_a_call_is_a_child_task_and_its_result_the_answer_one_unit_later() -> None:
    ended = play(ask_about("tea", "coffee"))
    said = '{"found":"all about tea"} | {"found":"all about coffee"}'
    assert (ended.status, ended.result) == ("completed", {"look": said})
    assert ended.units == [("look", 0), ("look", 1), ("look", 2)]
    first, second = Task.objects.filter(parent=ended.id).order_by("id")
    assert (first.input, first.title, first.workflow) == (
        {"subject": "tea"},
        "research",
        "research",
    )
    assert first.started_at is not None
    turns = read_transcript(ended.id)
    assert [one["child"]["input"] for one in turns[0]["open"]] == [first.input, second.input]
    assert [one["task"] for one in turns[1]["children"]] == [str(first.pk), str(second.pk)]
    assert len(ended.server.calls) == 2
    sent = ended.server.calls[0].body["tools"][0]["function"]
    assert sent["name"] == "research"
    assert sent["parameters"]["properties"]["subject"]["type"] == "string"


def test_a_worker_lost_at_any_unit_spawns_nothing_twice_and_asks_nothing_twice() -> None:
    ended = play(ask_about("tea", "coffee"), faults={"look": [LOST, LOST, None, LOST, LOST]})
    assert (ended.status, ended.kinds.count("reclaimed")) == ("completed", 4)
    assert Task.objects.filter(parent=ended.id).count() == 2
    assert len(ended.server.calls) == 2
    assert [one["part_kind"] for one in list_parts(ended.id)] == [
        "user-prompt", "tool-call", "tool-call", "tool-return", "tool-return", "text",
    ]  # fmt: skip


def test_what_a_child_fails_by_goes_to_the_model_and_so_does_an_input_that_is_none() -> None:
    ended = play(ask_about("nothing", {"subject": 1}, "tea"))
    assert ended.status == "completed"
    failed, wrong, good = read_results(ended.server.calls[1].body)
    assert "failed (workflow_failed: not_found: There is nothing of that name.)" in failed
    assert "subject" in wrong
    assert good == '{"found":"all about tea"}'
    assert Task.objects.filter(parent=ended.id).count() == 2


def test_who_cancels_the_parent_cancels_the_child_and_a_child_alone_is_told_of() -> None:
    with ModelServer(ask_about("people")) as server, registered(research):
        flow = make_flow(make_agent(server, child_task(research, "Looks a thing up.")))
        with registered(flow):
            ended = run(flow)
            assert (ended.status, ended.reason) == ("waiting", "children")
            operators.cancel_task(ended.id, actor=Actor("user", "1"))
            child = Task.objects.get(parent=ended.id)
            sweep()
    child.refresh_from_db()
    assert (child.status, child.status_reason) == ("cancelled", "cancelled_by_parent")
    with ModelServer(ask_about("people")) as server, registered(research):
        flow = make_flow(make_agent(server, child_task(research, "Looks a thing up.")))
        told = run(flow, answers={"look_up": "reject"})
    assert (told.status, "approval_rejected" in told.result["look"]) == ("completed", True)


def test_a_child_has_the_limits_it_is_given_and_spends_its_parents() -> None:
    tool = child_task(research, "Looks a thing up.", limits=Limits(tokens=500, units=7))
    ended = play(ask_about("dear"), tool=tool)
    child = Task.objects.get(parent=ended.id)
    assert (child.limit_tokens, child.limit_units, child.status) == (500, 7, "dead")
    assert "dead (limit_tokens" in ended.result["look"]
    assert ended.task["used"]["tokens_in"] == 200 + 1_000, "the child's tokens are its parent's"

    ended = play(ask_about("dear", "tea"), limits=Limits(tokens=5_000, units=3))
    assert {one.limit_units for one in Task.objects.filter(parent=ended.id)} == {3}
    assert (ended.status, ended.reason) == ("dead", "limit_tokens")


def test_rules_are_asked_first_and_a_question_beside_a_child_comes_before_it() -> None:
    def answer(body: dict[str, Any]) -> Reply:
        calls = [("research", {"subject": "tea"}), ("pay", {"n": 3}), ("look", {})]
        return Reply(" | ".join(read_results(body))) if count_answers(body) else Reply(calls=calls)

    def pay(n: int) -> str:
        assert not Task.objects.filter(parent__isnull=False).exists()
        return f"paid {n}"

    def look() -> str:
        return "seen"

    with ModelServer(answer) as server, registered(research):
        agent = make_agent(server, child_task(research, "Looks a thing up."), pay, look)
        flow = make_flow(agent, tools={"pay": ask()})
        ended = run(flow, answers={"look": "approve"}, faults={"look": [LOST, None, LOST]})
    assert ended.status == "completed"
    assert sorted(ended.result["look"].split(" | ")) == [
        "paid 3", "seen", '{"found":"all about tea"}'
    ]  # fmt: skip
    assert Task.objects.filter(parent=ended.id).count() == 1
    assert len(server.calls) == 2
    asked = play(ask_about("tea"), rules={"research": ask()}, answers={"look": "reject"})
    assert "rejected this call" in asked.result["look"]
    scoped = play(ask_about("tea"), limits=None, rules={"research": ask(lambda args: False)})
    assert (scoped.status, scoped.reason) == ("waiting", "approval")


def test_an_agent_may_send_copies_of_itself_down_to_the_last_generation() -> None:
    flow = Workflow("self", scope=Scope(tools=["self"], lanes=[OWN_LANE]))

    def answer(body: dict[str, Any]) -> Reply:
        if not count_answers(body):
            return Reply(calls=[("self", {"depth": 1})])
        return Reply("do it here" if "do it here" in read_results(body)[0] else "nothing")

    with ModelServer(answer) as server:
        agent = make_agent(server, child_task(flow, "Does it."))
        flow.step(agent_step(agent, goal="Go down."), name="go")
        ended = run(flow)
    assert (ended.status, Task.objects.count()) == ("completed", 8)
    assert ended.result == {"go": "do it here"}


def test_a_child_task_outside_of_an_agent_step_says_so() -> None:
    with pytest.raises(TypeError, match="agent_step"):
        asyncio.run(Agent("test", tools=[child_task("research", "Looks.")]).run("Go."))
