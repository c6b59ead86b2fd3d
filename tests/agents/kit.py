"""What the tests of agents share: an agent whose model is the scripted server, and its tools."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pydantic_ai import Agent, RunContext
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from harness_site.workflows.code_task.recorded import Recording
from ledger import artifacts
from ledger.agents import agent_step
from ledger.models import StepOutput
from ledger.turns import KEY
from ledger.workflows import Workflow
from tests.agents.model_server import ModelServer, Reply, Script, count_answers

MODEL = "gpt-4o-mini"
"""One that genai-prices knows: 0.15 and 0.60 for a million tokens."""


def make_agent(server: ModelServer, *tools: Callable[..., Any], **options: Any) -> Agent[Any, Any]:
    """An agent of plain tools."""
    provider = OpenAIProvider(base_url=server.url, api_key="none")
    model = OpenAIChatModel(options.pop("model", MODEL), provider=provider)
    return Agent(model, tools=tools, instructions="Do it.", **options)


def make_flow(agent: Any, name: str = "look", **options: Any) -> Workflow:
    """A workflow of one agent step, whose submitter may answer."""
    limits = options.pop("limits", None)
    flow = Workflow("agents", self_approval=True, limits=limits, max_repairs=5)
    flow.step(agent_step(agent, goal=options.pop("goal", "Find it."), **options), name=name)
    return flow


def read_transcript(task_id: Any, step: str = "look") -> list[dict[str, Any]]:
    """What each live unit of the step added."""
    rows = StepOutput.objects.filter(
        task=task_id, step_name=step, superseded_in_round__isnull=True
    ).order_by("turn")
    return [artifacts.resolve(row.output, task_id)[KEY] for row in rows]


def list_parts(task_id: Any, step: str = "look") -> list[dict[str, Any]]:
    """Every part of every message, in order."""
    turns = read_transcript(task_id, step)
    return [part for turn in turns for one in turn["messages"] for part in one["parts"]]


def tell_parts(task_id: Any, step: str = "look") -> list[str]:
    """The transcript in short: kinds, tools and contents."""
    told = []
    for part in list_parts(task_id, step):
        body = part.get("content", part.get("args"))
        name = f" {part['tool_name']}" if "tool_name" in part else ""
        text = body if isinstance(body, str) else json.dumps(body)
        told.append(f"{part['part_kind']}{name}: {text[:60]}")
    return told


type Run = RunContext[Any]


def play_recording(recording: Recording) -> Script:
    """A server that says what a recording has, to whoever asks."""

    def answer(body: dict[str, Any]) -> Reply:
        told = [one for one in body["messages"] if one["role"] not in {"system", "developer"}]
        roles = [one["role"] for one in told]
        since = len(roles) - roles[::-1].index("assistant") if "assistant" in roles else 0
        last = "\n".join(str(one.get("content")) for one in told[since:])
        turn = recording.choose_turn(str(told[0]["content"]), count_answers(body), last)
        calls = [(call.tool, call.args) for call in turn.calls]
        return Reply(turn.say, calls=calls, tokens=turn.tokens)

    return answer
