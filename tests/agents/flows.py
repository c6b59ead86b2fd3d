"""An agent for the tests that kill real workers: it writes numbers down, and may die of it."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, RunContext
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from ledger.agents import Compact, Judge, Tool, agent_step, call_key, child_task
from ledger.evaluators import Predicate, evaluate
from ledger.workflows import Workflow


class Course(BaseModel):
    """Where the model is, how far it counts, where to write, and how often a call is the last."""

    sink: str
    model: str
    deadly: float = 0.0


def write_down(run: RunContext[Any], n: int) -> str:
    """Write a number down."""
    dies = random.random() < run.deps.input.deadly
    early = random.random() < 0.5
    if dies and early:
        os.kill(os.getpid(), signal.SIGKILL)
    with Path(run.deps.input.sink).open("a") as sink:
        sink.write(f"{call_key()} {n}\n")
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"noted {n};"


def make_counter(ctx: Any) -> Agent[Any, Any]:
    """The agent, which tells the model server who asks."""
    provider = OpenAIProvider(base_url=ctx.input.model, api_key="none")
    model = OpenAIChatModel("gpt-4o-mini", provider=provider)
    who: Any = {"extra_headers": {"X-Worker": str(os.getpid())}}
    return Agent(model, tools=[write_down], deps_type=object, model_settings=who)


counting = Workflow("counting", input=Course)


def verify_line(args: dict[str, Any], key: str) -> str | None:
    """The line of this call is in the one sink that this process knows, or it was not made."""
    lines = Path(os.environ["LONGWATCH_TEST_SINK"]).read_text().splitlines()
    return f"noted {args['n']};" if any(line.startswith(f"{key} ") for line in lines) else None


counting.step(
    agent_step(
        make_counter,
        goal="Count.",
        session_turns=8,
        tools={"write_down": Tool(verify=verify_line)},
    ),
    name="count",
    retries=20,
)

apart = Workflow("judged-apart")


@apart.step(isolate=True)
def judge_apart(ctx: Any) -> Any:
    """What no step in a process of its own can do."""
    return evaluate(ctx, [Judge("test", "It is good.")], "work").output


def die_once(sink: str, name: str) -> None:
    """End this worker, the first time that this is said."""
    mark = Path(f"{sink}.{name}")
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def jot(run: RunContext[Any], n: int) -> str:
    """Note a number, beside a child that is not spawned yet."""
    if n == 1:
        die_once(run.deps.input.sink, "jot")
    return f"noted {n};"


def make_manager(ctx: Any) -> Agent[Any, Any]:
    """An agent that notes a number and sends a child with it, again and again."""
    errand = child_task("errand", "Runs an errand.", input=Errand)
    return Agent(make_model(ctx), tools=[jot, errand], deps_type=object)


def make_model(ctx: Any) -> OpenAIChatModel:
    provider = OpenAIProvider(base_url=ctx.input.model, api_key="none")
    return OpenAIChatModel("gpt-4o-mini", provider=provider)


def outlive_judge(ctx: Any) -> None:
    """Dearer than the judge: its worker is lost with the judge's answer on record."""
    die_once(ctx.input.sink, "judged")


class Errand(BaseModel):
    """Which one."""

    n: int


errand = Workflow("errand", input=Errand)
errand.step(lambda ctx: {"ran": ctx.input.n}, name="go")
managing = Workflow("managing", input=Course)
managing.step(
    agent_step(
        make_manager,
        goal="Manage.",
        compact=Compact(at=500, by="model", keep=1),
        tools={"jot": Tool(idempotent=True)},
    ),
    name="count",
)
managing.evaluate(
    "check", [Judge(make_model, "It counts."), Predicate(outlive_judge, cost=35)], of="count"
)
