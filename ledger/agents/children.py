"""Sub-agents: a tool whose call is a child task, and whose result is what that came to.

The call ends the unit; its output, the children and the wait are one commit, so a lost worker makes
none twice. They hold no worker of their parent's, and what they may spend is a part of its limits.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from pydantic_ai import ModelRetry, ToolReturn
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.tools import DeferredToolResults, Tool

from ledger import queries
from ledger.errors import InvalidInput
from ledger.models import Task
from ledger.outcomes import Child, Fail, Spawn
from ledger.states import COMPLETED
from ledger.transitions.children import is_deepest
from ledger.workflows import Limits, Workflow

if TYPE_CHECKING:
    from ledger.context import Context

CHILD = "longwatch_child"
"""In a tool's metadata: the _Maker of its calls."""

MOST = 50
"""Children that one answer of the model makes; further calls fail, and the model may make them
later."""

MAX_NAME = 64
"""Characters of a tool's name, by OpenAI's rule."""

MAX_RESULT = 100_000
"""Characters of a child's result that the model is given."""

ANY_OBJECT = {"type": "object", "additionalProperties": True}


def child_task(
    workflow: Workflow | str,
    description: str,
    *,
    name: str = "",
    input: type[BaseModel] | None = None,
    limits: Limits | None = None,
) -> Tool[Any]:
    """A tool for an agent of `agent_step`: each call is a child task of `workflow`, its arguments
    are the input, and it returns the task's result: `Agent(…, tools=[child_task(research, "…")])`.

    `description` is for the model; the tool has the workflow's name unless `name` gives another.
    Its arguments are those of the workflow's input model, or of `input`. `limits` bound each child
    within what the parent has left. The calls of one answer run side by side. Raises ValueError.
    """
    if not isinstance(workflow, Workflow | str):
        raise ValueError(f"child_task: {workflow!r} is neither a workflow nor the name of one")
    called = workflow if isinstance(workflow, str) else workflow.name
    model = input if input is not None or isinstance(workflow, str) else workflow.input
    tool: Tool[Any] = Tool.from_schema(
        _refuse, name or re.sub(r"[^A-Za-z0-9_-]", "_", called)[:MAX_NAME], description,
        ANY_OBJECT if model is None else model.model_json_schema(),
    )  # fmt: skip
    version = None if isinstance(workflow, str) else workflow.version
    given = None if limits is None else limits.list_given()
    tool.metadata = {CHILD: _Maker(called, version, given)}
    return tool


def _refuse(**_: Any) -> None:
    raise TypeError("child_task: only an agent of agent_step can have child tasks")


@dataclasses.dataclass(frozen=True)
class _Maker:
    """What the children of one tool have in common."""

    workflow: str
    version: str | None
    limits: Mapping[str, Any] | None

    def describe(self, ctx: Context, tool: str, args: dict[str, Any]) -> dict[str, Any]:
        """The child that a call asks for, as JSON for `Child`. Raises ModelRetry for arguments that
        are no input of its workflow, and ToolFailed below too many generations."""
        found = ctx._read(lambda: queries.find_workflow(self.workflow, self.version))
        try:
            found.clean_input(args)
        except InvalidInput as error:
            raise ModelRetry(str(error)) from None
        if ctx._read(lambda: is_deepest(Task.objects.get(pk=ctx.task_id))):
            raise ToolFailed("This task is too deep below others to have child tasks: do it here.")
        return {"workflow": self.workflow, "version": self.version, "input": args, "title": tool,
                "limits": self.limits}  # fmt: skip


def make_children(calls: Sequence[Mapping[str, Any]], data: dict[str, Any]) -> Spawn:
    """The wait for the children of these calls, which leads to this step again."""
    tasks = [Child(**call["child"]) for call in calls]
    return Spawn(tasks, then="again", max_failed=len(tasks), data=data)


def read_children(
    ctx: Context, calls: Sequence[Mapping[str, Any]]
) -> tuple[DeferredToolResults, list[dict[str, Any]]]:
    """What came of the children of these calls: for pydantic-ai, and for the transcript."""
    if len(ctx.children) != len(calls):
        raise Fail("children_gone", "The tasks that the agent waited for are no longer there.")
    results, told = DeferredToolResults(), []
    for call, child in zip(calls, ctx.children, strict=True):
        results.calls[call["id"]] = _read_child(child)
        told.append({
            "id": call["id"], "tool": call["tool"], "task": child["id"],
            "workflow": child["workflow"], "status": child["status"],
        })  # fmt: skip
    return results, told


def _read_child(child: dict[str, Any]) -> ToolReturn | ToolFailed:
    if child["status"] == COMPLETED:
        size = len(json.dumps(child["result"], ensure_ascii=False))
        if size > MAX_RESULT:
            text = json.dumps(child["result"], ensure_ascii=False)[:MAX_RESULT]
            return ToolReturn(f"{text}… (cut: {size} characters, all of it in task {child['id']})")
        return ToolReturn(child["result"])
    error = child["error"] or {}
    why = ": ".join(part for part in (child["status_reason"], error.get("message")) if part)
    return ToolFailed(f"Task {child['id']} has not done it: {child['status']} ({why}).")
