"""Copies and edits by an operator, and tasks that go on in this process."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from ledger.models import StepOutput, Task
from ledger.runner import Engine, run_attempt
from ledger.testing import Ended, _describe, _OwnLane
from ledger.transitions.forks import fork_task
from ledger.transitions.outputs import edit_output
from ledger.workflows import Workflow
from tests.factories import OPERATOR

BIG = "x" * 70_000
"""Too large for a row: stored as a value of its own."""


def go_on(task_id: UUID, workflow: Workflow) -> Ended:
    """Run a task until nothing is queued."""
    task = Task.objects.get(pk=task_id)
    engine = Engine("testing:1:go-on")
    engine.picker = _OwnLane(task.lane)
    held = engine.claim()
    while held is not None:
        held = run_attempt(engine, held)
    return _describe(task_id)


def fork(task_id: Any, from_step: Any, **more: Any) -> Task:
    """A copy by the operator."""
    return fork_task(task_id, from_step=from_step, actor=OPERATOR, **more)[0]


def edit(task_id: Any, seq: int, output: Any = None, **more: Any) -> Task:
    """The task after the operator's edit."""
    given = {"output": {"plan": "good"} if output is None else output, "reason": "it was bad"}
    edit_output(task_id, seq, actor=OPERATOR, **(given | more))
    return Task.objects.get(pk=task_id)


def find_seq(task_id: Any, step: str, turn: int = 0) -> int:
    """The number of a live output."""
    live = StepOutput.objects.filter(task=task_id, superseded_in_round__isnull=True)
    return live.get(step_name=step, turn=turn).seq
