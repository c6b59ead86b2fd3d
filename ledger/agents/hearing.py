"""Messages of people: how a unit that asks its model gets them, and how the model is told."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic_ai.messages import ModelMessage, ModelRequest, UserPromptPart

from ledger.durability import insist_on
from ledger.transitions.mailbox import list_pending
from ledger.transitions.steering import HEARD, take_messages

if TYPE_CHECKING:
    from ledger.context import Context


def hear_messages(ctx: Context, records: Mapping[str, Any], *, asks: bool) -> list[dict[str, Any]]:
    """What the model is told in this unit: what an earlier attempt took, else, if this one is about
    to ask the model (`asks`), all that waits."""
    if HEARD in records or not asks or not are_waiting(ctx):
        return list(records.get(HEARD, ()))
    with ctx._write("agent_step"):
        return insist_on(lambda: take_messages(ctx._claimed), ctx.check)


def are_waiting(ctx: Context) -> bool:
    """Whether somebody has a message for the agent that it has not got."""
    return ctx._read(lambda: list_pending(ctx.task_id).exists())


def write_message(one: Mapping[str, Any]) -> str:
    """A message as the model gets it."""
    return f"A person who watches this task says:\n\n{one['text']}"


def make_request(heard: Sequence[Mapping[str, Any]]) -> list[ModelMessage]:
    """The messages as what a request ends with; none for none."""
    parts = [
        UserPromptPart(write_message(one), timestamp=dt.datetime.fromisoformat(one["at"]))
        for one in heard
    ]
    return [ModelRequest(parts=parts)] if parts else []
