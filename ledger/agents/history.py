"""An agent's messages as the ledger keeps them: each unit's new ones stand in its own output.

So nothing is ever rewritten, a restart supersedes what it takes back, and the history of a turn is
what the live outputs of its session add up to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    RetryFeedbackPart,
    ToolCallPart,
    ToolReturnPart,
)

from ledger import artifacts, transcripts
from ledger.models import Effect, StepOutput
from ledger.models.effects import DONE
from ledger.queries.effects import OWN

if TYPE_CHECKING:
    from ledger.context import Context

KEY = transcripts.KEY
"""In a unit's output: what this module writes. The agent's answer stands under the step's name."""

SHOWN = 4_000
"""Characters of each result that a new session is told of the turn before it."""


@dataclasses.dataclass
class Past:
    """What the units before this one left. `turn` is that of the last one, -1 before the first."""

    messages: list[ModelMessage] = dataclasses.field(default_factory=list)
    session: int = 0
    began: int = 0
    """The turn at which the session began."""
    open: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """Calls that wait: for people, in the order in which they are asked about, and (those with
    `child`) for child tasks."""
    answers: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What people said of the first of them, by the call's id."""
    stuck: int = 0
    """Turns in a row in which nothing came back but errors."""


def dump_messages(messages: Sequence[ModelMessage]) -> list[Any]:
    """Messages as JSON."""
    dumped: list[Any] = ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")
    return dumped


def load_messages(stored: Any) -> list[ModelMessage]:
    """Messages from their JSON."""
    return ModelMessagesTypeAdapter.validate_python(stored)


def read_past(ctx: Context) -> Past:
    """The present session, from the live outputs of this step."""
    last = ctx._read(lambda: _read_turns(ctx, {"turn": ctx.turn - 1}))
    if not last:
        return Past()
    told = last[0]
    rows = ctx._read(lambda: _read_turns(ctx, {"turn__gte": told["began"]}))
    stored = [message for row in rows for message in row["messages"]]
    return Past(
        messages=load_messages(stored), session=told["session"], began=told["began"],
        open=told["open"], answers=told["answers"], stuck=told["stuck"],
    )  # fmt: skip


def _read_turns(ctx: Context, which: dict[str, int]) -> list[dict[str, Any]]:
    rows = StepOutput.objects.filter(
        task=ctx.task_id, step_name=ctx.step, superseded_in_round__isnull=True, **which
    )
    outputs = rows.order_by("turn").values_list("output", flat=True)
    return [artifacts.resolve(one, ctx.task_id)[KEY] for one in outputs]


def read_records(ctx: Context) -> dict[str, Any]:
    """What earlier attempts at this unit finished of the agent's own effects, by name."""

    def read() -> dict[str, Any]:
        rows = Effect.objects.filter(
            task=ctx.task_id, step=ctx.step, turn=ctx.turn, round=ctx.round, status=DONE,
            name__startswith=OWN,
        )  # fmt: skip
        return {row.name: artifacts.resolve(row.result, ctx.task_id) for row in rows}

    return ctx._read(read)


def list_new_parts(messages: Sequence[ModelMessage], known: Sequence[ModelMessage]) -> list[Any]:
    """The parts of requests after the model's last answer that are not in `known`: what this unit's
    tools returned."""
    answered = {
        part.tool_call_id
        for one in known if isinstance(one, ModelRequest)
        for part in one.parts if isinstance(part, ToolReturnPart)
    }  # fmt: skip
    parts: list[Any] = []
    for one in reversed(messages):
        if not isinstance(one, ModelRequest):
            break
        parts[:0] = [
            part for part in one.parts if getattr(part, "tool_call_id", None) not in answered
        ]
    return parts


def holds_errors_only(parts: Sequence[Any]) -> bool:
    """True when nothing but complaints to the model came back."""
    return bool(parts) and all(
        isinstance(part, RetryFeedbackPart)
        or (isinstance(part, ToolReturnPart) and part.outcome in {"retried", "failed"})
        for part in parts
    )


def tell_last_turn(messages: Sequence[ModelMessage]) -> str:
    """The last answer and what its tools returned, for a session that begins after it."""
    found = [n for n, one in enumerate(messages) if isinstance(one, ModelResponse)]
    if not found:
        return ""
    lines = ["## The last turn before this session", ""]
    for message in messages[found[-1] :]:
        for part in message.parts:
            if isinstance(part, ToolCallPart):
                lines.append(f"- called {part.tool_name}({part.args_as_json_str():.{SHOWN}})")
            elif isinstance(part, ToolReturnPart):
                lines.append(f"- {part.tool_name}: {part.model_response_str():.{SHOWN}}")
            elif isinstance(content := getattr(part, "content", None), str) and content:
                lines.append(f"- said {content:.{SHOWN}}")
    return "\n".join(lines) + "\n"
