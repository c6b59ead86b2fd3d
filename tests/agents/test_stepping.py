"""An agent as a step: a request and its calls a unit, nothing asked or called twice."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry

from ledger.agents import Tool
from ledger.models import Effect, Handoff, Reservation, Spend
from ledger.registry import registered
from ledger.testing import LOST, run
from ledger.transitions.operators import retry_task
from ledger.workflows import Fail, Repair
from tests.agents.kit import list_parts, make_agent, make_flow, read_transcript, tell_parts
from tests.agents.model_server import ModelServer, Reply, count_answers, read_results
from tests.conftest import ROOT
from tests.factories import OPERATOR
from tests.ledger.copying import edit, find_seq, go_on

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]


def count_to(last: int) -> Any:
    """A model that calls `add` so often, each time with the number of its turn."""

    def answer(body: dict[str, Any]) -> Reply:
        turn = count_answers(body)
        return Reply(calls=[("add", {"n": turn})]) if turn < last else Reply("that was all")

    return answer


def test_each_unit_is_one_request_and_its_calls_and_adds_only_its_own_messages() -> None:
    added: list[int] = []

    def add(n: int) -> int:
        added.append(n)
        return n * 10

    with ModelServer(count_to(3)) as server:
        ended = run(make_flow(make_agent(server, add)))
    assert (ended.status, ended.result) == ("completed", {"look": "that was all"})
    assert ended.units == [("look", n) for n in range(4)]
    assert added == [0, 1, 2]
    turns = read_transcript(ended.id)
    assert [len(turn["messages"]) for turn in turns] == [3, 2, 2, 1]
    assert tell_parts(ended.id)[1:] == [
        'tool-call add: {"n": 0}', "tool-return add: 0",
        'tool-call add: {"n": 1}', "tool-return add: 10",
        'tool-call add: {"n": 2}', "tool-return add: 20", "text: that was all",
    ]  # fmt: skip
    assert [read_results(call.body) for call in server.calls] == [
        [], ["0"], ["0", "10"], ["0", "10", "20"]
    ]  # fmt: skip


def test_a_lost_worker_repeats_no_request_and_no_call() -> None:
    added: list[int] = []

    def add(n: int) -> int:
        added.append(n)
        return n

    with ModelServer(count_to(4)) as server:
        flow = make_flow(make_agent(server, add))
        ended = run(flow, faults={"look": [LOST, None, LOST, LOST, None]})
    assert ended.status == "completed"
    assert ended.kinds.count("reclaimed") == 3
    assert added == [0, 1, 2, 3]
    assert [call.turn for call in server.calls] == [0, 1, 2, 3, 4]
    assert Spend.objects.count() == 5
    assert set(Reservation.objects.values_list("state", flat=True)) == {"settled"}
    # The hand-off of a second attempt would tell of the first one's call.
    sent = server.calls[0].body["messages"][1]["content"]
    assert list_parts(ended.id)[0]["content"] == sent
    assert sent in server.calls[1].body["messages"][1]["content"]


def test_a_turn_that_fails_after_its_answer_asks_the_model_no_second_time() -> None:
    tries: list[int] = []

    def add(n: int) -> int:
        tries.append(n)
        if len(tries) == 1:
            raise OSError("the network")
        return n

    with ModelServer(count_to(1)) as server:
        ended = run(make_flow(make_agent(server, add), tools={"add": Tool(idempotent=True)}))
    assert ended.status == "completed"
    assert ended.kinds.count("attempt_failed") == 1
    assert (tries, [call.turn for call in server.calls]) == ([0, 0], [0, 1])


def test_what_a_tool_refuses_and_a_malformed_call_go_to_the_model_also_after_a_loss() -> None:
    made: list[int] = []

    def add(n: int) -> int:
        made.append(n)
        raise ModelRetry(f"{n} is odd")

    def answer(body: dict[str, Any]) -> Reply:
        calls = [("add", {"n": 1}), ("add", '{"n": '), ("nothing", {})]
        turn = count_answers(body)
        return Reply(calls=[calls[turn]]) if turn < 3 else Reply("I give up")

    with ModelServer(answer) as server:
        ended = run(make_flow(make_agent(server, add)), faults={"look": LOST})
    assert (ended.result, made) == ({"look": "I give up"}, [1])
    odd, malformed, nothing = read_results(server.calls[3].body)
    assert "1 is odd" in odd
    assert "Invalid JSON" in malformed
    assert "nothing" in nothing


def test_an_agent_that_gets_nothing_but_errors_ends_the_task_and_a_retry_asks_it_once_more() -> (
    None
):
    better = Reply("found")
    with ModelServer(lambda body: Reply(calls=[("nothing", {})])) as server:
        flow = make_flow(make_agent(server), patience=3)
        ended = run(flow)
        assert (ended.status, ended.task["error"]["message"]) == (
            "failed", "agent_stuck: 3 turns in a row brought only errors."
        )  # fmt: skip
        assert len(server.calls) == 3
        server.script = lambda body: better
        with registered(flow):
            retry_task(ended.id, actor=OPERATOR)
            ended = go_on(ended.id, flow)
    assert (ended.status, ended.result) == ("completed", {"look": "found"})
    assert (len(server.calls), Spend.objects.count()) == (4, 4)


@pytest.mark.parametrize("turn", [0, 2])
def test_an_agent_goes_on_when_a_person_has_edited_a_turn_away(turn: int) -> None:
    def check(ctx: Any) -> Any:
        raise Fail("bad", "that is wrong")

    with ModelServer(count_to(2)) as server:
        flow = make_flow(make_agent(server, note_calls()))
        flow.step(check)
        ended = run(flow)
        assert (ended.status, len(server.calls)) == ("failed", 3)
        with registered(flow):
            edit(ended.id, find_seq(ended.id, "look", turn), {"look": "by hand"})
            ended = go_on(ended.id, flow)
    assert (ended.status, ended.task["error"]["message"]) == ("failed", "bad: that is wrong")
    assert [len(call.body["messages"]) for call in server.calls[3:]] == [[2, 4, 6], []][turn // 2]


def test_circles_are_an_event_once_whoever_is_lost() -> None:
    answers = iter([f"no {n}" for n in range(4)] + ["shut"] * 4 + [f"{n} of 5" for n in range(5)])

    def look(what: str) -> str:
        if what == "tea":
            raise ModelRetry(next(answers))
        return next(answers)

    plan = ["tea"] * 4 + ["door"] * 4 + ["state"] * 5

    def answer(body: dict[str, Any]) -> Reply:
        turn = count_answers(body)
        args = [{"what": what} for what in plan]
        return Reply(calls=[("look", args[turn])]) if turn < len(args) else Reply("done")

    with ModelServer(answer) as server:
        faults = {"look": [*[None] * 2, LOST, *[None] * 4, LOST]}
        ended = run(make_flow(make_agent(server, look)), faults=faults)
    assert ended.status == "completed"
    told = [one for one in ended.events if one["kind"] == "circling"]
    assert [(one["turn"], one["data"]["failed"], one["data"]["times"]) for one in told] == [
        (2, True, 3), (6, False, 3)
    ]  # fmt: skip


def test_a_session_begins_with_the_goal_and_the_handoff_and_again_after_so_many_turns() -> None:
    with ModelServer(answer_by_age) as server:
        ended = run(
            make_flow(
                make_agent(server, told := note_calls()), session_turns=2,
                goal=lambda ctx: f"Find {ctx.input['what']}.",
            ),
            {"what": "tea"},
        )  # fmt: skip
    assert ended.status == "completed"
    assert told.__dict__["seen"] == [1, 2, 3, 4]
    turns = read_transcript(ended.id)
    assert [(turn["session"], turn["began"]) for turn in turns] == [
        (0, 0), (0, 0), (1, 2), (1, 2), (2, 4)
    ]  # fmt: skip
    openings = [server.calls[n].body["messages"] for n in (0, 2, 4)]
    for opening in openings:
        assert [one["role"] for one in opening] == ["system", "user"]
        assert opening[1]["content"].startswith("Find tea.\n\n# agents\n")
    assert "- add: 2" in openings[1][1]["content"].partition("## The last turn")[2]
    assert Handoff.objects.filter(task=ended.id).count() == 3


def note_calls() -> Any:
    """A tool that remembers what it was called with."""

    def add(n: int) -> int:
        seen.append(n)
        return n

    seen: list[int] = []
    vars(add)["seen"] = seen
    return add


def answer_by_age(body: dict[str, Any]) -> Reply:
    """A model that goes on counting where the last result stands, in whichever session."""
    text = " ".join(str(one.get("content")) for one in body["messages"])
    done = [n for n in range(1, 5) if f"add: {n}" in text or str(n) in read_results(body)]
    last = max(done, default=0)
    return Reply(calls=[("add", {"n": last + 1})]) if last < 4 else Reply("done")


class Found(BaseModel):
    """What a typed agent answers."""

    name: str
    price: int


def test_a_typed_answer_stands_under_the_steps_name_and_a_repair_opens_a_new_session() -> None:
    def answer(body: dict[str, Any]) -> Reply:
        corrected = "too dear" in body["messages"][1]["content"]
        return Reply(calls=[("final_result", {"name": "tea", "price": 2 if corrected else 9})])

    def check(ctx: Any) -> Any:
        found = ctx.progress["look"]
        return Repair(to="look", feedback="too dear") if found["price"] > 5 else {"good": found}

    with ModelServer(answer) as server:
        flow = make_flow(make_agent(server, output_type=Found))
        flow.step(check)
        ended = run(flow)
    assert (ended.status, ended.result) == ("completed", {"good": {"name": "tea", "price": 2}})
    assert ended.units == [("look", 0), ("check", 0), ("look", 0), ("check", 0)]
    assert [len(call.body["messages"]) for call in server.calls] == [2, 2]
    assert ended.task["repairs"]["count"] == 1


def test_an_answer_that_leads_nowhere_is_paid_and_another_is_asked_for() -> None:
    replies = iter([Reply("tea, I think"), Reply(calls=[("final_result", {"name": "tea"})])])
    good = Reply(calls=[("final_result", {"name": "tea", "price": 2})])
    with ModelServer(lambda body: next(replies, good)) as server:
        ended = run(make_flow(make_agent(server, output_type=Found, retries=0)))
        assert len(server.calls) == 3
    assert (ended.status, ended.kinds.count("attempt_failed")) == ("completed", 2)
    assert (ended.result["look"]["price"], Spend.objects.count()) == (2, 3)


def test_an_answer_too_large_for_a_row_is_read_back_whole() -> None:
    def read(n: int) -> str:
        return f"{n}" * 100_000

    def answer(body: dict[str, Any]) -> Reply:
        turn = count_answers(body)
        return Reply(calls=[("read", {"n": turn})]) if turn < 2 else Reply("done")

    with ModelServer(answer) as server:
        ended = run(make_flow(make_agent(server, read)), faults={"look": [None, LOST]})
    assert ended.status == "completed"
    assert read_results(server.calls[2].body) == ["0" * 100_000, "1" * 100_000]


def test_what_the_model_said_is_no_effect_outside_and_not_in_the_handoff() -> None:
    with ModelServer(answer_by_age) as server:
        ended = run(make_flow(make_agent(server, note_calls()), session_turns=1))
    assert ended.status == "completed"
    names = set(Effect.objects.values_list("name", flat=True))
    assert names == {"agent.model", *(f"tool.add.req-{n}-0" for n in range(1, 5))}
    told = Handoff.objects.latest("at").text
    assert "tool.add.req-1-0" in told
    assert "agent.model" not in told


def test_without_the_extra_the_import_says_what_to_install_and_the_product_runs() -> None:
    code = (
        "import sys; sys.modules['pydantic_ai'] = None\n"
        "import django; django.setup()\n"
        "from ledger.agents import agent_step"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: ledger.agents")
    assert "pip install longwatch[agents]" in last


def test_a_step_of_the_records_own_name_is_refused() -> None:
    ended = run(make_flow(Agent("test"), name="transcript"))
    assert (ended.status, "rename it" in ended.task["error"]["message"]) == ("failed", True)


def test_a_step_apart_is_refused_with_the_reason() -> None:
    step = make_flow(Agent("test")).steps[0]
    with pytest.raises(TypeError, match="isolate=True"):
        asyncio.run(step.fn(object()))
    with pytest.raises(ValueError, match="step apart: agent_step keeps a record"):
        make_flow(Agent("test")).step(step.fn, name="apart", isolate=True)
