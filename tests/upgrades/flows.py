"""A workflow that has a row written into every table that a worker of v0.1 writes."""

from __future__ import annotations

from typing import Any

from ledger.workflows import Again, AskApproval, Child, Repair, Sleep, Spawn, WaitFor, Workflow
from tests.crash.flows import Pace, note_attempt

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
