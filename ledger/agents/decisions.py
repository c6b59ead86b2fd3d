"""What the rules forbade, among the task's events. What they allowed stands in the unit's output,
and what people were asked is an approval."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.canonical import clean_text
from ledger.durability import insist_on
from ledger.events import Actor, record_event
from ledger.models import Event
from ledger.transitions.moves import lock_held, update_row

if TYPE_CHECKING:
    from ledger.context import Context

LONGEST = 500
"""Characters of a reason."""


def record_denial(ctx: Context, tool: str, call: str, reason: str) -> None:
    """Put the event down, once for a call of this unit, whichever attempt it is."""
    held = ctx._claimed

    def record() -> None:
        with lock_held(held.lease, "denial") as (task, now):
            known = Event.objects.filter(
                task=task, kind="tool_denied", step=held.step_name, turn=held.turn,
                data__call=call, data__round=ctx.round,
            )  # fmt: skip
            if not known.exists():
                record_event(
                    task, "tool_denied", Actor("worker", held.owner), now, tool=tool, call=call,
                    reason=clean_text(reason, LONGEST), round=ctx.round,
                )  # fmt: skip
                update_row(task, {})

    with ctx._write("agent_step"):
        insist_on(record, ctx.check)
