"""An agent's messages as the ledger keeps them: each unit's new ones stand in its own output.

So nothing is ever rewritten, a restart supersedes what it takes back, and the history of a turn is
what the live outputs of its session add up to.

In a unit's output KEY has its part of the transcript; the agent's answer stands under the step's
name. Always there: `session`, `began`, `since` (its first turns, see Past), `messages`, `calls`
(what was decided of each), `spent`, `open` (calls that wait; with `child` for a child task),
`answers`, `stuck`. Sometimes: `children` [{id, tool, task, workflow, status}], what calls (by their
id) came to as child tasks; `heard` [{id, by, at, text}], messages of people that it was told;
`compaction` {by, turns [first, last], name, artifact}, turns that are
no longer sent and the artifact that has them, `by` "handoff" in the first unit of a new session, or
"model" in a unit of its own, then with `text` (the summary), `since` and `opening`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    RetryFeedbackPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
)

from ledger import artifacts
from ledger.canonical import MAX_DEPTH, clean_json
from ledger.models import Effect, StepOutput
from ledger.models.effects import DONE
from ledger.queries.effects import OWN
from ledger.turns import KEY

if TYPE_CHECKING:
    from ledger.context import Context

SHOWN = 4_000
"""Characters of each message where a turn is told in lines."""

DEEPEST = MAX_DEPTH - 16
"""Levels of nesting that messages may have: they lie deep in the outputs and results that hold
them."""

SUMMARY = """## What came before in this session

Its older turns, summarised by a model; the turns themselves are no longer shown.

"""


@dataclasses.dataclass(frozen=True)
class Turn:
    """What one unit added to its session, without the session's opening message."""

    number: int
    messages: list[Any]
    """As JSON."""

    @property
    def opens(self) -> bool:
        """True where the model or a person speaks first: what was called has its result."""
        if not self.messages:
            return False
        first = self.messages[0]
        said = [part.get("part_kind") for part in first["parts"]]
        return first["kind"] == "response" or set(said) == {"user-prompt"}

    @property
    def size(self) -> int:
        """Bytes as JSON."""
        return len(json.dumps(self.messages, ensure_ascii=False).encode(errors="replace"))

    def load(self) -> list[ModelMessage]:
        """The messages."""
        return load_messages(self.messages)


@dataclasses.dataclass
class Past:
    """What the units before this one left of the present session."""

    opening: dict[str, Any] | None = None
    """The message that it began with, as JSON; None: it has not begun."""
    summary: str = ""
    """What stands for the turns between that and these."""
    turns: list[Turn] = dataclasses.field(default_factory=list)
    session: int = 0
    began: int = 0
    """The turn at which the session began."""
    since: int = 0
    """The first turn whose messages are sent as they are."""
    open: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """Calls that wait: for people, in the order in which they are asked about, and (those with
    `child`) for child tasks."""
    answers: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What people said of the first of them, by the call's id."""
    stuck: int = 0
    """Turns in a row in which nothing came back but errors."""

    @functools.cached_property
    def messages(self) -> list[ModelMessage]:
        """What is sent of it: the opening with the summary, if there is one, and the turns."""
        if self.opening is None:
            return []
        opening = self.opening
        if self.summary:
            first = opening["parts"][0]
            part = {**first, "part_kind": "user-prompt", "content": SUMMARY + self.summary}
            opening = {**opening, "parts": [*opening["parts"], part]}
        return load_messages([opening, *(one for turn in self.turns for one in turn.messages)])

    @property
    def size(self) -> int:
        """Its bytes, as JSON."""
        opening = len(json.dumps(self.opening)) if self.opening else 0
        return opening + len(self.summary) + sum(turn.size for turn in self.turns)


def dump_messages(messages: Sequence[ModelMessage]) -> list[Any]:
    """Messages as JSON that can be stored, whatever a model or a tool put into them."""
    dumped: list[Any] = ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")
    found: list[Any] = clean_json(dumped, DEEPEST)
    return found


def load_messages(stored: Any) -> list[ModelMessage]:
    """Messages from their JSON."""
    return ModelMessagesTypeAdapter.validate_python(stored)


def read_past(ctx: Context) -> Past:
    """The present session, from the live outputs of this step; a new one where an edit by a person
    has left nothing of it."""
    last = ctx._read(lambda: _read_turns(ctx, {"turn": ctx.turn - 1}))
    fresh = Past(session=ctx.turn, began=ctx.turn, since=ctx.turn)
    if not last:
        return fresh
    told = last[ctx.turn - 1]
    since = told.get("since", told["began"])
    rows = ctx._read(lambda: _read_turns(ctx, {"turn__gte": since}))
    messages = {turn: list(row["messages"]) for turn, row in rows.items()}
    summed = [one for row in rows.values() if (one := row.get("compaction") or {}).get("text")]
    if summed:
        opening, summary = summed[-1]["opening"], summed[-1]["text"]
    elif since in messages:
        opening, summary = messages[since].pop(0), ""
    else:
        return fresh
    return Past(
        opening=opening, summary=summary, session=told["session"], began=told["began"],
        turns=[Turn(turn, found) for turn, found in messages.items() if found], since=since,
        open=told["open"], answers=told["answers"], stuck=told["stuck"],
    )  # fmt: skip


def _read_turns(ctx: Context, which: dict[str, int]) -> dict[int, dict[str, Any]]:
    unit = ctx._claimed  # by the columns of the index too, however many turns there were
    rows = StepOutput.objects.filter(
        task=ctx.task_id, step_index=unit.step_index, step_name=ctx.step,
        superseded_in_round__isnull=True, **which,
    )  # fmt: skip
    outputs = rows.order_by("turn").values_list("turn", "output")
    found = {turn: artifacts.resolve(one, ctx.task_id) for turn, one in outputs}
    return {turn: one[KEY] for turn, one in found.items() if KEY in (one or ())}


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
    return f"## The last turn before this session\n\n{tell_messages(messages[found[-1] :])}\n"


def tell_messages(messages: Sequence[ModelMessage], most: int = SHOWN) -> str:
    """Messages as lines of text: what was said, called and returned, `most` characters of each, and
    nothing of what was thought."""
    lines = []
    for part in (part for message in messages for part in message.parts):
        if isinstance(part, ThinkingPart):
            continue
        if isinstance(part, ToolCallPart):
            lines.append(f"- called {part.tool_name}({part.args_as_json_str():.{most}})")
        elif isinstance(part, ToolReturnPart):
            lines.append(f"- {part.tool_name}: {part.model_response_str():.{most}}")
        elif isinstance(content := getattr(part, "content", None), str) and content:
            lines.append(f"- said {content:.{most}}")
    return "\n".join(lines)
