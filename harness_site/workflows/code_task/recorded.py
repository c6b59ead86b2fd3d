"""A model that says what a file has: sessions of turns, for machines that have no model.

It has no state. What it answers follows from what it is asked alone: the session by its opening
words, the turn by how many answers the request carries. So any worker can go on with it, as with a
real one. It shows that the harness works; it says nothing of what an agent can do.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

EXAMPLE = Path(__file__).parent / "example.json"


class RecordingError(Exception):
    """The recording can't be read, or has no answer for what it is asked."""


class Call(BaseModel):
    """One call of a tool."""

    model_config = ConfigDict(extra="forbid")

    tool: str
    args: dict[str, Any] = {}


class Turn(BaseModel):
    """One answer: text, calls, or both. `after` is a text that the request must end with somewhere
    in its last message: another course than the recorded one shows there."""

    model_config = ConfigDict(extra="forbid")

    after: str = ""
    say: str = ""
    calls: list[Call] = []
    tokens: tuple[int, int] = (1_000, 100)


class Session(BaseModel):
    """The answers to a session whose opening message has all of these texts in it."""

    model_config = ConfigDict(extra="forbid")

    when: list[str]
    turns: Annotated[list[Turn], Field(min_length=1)]


class Recording(BaseModel):
    """What a model has said. The bundled one brings the files and the goal that it is about."""

    model_config = ConfigDict(extra="forbid")

    goal: str = ""
    files: dict[str, str] = {}
    sessions: Annotated[list[Session], Field(min_length=1)]

    def choose_turn(self, opening: str, answered: int, last: str) -> Turn:
        """The answer to a request: of the last session that its opening fits, the turn after so
        many answers; `last` is the request's last message. Raises RecordingError."""
        fit = [one for one in self.sessions if all(text in opening for text in one.when)]
        if not fit:
            raise RecordingError(f"the recording knows no session that opens with {opening[:200]}")
        turns = fit[-1].turns
        if answered >= len(turns):
            raise RecordingError(f"the recording has {len(turns)} answers, not {answered + 1}")
        if turns[answered].after not in last:
            raise RecordingError(
                f"the recording's answer {answered + 1} is to a message with "
                f"{turns[answered].after!r} in it, not to: {last[-300:]}"
            )
        return turns[answered]


def read_recording(file: Path) -> Recording:
    """The recording in a file. Raises RecordingError."""
    try:
        return Recording.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        raise RecordingError(f"the recording {file} can't be read: {error}") from error


def make_recorded_model(file: Path) -> Any:
    """The model, for pydantic-ai. It costs nothing. Raises RecordingError."""
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel
    from pydantic_ai.usage import RequestUsage

    recording = read_recording(file)

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        count = sum(isinstance(one, ModelResponse) for one in messages)
        turn = recording.choose_turn(_tell(messages[:1]), count, _tell(messages[-1:]))
        calls = [
            ToolCallPart(call.tool, call.args, f"call-{count}-{n}")
            for n, call in enumerate(turn.calls)
        ]
        given, made = turn.tokens
        return ModelResponse(
            parts=[*([TextPart(turn.say)] if turn.say else []), *calls],
            usage=RequestUsage(input_tokens=given, output_tokens=made),
        )

    return FunctionModel(answer, model_name="recorded")


def _tell(messages: Sequence[Any]) -> str:
    """The texts of messages."""
    parts = [getattr(part, "content", "") for one in messages for part in one.parts]
    return "\n".join(part if isinstance(part, str) else json.dumps(part) for part in parts)
