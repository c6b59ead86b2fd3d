"""One unit of an agent on record: what the model said, and what came of each tool call.

A hook of pydantic-ai's, made for one attempt. A model's answer is stored before any of its tools
runs, a call's intent before the call: the attempt after a lost one asks and calls nothing twice.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import hashlib
import inspect
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pydantic_ai import RunContext, ToolReturn
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import (
    ApprovalRequired,
    CallDeferred,
    ModelRetry,
    ToolFailed,
    ToolFailedError,
    ToolRetryError,
)
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.tools import DeferredToolRequests, ToolDefinition, ToolDenied
from pydantic_core import to_jsonable_python

from ledger.agents.children import CHILD, MOST
from ledger.agents.decisions import record_denial
from ledger.agents.history import DEEPEST, dump_messages, load_messages
from ledger.agents.requests import Request
from ledger.agents.rules import Policy, Rule, Tool
from ledger.canonical import clean_json
from ledger.conf import load
from ledger.errors import OutOfScope
from ledger.models.effects import DONE
from ledger.outcomes import Fail
from ledger.queries.effects import UNKNOWN

if TYPE_CHECKING:
    from ledger.context import Context

FILES_LOST = (
    "The worker was lost after that call. What came of it outside stands; what it changed in the "
    "workspace is gone, as if it had not been made."
)

UNFIT = (
    "The arguments hold NUL, half a surrogate pair or NaN, or are nested too deep. Make the call "
    "without."
)

STRICTNESS = ("allow", "ask", "deny")

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,60}")
_KINDS = {"returned", "retry", "failed"}
_key: contextvars.ContextVar[str] = contextvars.ContextVar("longwatch_call_key")
_unit: contextvars.ContextVar[Context] = contextvars.ContextVar("longwatch_call_unit")


def call_key() -> str:
    """Inside a tool: the idempotency key of this very call, for the service that it calls.

    The same at every attempt of the unit. Raises LookupError outside of an agent step.
    """
    return _key.get()


def find_unit() -> Context:
    """Inside a tool: the `ctx` of its unit, whatever the agent's deps are. Raises LookupError."""
    return _unit.get()


@contextlib.contextmanager
def _acting(ctx: Context, key: str) -> Iterator[None]:
    tokens = _key.set(key), _unit.set(ctx)
    try:
        yield
    finally:
        _key.reset(tokens[0])
        _unit.reset(tokens[1])


class Waiting(BaseException):
    """People, or child tasks, have to answer before the agent goes on. Passes through pydantic-ai,
    which knows no other way to end a run whose output type its author chose."""

    def __init__(self, calls: list[dict[str, Any]]) -> None:
        self.calls = calls


