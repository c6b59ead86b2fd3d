"""An agent that works on files while its worker is killed at every turn, for real."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from ledger.agents import Tool, Toolkit, agent_step, command_tools, file_tools
from ledger.agents.kits.toolkit import make_tool
from ledger.agents.recording import find_unit
from ledger.workflows import Workflow


class Work(BaseModel):
    """Where the model is, and where the marks of those lie who died ("": nobody does)."""

    model: str
    marks: str


def make_worker(ctx: Any) -> Agent[Any, Any]:
    """The agent."""
    provider = OpenAIProvider(base_url=ctx.input.model, api_key="none")
    return Agent(OpenAIChatModel("gpt-4o-mini", provider=provider), deps_type=object)


def strike(place: str) -> str:
    """Kill this worker, the first time that it comes by here."""
    marks = find_unit().input.marks
    mark = Path(marks, place)
    if marks and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


building = Workflow("building", input=Work)
building.step(
    agent_step(
        make_worker,
        goal="Build it.",
        kits=[
            file_tools(write=["*"]),
            command_tools(["python"]),
            Toolkit([make_tool(strike)], {"strike": Tool(local=True)}),
        ],
    ),
    name="build",
    retries=20,
)
