"""A submitted and claimed task for tests of what a holder does."""

from __future__ import annotations

from typing import Any

from ledger import sql
from ledger.context import Context
from ledger.events import Actor
from ledger.sql import Claimed
from ledger.transitions.submit import submit_task
from ledger.workflows import Workflow

OWNER = "test-host:1:boot"


class Calm:
    """Signals of an attempt that nobody wants to end."""

    cancel = lost = stop = False


def make_workflow(*names: str, **options: Any) -> Workflow:
    """A workflow of steps that do nothing."""
    workflow = Workflow("held", **options)
    for name in names or ("one", "two"):
        workflow.step(lambda ctx: None, name=name)
    return workflow


def claim_new(workflow: Workflow, input: Any = None, owner: str = OWNER, **options: Any) -> Claimed:
    """Submit a task and claim it."""
    task, _ = submit_task(
        workflow=workflow, input=input or {}, actor=Actor("cli", "test"), **options
    )
    return claim(workflow, owner, task.id)


def claim(workflow: Workflow, owner: str = OWNER, task_id: Any = None) -> Claimed:
    """Claim the task at the head of the workflow's queue."""
    held = sql.claim_task(owner, [("default", workflow.name, workflow.version)], 60.0)
    assert held is not None
    assert task_id is None or held.task_id == task_id
    return held


def make_context(held: Claimed, workflow: Workflow, signals: Any = Calm) -> Context:
    """The ctx of the claimed unit."""
    step = workflow.steps[workflow.index_of(held.step_name)]
    return Context(held, workflow, step, signals)