class Recorder(AbstractCapability[Any]):
    """The hooks of one attempt."""

    def __init__(
        self,
        ctx: Context,
        policy: Policy,
        records: dict[str, Any],
        *,
        unpriced: str,
        output_tokens: int,
    ) -> None:
        self.ctx = ctx
        self.policy = policy
        self.request = Request(ctx, records, unpriced=unpriced, output_tokens=output_tokens)
        self.asked = False
        """Whether the model has answered in this unit, now or in an earlier attempt."""
        self.calls: list[dict[str, Any]] = []
        """What was decided of each call."""
        self._children = 0

    # --- The model --------------------------------------------------------------------------------

    async def wrap_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, handler: Any
    ) -> ModelResponse:
        """The stored answer, or the model's, which is then stored and paid."""
        if self.request.stored is None:
            for native in request_context.model_request_parameters.native_tools:
                self._require_native(native.kind)
            with self.request.asking(request_context):
                response = name_calls(await handler(request_context), ctx.messages)
            opening = dump_messages(ctx.messages) if len(ctx.messages) == 1 else None
            self.request.keep(response, request_context, opening=opening)
        self.asked = True
        return self.request.read()

    def _require_native(self, name: str) -> None:
        """Raise Fail for a tool that the provider would run by itself, against the rules."""
        rule = self.policy.find(name).rules[:1]
        try:
            self.ctx.allow_tool(name)
        except OutOfScope as error:
            raise Fail("provider_tool", str(error)) from None
        if [(one.decision, one.when) for one in rule] != [("allow", None)]:
            raise Fail(
                "provider_tool",
                f"The provider runs {name} by itself, so its calls can't be judged: allow() it in "
                "tools= without a condition, or take it from the agent.",
            )

    @property
    def stored(self) -> dict[str, Any] | None:
        """What is on record of the model's answer."""
        return self.request.stored

    def spoil(self, error: Exception) -> None:
        """Put on record that the answer led to nothing but this error."""
        if self.asked:
            self.request.spoil(error)

    # --- Tools ------------------------------------------------------------------------------------

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any,
        handler: Any,
    ) -> Any:  # fmt: skip
        """What the rules say of the call; made, it is on record."""
        given = call.args_as_dict()
        if clean_json(given, DEEPEST) != given:
            raise ModelRetry(UNFIT)
        tool = self.policy.find(call.tool_name)
        rule = self._judge(tool, call.tool_name, list_readings(given, args, tool_def))
        decision = (
            "approved" if rule.decision == "ask" and ctx.tool_call_approved else rule.decision
        )
        note = {"id": call.tool_call_id, "tool": call.tool_name, "decision": decision}
        self.calls.append(note | ({"reason": rule.reason} if rule.reason else {}))
        if decision == "deny":
            record_denial(self.ctx, call.tool_name, call.tool_call_id, rule.reason)
            why = f": {rule.reason.rstrip('.')}" if rule.reason else ""
            return ToolDenied(f"This call is not allowed{why}.")
        if decision == "ask":
            raise ApprovalRequired({
                "reason": rule.reason, "caution": tool.caution() if tool.caution else "",
                "risk": rule.risk, "money": rule.money,
                "assignees": list(rule.assignees), "expires": rule.expires,
                "schema": tool_def.parameters_json_schema,
            })  # fmt: skip
        if (maker := (tool_def.metadata or {}).get(CHILD)) is not None:
            if self._children == MOST:
                raise ToolFailed(f"{MOST} child tasks at once are the most; make this call again.")
            self._children += 1
            raise CallDeferred({"child": maker.describe(self.ctx, call.tool_name, given)})
        if tool.local:
            with _acting(self.ctx, self.ctx.idempotency_key(name_effect(call))):
                return await handler(args)
        return await self._call_once(tool, call, given, lambda: handler(args))

    def _judge(self, tool: Tool, name: str, readings: list[dict[str, Any]]) -> Rule:
        try:
            self.ctx.allow_tool(name)
        except OutOfScope as error:
            return Rule("deny", reason=str(error))
        return max(map(tool.judge, readings), key=lambda rule: STRICTNESS.index(rule.decision))

    async def _call_once(
        self, tool: Tool, call: ToolCallPart, args: dict[str, Any], make: Any
    ) -> Any:
        name = name_effect(call)
        key = self.ctx.idempotency_key(name)
        begun = self.ctx._begin_effect(name, _fit_args(call.tool_name, args))
        if begun["state"] == DONE:
            found = _read_result(call, begun["result"])
            return ToolReturn(found, content=FILES_LOST) if tool.writes else found
        if begun["state"] == UNKNOWN and not tool.idempotent:
            if tool.verify is None:
                raise CallDeferred({"unknown": name, "turn": self.ctx.turn})
            found = tool.verify(args, key)
            found = await found if inspect.isawaitable(found) else found
            if found is not None and found is not False:
                return _read_result(call, self.ctx._finish_effect(name, _write_result(call, found)))
        try:
            with _acting(self.ctx, key):
                result = _write_result(call, await make())
        except (ToolRetryError, ModelRetry) as error:
            self.ctx._finish_effect(name, {"retry": _read_message(error)})
            raise
        except (ToolFailedError, ToolFailed) as error:
            self.ctx._finish_effect(name, {"failed": _read_message(error)})
            raise
        return _read_result(call, self.ctx._finish_effect(name, result))

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[Any], *, requests: DeferredToolRequests
    ) -> NoReturn:
        """End the run: the calls that are left wait for people and child tasks."""
        waiting = []
        for call in [*requests.approvals, *requests.calls]:
            told = requests.metadata.get(call.tool_call_id) or {}
            if call in requests.calls and not told.keys() & {"unknown", "child"}:
                raise TypeError(f"{call.tool_name} is run outside of the agent, which no step can")
            about = {"id": call.tool_call_id, "tool": call.tool_name, "args": call.args_as_dict()}
            waiting.append(about | told)
        raise Waiting(waiting)


