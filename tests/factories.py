"""Tasks in any state, brought there by the ledger itself, and leases that end at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ledger import clock, sql, states
from ledger.events import Actor
from ledger.models import Effect, Task
from ledger.sql import Claimed, Unit
from ledger.transitions import asking, children, holder, operators, waits
from ledger.transitions.submit import submit_task
from ledger.workflows import AskApproval, Child, Spawn, WaitFor, Workflow

CLIENT = Actor("cli", "tester")
OPERATOR = Actor("user", "1")
OWNER = "host:1:boot-1"
OTHER = "host:2:boot-2"
LEASE = 60.0


def make_workflow(name: str = "three", steps: int = 3, **options: Any) -> Workflow:
    """A workflow of `steps` steps named a, b, c … that return nothing of note."""
    workflow = Workflow(name, **options)
    for letter in "abcdefghij"[:steps]:
        workflow.step(lambda ctx: {ctx.step: True}, name=letter)
    return workflow


def submit(workflow: Workflow, **options: Any) -> Task:
    """A queued task of `workflow`."""
    task, _ = submit_task(
        workflow=workflow, input=options.pop("input", {}), actor=CLIENT, **options
    )
    return task


def claim(workflow: Workflow, owner: str = OWNER, lane: str = "default") -> Claimed:
    """The best queued task of the workflow, claimed by `owner`."""
    held = sql.claim_task(owner, [(lane, workflow.name, workflow.version)], LEASE)
    assert held is not None
    return held


def make_unit(held: Claimed, workflow: Workflow, **fields: Any) -> Unit:
    """The unit that advances `held` to its next step, or completes it on the last."""
    last = held.step_index + 1 >= len(workflow.steps)
    index = held.step_index if last else held.step_index + 1
    base: dict[str, Any] = {
        "output": '{"ok":true}', "progress": None, "next_index": index,
        "next_name": workflow.steps[index].name, "next_turn": held.turn if last else 0,
        "result": '{"ok":true}' if last else None,
    }  # fmt: skip
    return Unit(**(base | fields))


def attempt(kind: str = "Boom") -> holder.Attempt:
    """A failed attempt's record."""
    return holder.Attempt({"type": kind, "message": "it broke", "step": "a", "turn": 0})


def make_in(status: str, workflow: Workflow) -> Task:
    """A task in `status`."""
    task = submit(workflow)
    held = None
    if status not in {states.QUEUED, states.PAUSED, states.CANCELLED}:
        held = claim(workflow)
    assert held is not None or status in {states.QUEUED, states.PAUSED, states.CANCELLED}
    makers: dict[str, Callable[[], Any]] = {
        states.QUEUED: lambda: None,
        states.RUNNING: lambda: None,
        states.PAUSED: lambda: operators.pause_task(task.id, actor=OPERATOR),
        states.CANCELLED: lambda: operators.cancel_task(task.id, actor=OPERATOR),
        states.SCHEDULED: lambda: holder.record_failure(held, attempt(), retries=3, backoff=60),  # type: ignore[arg-type]
        states.FAILED: lambda: holder.fail_task(held, attempt()),  # type: ignore[arg-type]
        states.DEAD: lambda: holder.record_failure(held, attempt(), retries=0, backoff=1),  # type: ignore[arg-type]
        states.WAITING: lambda: ask(held, workflow),  # type: ignore[arg-type]
        states.COMPLETED: lambda: complete(held, workflow),  # type: ignore[arg-type]
    }
    makers[status]()
    task.refresh_from_db()
    assert task.status == status
    return task


def ask(held: Claimed, workflow: Workflow, **options: Any) -> Any:
    """The held task asks an approval."""
    unit = make_unit(held, workflow, result=None, next_index=held.step_index,
                     next_name=held.step_name, next_turn=held.turn)  # fmt: skip
    asked = AskApproval("Go on?", **options)
    attached = asking.describe_attached(held.task_id, asked)
    return asking.ask_approval(held, unit, asked, workflow, attached)


def wait_for(held: Claimed, workflow: Workflow, **options: Any) -> None:
    """The held task waits for the signal `go`."""
    last = held.step_index + 1 >= len(workflow.steps)
    unit = make_unit(held, workflow, result=None)
    waits.await_signal(held, unit, WaitFor("go", **options), last=last)


def spawn(held: Claimed, workflow: Workflow, count: int = 1, **options: Any) -> None:
    """The held task spawns so many children of its own workflow, and waits for them."""
    last = held.step_index + 1 >= len(workflow.steps)
    unit = make_unit(held, workflow, result=None)
    what = Spawn([Child(workflow)] * count, **options)
    drafts = children.draft_children(held, what)
    children.spawn_children(held, unit, drafts, what, last=last)


def complete(held: Claimed, workflow: Workflow) -> None:
    """The held task ends with this unit."""
    unit = make_unit(held, workflow, result='{"done":true}')
    assert sql.checkpoint_unit(held, unit, lease_seconds=LEASE, groups=[]) is not None


def make_effect(task: Task, name: str = "pay", **fields: Any) -> Effect:
    """An effect of the task's first step that a lost attempt began."""
    return Effect.objects.create(
        task=task, step="a", turn=0, round=0, name=name, fingerprint="", status="intent",
        fences=["1:gone"], begun_at=clock.now(), **fields,
    )  # fmt: skip


def expire_lease(seconds: float = LEASE + 1) -> None:
    """Move the database's clock past every lease of now; the fixture `moved_clock` puts it back."""
    clock.offset += seconds
