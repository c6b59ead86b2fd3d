"""A workflow that is judged by a command, for the tests that end it."""

from __future__ import annotations

from typing import Any

from ledger.evaluators import Command
from ledger.workflows import Workflow
from tests.crash.flows import Pace, note_attempt

judged = Workflow("judged", input=Pace)


@judged.step
def work(ctx: Any) -> Any:
    """A file to be judged."""
    note_attempt(ctx)
    (ctx.workspace / "made").write_text("x")
    return {"made": True}


judged.evaluate("judge", [Command("tests")], of="work")