def name_calls(response: ModelResponse, before: Sequence[ModelMessage]) -> ModelResponse:
    """The answer with an id of its own for each call. There are providers that begin anew with
    every answer, or leave all the same; a result finds its call by it."""
    known = {part.tool_call_id for one in before for part in one.parts
             if isinstance(part, ToolCallPart)}  # fmt: skip
    parts: list[Any] = []
    for part in response.parts:
        if isinstance(part, ToolCallPart):
            plain = clean_json(part.tool_call_id)
            ids = itertools.chain([plain], (f"{plain}-{n}" for n in itertools.count(2)))
            part = dataclasses.replace(part, tool_call_id=next(i for i in ids if i not in known))
            known.add(part.tool_call_id)
        parts.append(part)
    return dataclasses.replace(response, parts=parts)


def list_readings(given: dict[str, Any], args: Any, about: ToolDefinition) -> list[dict[str, Any]]:
    """The arguments that the rules must let pass: as the tool gets them, where "500" is 500 and
    what was left out has its default, and as the model wrote them."""
    meant = to_jsonable_python(args, serialize_unknown=True)
    named = about.parameters_json_schema.get("properties")
    if len(meant) == 1 and named is not None:
        ((name, inner),) = meant.items()
        if isinstance(inner, dict) and name not in named:
            meant = inner  # the only argument is a model, which is written without its name
    return [meant, given]


def name_effect(call: ToolCallPart) -> str:
    """The name of a call's effect: `tool.NAME.ID`, or by a digest where a model's id is no name."""
    raw = f"{call.tool_name}.{call.tool_call_id}"
    if _NAME.fullmatch(call.tool_call_id) and len(raw) <= 95 and _NAME.match(call.tool_name):
        return f"tool.{raw}"
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", call.tool_name)[:50]
    return f"tool.{plain}.{hashlib.sha256(raw.encode(errors='replace')).hexdigest()[:32]}"


def _fit_args(tool: str, args: dict[str, Any]) -> dict[str, Any]:
    """What must not differ between attempts; long arguments by their digest."""
    text = json.dumps(args, sort_keys=True)
    if len(text) < load().inline_output_bytes // 2:
        return {"tool": tool, "args": args}
    return {"tool": tool, "sha256": hashlib.sha256(text.encode()).hexdigest(), "size": len(text)}


def _write_result(call: ToolCallPart, value: Any) -> dict[str, Any]:
    """What a tool returned as JSON, by pydantic-ai's own rules for messages."""
    rich = value if isinstance(value, ToolReturn) else ToolReturn(return_value=value)
    part = ToolReturnPart(
        call.tool_name, rich.return_value, call.tool_call_id, metadata=rich.metadata
    )
    parts: list[Any] = [part, *([UserPromptPart(rich.content)] if rich.content else [])]
    dumped = dump_messages([ModelRequest(parts=parts)])[0]["parts"]
    found = {"returned": dumped[0]["content"]}
    if rich.content or rich.metadata is not None:
        found |= {
            "metadata": dumped[0]["metadata"],
            "content": [one["content"] for one in dumped[1:]],
        }
    return found


def _read_result(call: ToolCallPart, stored: Any) -> Any:
    """The stored result as the tool would have given it. Raises ModelRetry and ToolFailed."""
    if not isinstance(stored, dict) or len(_KINDS & stored.keys()) != 1:
        return stored  # a person's word
    if "retry" in stored:
        raise ModelRetry(stored["retry"])
    if "failed" in stored:
        raise ToolFailed(stored["failed"])
    about = {"tool_name": call.tool_name, "tool_call_id": call.tool_call_id}
    parts = [{"part_kind": "tool-return", "content": stored["returned"], **about}]
    parts += [{"part_kind": "user-prompt", "content": one} for one in stored.get("content", ())]
    found: list[Any] = list(load_messages([{"kind": "request", "parts": parts}])[0].parts)
    if "metadata" not in stored:
        return found[0].content
    content = found[1].content if found[1:] else None
    return ToolReturn(found[0].content, content=content, metadata=stored["metadata"])


def _read_message(error: Any) -> str:
    part = getattr(error, "tool_retry", None) or getattr(error, "tool_failed", None)
    if part is None:
        return str(error.message)
    return part.content if isinstance(part.content, str) else json.dumps(part.content, default=str)
