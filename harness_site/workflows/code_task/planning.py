"""The plan of a `code-task`: items that the agent ticks off."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from ledger.context import Context
from ledger.durability import write_blocking
from ledger.models import Effect
from ledger.models.effects import DONE

TICK = "tick_item"
"""The tool that ticks an item off."""


class Plan(BaseModel):
    """The plan, as the model gives it."""

    items: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=300)]],
        Field(min_length=1, max_length=20, description="What is to be done, in order."),
    ]


def list_items(ctx: Context) -> list[str]:
    """The items of the plan."""
    return list(ctx.progress["plan"]["items"])


def list_ticked(ctx: Context) -> list[int]:
    """The numbers, from 1, of the items that are ticked off: in rounds before this one, and by the
    calls of this one, whose records are the only place where that stands."""
    rows = Effect.objects.filter(
        task=ctx.task_id, round=ctx.round, status=DONE, name__startswith=f"tool.{TICK}."
    )
    with write_blocking():
        calls = list(rows.values_list("args", "result"))
    made = {args["args"]["number"] for args, got in calls if args and got and "returned" in got}
    return sorted(made.union(ctx.progress.get("ticked", ())))


def show_plan(ctx: Context) -> str:
    """The plan in Markdown, numbered, each item with its mark."""
    done = list_ticked(ctx)
    return "\n".join(
        f"{n}. [{'x' if n in done else ' '}] {' '.join(item.split())}"
        for n, item in enumerate(list_items(ctx), 1)
    )


def report_progress(ctx: Context, ticked: list[int]) -> str:
    """Show how many items are done, and say so."""
    items = list_items(ctx)
    said = f"{len(ticked)} of {len(items)} items"
    ctx.report(len(ticked), len(items), said)
    return said
