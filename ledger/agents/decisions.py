"""What the rules forbade, and an agent that goes in circles, among the task's events. What they
allowed stands in the unit's output, and what people were asked is an approval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ledger.canonical import clean_text
from ledger.circles import TIMES, find_circles
from ledger.durability import insist_on
from ledger.events import Actor, record_event
from ledger.models import Event
from ledger.transitions.moves import lock_held, update_row

if TYPE_CHECKING:
    from ledger.context import Context

LONGEST = 500
"""Characters of a reason."""


def record_denial(ctx: Context, tool: str, call: str, reason: str) -> None:
    """Put it down."""
    _record_call(ctx, "tool_denied", tool=tool, call=call, reason=clean_text(reason, LONGEST))


def record_circle(ctx: Context, turns: Sequence[tuple[int, Sequence[Any]]]) -> None:
    """Put down the circle that the last of these turns closes, if it does: each once."""
    for one in find_circles(turns):
        if one.before < TIMES:
            _record_call(
                ctx, "circling", tool=one.tool, call=one.call, times=one.times, failed=one.failed
            )
            return


def _record_call(ctx: Context, kind: str, *, call: str, **data: Any) -> None:
    """The event, once for a call of this unit, whichever attempt it is."""
    held = ctx._claimed

    def record() -> None:
        with lock_held(held.lease, kind) as (task, now):
            known = Event.objects.filter(
                task=task, kind=kind, step=held.step_name, turn=held.turn, data__call=call,
                data__round=ctx.round,
            )  # fmt: skip
            if not known.exists():
                record_event(
                    task, kind, Actor("worker", held.owner), now, call=call, round=ctx.round,
                    **data,
                )  # fmt: skip
                update_row(task, {})

    with ctx._write("agent_step"):
        insist_on(record, ctx.check)
