"""The tasks that `manage.py demo_data` copies: each of them really ran, on this ledger.

So every row keeps every rule: what a copy says was done by the engine once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

from pydantic import BaseModel

from ledger.events import Actor
from ledger.ids import make_id
from ledger.testing import LOST, run
from ledger.transitions import operators
from ledger.transitions.deleting import DEMO, KEY
from ledger.transitions.submit import submit_task
from ledger.workflows import Again, AskApproval, Fail, Repair, Workflow

OPERATOR = Actor("cli", "demo")


class Course(BaseModel):
    """How many units the work takes, and what goes wrong with it."""

    units: int
    repairs: bool = False
    asks: bool = False
    fails: bool = False


flow = Workflow("demo-data", input=Course, self_approval=True)


@flow.step
def gather(ctx: Any) -> dict[str, Any]:
    """Say what there is to do."""
    ctx.report(0, ctx.input.units, "gathered")
    return {"sources": [f"source-{n}" for n in range(5)]}


@flow.step
def work(ctx: Any) -> Any:
    """One unit of many; every tenth costs something."""
    if ctx.turn % 10 == 0:
        ctx.spend(tokens_in=1800, tokens_out=240, cost="0.0042", note="demo-model")
    if ctx.input.fails and ctx.turn == ctx.input.units // 2:
        raise Fail("bad_source", "source-3 can't be read: it is no UTF-8.")
    data = {"last": {"item": ctx.turn, "lines": 120 + ctx.turn % 7, "verdict": "fits"}}
    ctx.report(ctx.turn + 1, ctx.input.units, f"item {ctx.turn}")
    return Again(data) if ctx.turn + 1 < ctx.input.units else data


@flow.step
def check(ctx: Any) -> Any:
    """Found wanting once, where the course says so."""
    if ctx.input.repairs and ctx.round == 0:
        return Repair("work", {"findings": ["two items lack a source"]})
    return {"checked": True}


@flow.step
def review(ctx: Any) -> Any:
    """A person looks, where the course says so."""
    if not ctx.input.asks:
        return {"reviewed": "not asked"}
    return AskApproval("Publish the result?", body="All items have a source.", risk="low")


@flow.step
def publish(ctx: Any) -> dict[str, Any]:
    """The end."""
    return {"published": ctx.input.units}


class Play(NamedTuple):
    """A task that ran, and how often it comes among a thousand copies."""

    task: UUID
    share: int
    lasts: bool
    """Whether it goes on, so that its copies are of the last hours."""


def perform_all() -> list[Play]:
    """Run each course once."""
    return [Play(make(), share, lasts) for share, lasts, make in COURSES]


def _play(units: int, **given: Any) -> Callable[[], UUID]:
    options = {name: given.pop(name) for name in ("answers", "faults") if name in given}
    data = {"units": units, **given}
    return lambda: run(flow, data, actor=DEMO, key=_make_key(), tags=["demo"], **options).id


def _submit() -> UUID:
    task, _ = submit_task(
        workflow=flow, input={"units": 40}, actor=DEMO, key=_make_key(), lane="demo-data",
        tags=["demo"],
    )  # fmt: skip
    return task.pk


def _pause() -> UUID:
    task_id = _submit()
    operators.pause_task(task_id, actor=OPERATOR)
    return task_id


def _cancel() -> UUID:
    task_id = _play(30, asks=True)()
    operators.cancel_task(task_id, actor=OPERATOR, reason="no longer needed")
    return task_id


def _make_key() -> str:
    return f"{KEY}play-{make_id()}"


_BAD = [None, None, *[ConnectionError("the source does not answer")] * 4]

COURSES: tuple[tuple[int, bool, Callable[[], UUID]], ...] = (
    (300, False, _play(5)),
    (290, False, _play(30)),
    (170, False, _play(80)),
    (70, False, _play(180)),
    (60, False, _play(40, repairs=True)),
    (30, False, _play(40, faults={"work": [None, LOST, None, TimeoutError("too slow")]})),
    (30, False, _play(30, asks=True, answers={"review": "approve"})),
    (12, False, _play(20, fails=True)),
    (10, False, _play(20, faults={"work": _BAD})),
    (8, False, _cancel),
    (8, True, _play(25, asks=True)),
    (10, True, _submit),
    (2, True, _pause),
)
"""How many of a thousand, whether they go on, and how one is made; some 45 rows of outputs and
events each on average."""
