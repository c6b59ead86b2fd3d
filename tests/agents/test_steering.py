"""Messages of people to an agent: told once, in order, at the next turn, or shown as not told."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import RunContext

from ledger import registry, sql, states
from ledger.calls import Call, answer_call
from ledger.errors import (
    IdempotencyConflict,
    InvalidInput,
    LedgerError,
    NotFound,
    TaskNotFound,
    WrongStatus,
)
from ledger.events import Actor
from ledger.models import AuditEntry, Event, Signal, Task
from ledger.testing import LOST, run
from ledger.transitions import operators
from ledger.transitions.mailbox import list_pending
from ledger.transitions.steering import steer_task, take_messages, withdraw_message
from ledger.transitions.waits import send_signal
from ledger.workflows import WaitFor
from tests.agents.kit import list_parts, make_agent, make_flow, read_transcript
from tests.agents.model_server import ModelServer, Reply, count_answers
from tests.factories import LEASE, claim, make_unit, make_workflow, submit

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]

ANN = Actor("user", "7")
FRAME = "A person who watches this task says:\n\n"


def say(task_id: Any, text: str, **more: Any) -> int:
    return steer_task(task_id, text=text, actor=ANN, **more)


def count_to(last: int) -> Any:
    def answer(body: dict[str, Any]) -> Reply:
        turn = count_answers(body)
        return Reply(calls=[("add", {"n": turn})]) if turn < last else Reply(f"done at {turn}")

    return answer


def tell_users(body: dict[str, Any]) -> list[str]:
    """What the model was told after its opening."""
    told = [one["content"] for one in body["messages"] if one["role"] == "user"]
    return [one.removeprefix(FRAME) for one in told[1:]]


def test_what_people_say_is_told_at_the_next_turn_once_and_in_order_whoever_dies() -> None:
    def add(run: RunContext[Any], n: int) -> int:
        if n == 1:
            for text in ("go left", "then stop"):
                say(run.deps.task_id, text)
        return n

    with ModelServer(count_to(4)) as server:
        flow = make_flow(make_agent(server, add, deps_type=object))
        ended = run(flow, faults={"look": [LOST, None] * 5})
    assert (ended.status, ended.kinds.count("reclaimed")) == ("completed", 5)
    told = [tell_users(call.body) for call in server.calls]
    assert told == [[], [], *[["go left", "then stop"]] * 3]
    roles = [one["role"] for one in server.calls[4].body["messages"]]
    assert roles == ["system", "user", *["assistant", "tool"] * 2, "user", "user",
                     *["assistant", "tool"] * 2]  # fmt: skip
    heard = [[one["text"] for one in turn.get("heard", [])] for turn in read_transcript(ended.id)]
    assert heard == [[], [], ["go left", "then stop"], [], []]
    said = [part["content"] for part in list_parts(ended.id) if part["part_kind"] == "user-prompt"]
    assert said[1:] == [f"{FRAME}go left", f"{FRAME}then stop"]
    assert list_pending(ended.id).count() == 0
    assert [kind for kind in ended.kinds if kind.startswith("steer")] == [
        "steered", "steered", "steer_heard"
    ]  # fmt: skip


def test_a_message_that_waits_opens_the_first_session_and_each_later_one_knows_of_it() -> None:
    def first(ctx: Any) -> Any:
        say(ctx.task_id, "begin on the left")
        return {}

    replies = iter([Reply(calls=[("add", {"n": n})]) for n in range(2)])
    with ModelServer(lambda body: next(replies, Reply("done"))) as server:
        flow = make_workflow_with(first, make_agent(server), session_turns=2)
        ended = run(flow, faults={"look": LOST})
    assert ended.status == "completed"
    opening = server.calls[0].body["messages"][1]["content"]
    assert [part["text"] for part in opening][1:] == [f"{FRAME}begin on the left"]
    assert "begin on the left" not in opening[0]["text"]
    again = server.calls[2].body["messages"][1]["content"]
    assert "agent.message by user:7, read" in again


def make_workflow_with(first: Any, agent: Any, **options: Any) -> Any:
    from ledger.agents import agent_step
    from ledger.workflows import Workflow

    def add(n: int) -> int:
        return n

    agent.tool_plain(add)
    flow = Workflow("agents")
    flow.step(first, name="first")
    flow.step(agent_step(agent, goal="Find it.", **options), name="look")
    return flow


def test_an_agent_that_is_about_to_end_is_told_first_and_answers_again() -> None:
    late = ["wait, one more"]
    ids: list[Any] = []

    def answer(body: dict[str, Any]) -> Reply:
        return Reply(f"answer {count_answers(body)}")

    with ModelServer(answer) as server:
        agent = make_agent(server, deps_type=object)

        @agent.output_validator
        def check(run: RunContext[Any], output: str) -> str:
            ids.append(run.deps.task_id)
            if late:
                say(run.deps.task_id, late.pop())
            return output

        ended = run(make_flow(agent))
    assert (ended.status, ended.result) == ("completed", {"look": "answer 1"})
    assert [tell_users(call.body) for call in server.calls] == [[], ["wait, one more"]]
    with pytest.raises(WrongStatus, match="completed"):
        say(ids[0], "too late")


def test_withdrawn_before_it_is_taken_it_is_never_told() -> None:
    with ModelServer(count_to(1)) as server:
        flow = make_flow(make_agent(server))
        with registry.registered(flow):
            task = submit(flow)
            first, second = say(task.pk, "no"), say(task.pk, "yes", reason="why not")
            withdraw_message(task.pk, first, actor=ANN)
            withdraw_message(task.pk, first, actor=ANN)  # twice is harmless
            held = claim(flow)
            assert [one["text"] for one in take_messages(held)] == ["yes"]
            assert [one["text"] for one in take_messages(held)] == ["yes"]
            with pytest.raises(WrongStatus, match="told to its agent"):
                withdraw_message(task.pk, second, actor=ANN)
            with pytest.raises(NotFound):
                withdraw_message(task.pk, second + 1, actor=ANN)
    actions = AuditEntry.objects.filter(allowed=True, task=task.pk).order_by("pk")
    assert list(actions.values_list("action", flat=True))[-3:] == [
        "steered", "steered", "steer_withdrawn"
    ]  # fmt: skip
    assert AuditEntry.objects.filter(allowed=False).count() == 0


def test_what_a_unit_took_that_is_never_stored_waits_again_and_what_was_told_does_not() -> None:
    with ModelServer(count_to(1)) as server:
        flow = make_flow(make_agent(server))
        flow.step(lambda ctx: None, name="after")
        with registry.registered(flow):
            task = submit(flow)
            say(task.pk, "listen")
            assert take_messages(claim(flow))
            operators.restart_task(task.pk, to_step="look", note="n", actor=ANN)
            assert [row.data for row in list_pending(task.pk)] == [{"text": "listen"}]
            held = claim(flow)
            assert take_messages(held)
            unit = make_unit(held, flow, next_index=0, next_name="look", next_turn=1)
            assert sql.checkpoint_unit(held, unit, lease_seconds=LEASE, groups=None)
            operators.restart_task(task.pk, to_step="look", note="n", actor=ANN)
            assert list_pending(task.pk).count() == 0


def test_who_can_not_be_told_is_refused_with_the_reason() -> None:
    plain = make_workflow("plain")
    flow = make_flow(make_agent_of_nobody())
    with registry.registered(plain), registry.registered(flow):
        task = submit(flow)

        def refuse(error: type[LedgerError], text: str = "x", of: Task = task, **more: Any) -> str:
            with pytest.raises(error) as refusal:
                say(of.pk, text, **more)
            return str(refusal.value)

        assert "no agent" in refuse(InvalidInput, of=submit(plain))
        assert "empty" in refuse(InvalidInput, " \n")
        assert "4,000" in refuse(InvalidInput, "x" * 4_001)
        assert say(task.pk, "once", key="k") == say(task.pk, "once", key="k")
        refuse(IdempotencyConflict, "twice", key="k")
        with answer_call(Call(lanes=frozenset({"elsewhere"}))):
            refuse(TaskNotFound)
        for n in range(19):
            say(task.pk, f"{n}")
        assert "wait already" in refuse(InvalidInput)
        with pytest.raises(InvalidInput, match="messages to an agent"):
            send_signal(task.pk, name="agent.message", data={}, actor=ANN)
        with pytest.raises(ValueError, match="messages to an agent"):
            WaitFor("agent.message")
        operators.cancel_task(task.pk, actor=ANN)
        assert "cancelled" in refuse(WrongStatus)
    assert Task.objects.get(pk=task.pk).status == states.CANCELLED
    assert Signal.objects.count() == Event.objects.filter(kind="steered").count() == 20


def make_agent_of_nobody() -> Any:
    from pydantic_ai import Agent

    return Agent("test")
