"""A workflow that only newer workers know."""

from __future__ import annotations

from typing import Any

from ledger.workflows import Workflow

newcomer = Workflow("newcomer")


@newcomer.step
def arrive(ctx: Any) -> Any:
    """The only unit."""
    return {"arrived": True}
