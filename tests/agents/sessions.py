"""A scripted session of an agent with kits: each call made, and what came back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ledger.agents import file_tools
from ledger.models import Task
from ledger.testing import run
from ledger.workflows import Workflow
from ledger.workspaces import read_manifest
from tests.agents.kit import list_parts, make_agent, make_flow
from tests.agents.model_server import ModelServer, Reply, count_answers

type Calls = list[tuple[str, dict[str, Any]]]


def play(
    calls: Calls, *, kits: Any = None, fill: Callable[[Path], object] = lambda root: None,
    turns: bool = False, faults: Any = None, **options: Any,
) -> tuple[list[str], Any]:  # fmt: skip
    """What each call returned, all made in one turn or each in its own, and the ended run."""

    def answer(body: dict[str, Any]) -> Reply:
        turn = count_answers(body)
        now = calls[turn : turn + 1] if turns else calls[: None if turn == 0 else 0]
        return Reply(calls=now) if now else Reply("done")

    with ModelServer(answer) as server:
        kits = [file_tools(write=["*"])] if kits is None else kits
        answers = options.pop("answers", None)
        look = make_flow(make_agent(server), kits=kits, **options)
        flow = Workflow("files", self_approval=True)
        flow.step(lambda ctx: fill(ctx.workspace) and None, name="fill")
        flow.step(look.steps[0].fn, name="look")
        ended = run(flow, faults=faults, answers=answers)
    assert ended.status == "completed", ended.task["error"]
    parts = [one for one in list_parts(ended.id) if one["part_kind"] == "tool-return"]
    return [str(part["content"]) for part in parts], ended


def read_tree(ended: Any) -> dict[str, Any]:
    """What is kept of the task's files: size or mode by the path, of files alone."""
    tree = read_manifest(Task.objects.get(pk=ended.id).workspace)
    return {path: (one.digest, one.mode) for path, one in tree.items() if one.kind == "file"}
