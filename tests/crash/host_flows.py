"""A workflow for two hosts: its unit ends when it is let, or at its deadline, and says which."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ledger.workflows import Workflow, seconds
from tests.crash.flows import Pace, note_attempt

DEADLINE = 4

hosted = Workflow("hosted", input=Pace)


@hosted.step(timeout=seconds(DEADLINE))
def hold(ctx: Any) -> Any:
    """One line to the sink when it begins, one beside it if it is stopped."""
    note_attempt(ctx)
    try:
        while not Path(f"{ctx.input.sink}.go").exists():
            time.sleep(0.02)
    except BaseException as error:
        with Path(f"{ctx.input.sink}.stopped").open("a") as file:
            file.write(f"{type(error).__name__} {time.time()}\n")
        raise
    return {"host": ctx.attempt}
