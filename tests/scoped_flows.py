"""A workflow whose step runs in a process of its own: it is imported there, so it has a module."""

from __future__ import annotations

from typing import Any

from ledger.errors import LimitReached, OutOfScope
from ledger.workflows import Workflow

apart = Workflow("apart")


@apart.step(isolate=True)
def use(ctx: Any) -> dict[str, Any]:
    """Ask for a secret and a tool."""
    refused: list[str | None] = []
    for ask in (lambda: ctx.secret("BILLING"), lambda: ctx.allow_tool("search")):
        try:
            ask()
        except OutOfScope as error:
            refused.append(type(error).__name__)
        else:
            refused.append(None)
    return {"refused": refused}


paying = Workflow("paying-apart")


@paying.step(isolate=True)
def pay(ctx: Any) -> dict[str, Any]:
    """Pay for one call; another one would be too dear."""
    with ctx.reserve(cost="0.40") as held:
        held.settle(cost="0.30")
    with ctx.reserve(cost="0.40"):
        pass
    try:
        ctx.reserve(cost="0.80")
    except LimitReached as error:
        return {"refused": error.reason}
    return {}
