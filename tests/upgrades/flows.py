"""What workers of v0.1 and of today run side by side; so it imports only what v0.1 has.

`varied` has a row written into every table that a worker of v0.1 writes.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ledger.workflows import Again, AskApproval, Child, Repair, Sleep, Spawn, WaitFor, Workflow


class Pace(BaseModel):
    """The file outside in which each attempt leaves a line, and how long `work` takes."""

    sink: str
    seconds: float = 0.0
    turns: int = 1


def note_attempt(ctx: Any) -> None:
    """One line."""
    with Path(ctx.input.sink).open("a") as sink:
        sink.write(f"{ctx.task_id} {ctx.step} {ctx.turn}\n")


paced = Workflow("paced", input=Pace)


@paced.step
def begin(ctx: Any) -> Any:
    """A unit that takes no time."""
    note_attempt(ctx)


@paced.step
def work(ctx: Any) -> Any:
    """`seconds`."""
    note_attempt(ctx)
    time.sleep(ctx.input.seconds)


@paced.step
def end(ctx: Any) -> Any:
    """The last unit."""
    note_attempt(ctx)


varied = Workflow("varied", input=Pace, max_repairs=1, self_approval=True)


@varied.step
def produce(ctx: Any) -> Any:
    """Money, progress, an artifact, and what is too large for a row."""
    note_attempt(ctx)
    ctx.spend(tokens_in=10, cost="0.01")
    ctx.report(1, 2, "half")
    ctx.save_artifact("note.txt", b"a note")
    (ctx.workspace / "kept").write_text("kept")
    return {"large": "x" * 100_000}


@varied.step
def loop(ctx: Any) -> Any:
    """Two turns."""
    note_attempt(ctx)
    return Again() if ctx.turn == 0 else {"looped": True}


@varied.step
def mend(ctx: Any) -> Any:
    """One repair."""
    note_attempt(ctx)
    return {"mended": True} if ctx.round else Repair(to="loop", feedback="once more")


@varied.step
def nap(ctx: Any) -> Any:
    """A timer."""
    note_attempt(ctx)
    return Sleep(0.05)


@varied.step
def ask(ctx: Any) -> Any:
    """A question."""
    note_attempt(ctx)
    return AskApproval("Go on?", payload={"kept": (ctx.workspace / "kept").read_text()})


@varied.step
def listen(ctx: Any) -> Any:
    """A signal."""
    note_attempt(ctx)
    return WaitFor("go", timeout=600)


@varied.step
def spawn(ctx: Any) -> Any:
    """A child."""
    note_attempt(ctx)
    return Spawn([Child("paced", {"sink": ctx.input.sink, "seconds": 0, "turns": 1})])


@varied.step
def close(ctx: Any) -> Any:
    """The end."""
    note_attempt(ctx)
    return {"closed": True}
