"""The workflows of the benchmark: steps that do nothing, known through LONGWATCH_WORKFLOWS."""

from __future__ import annotations

import time
from typing import Any

from benchmarks import work
from ledger.workflows import AskApproval, Workflow


def make_workflow(steps: int) -> Workflow:
    """`steps` steps that do nothing and store about 200 bytes each."""
    made = Workflow(f"bench-{steps}")
    for number in range(steps):

        def return_output(ctx: Any, number: int = number) -> dict[str, object]:
            return work.make_output(ctx.input["task"], number)

        made.step(return_output, name=f"step-{number}")
    return made


ten = make_workflow(10)
three = make_workflow(3)
one = make_workflow(1)

waiting = Workflow("bench-waiting")


@waiting.step
def wait(ctx: Any) -> None:
    """Sleeps, as what waits for a model or a command does."""
    time.sleep(ctx.input["seconds"])


stamped = Workflow("bench-stamped")


@stamped.step
def note_time(ctx: Any) -> None:
    """Its first instruction reads the clock."""
    at = time.time()
    work.stamp(ctx.input["task"], at)


asking = Workflow("bench-asking", self_approval=True)


@asking.step
def ask(ctx: Any) -> AskApproval:
    """Waits for an answer."""
    return AskApproval("Go on?", payload={"task": ctx.input["task"]})


asking.step(note_time, name="go-on")
