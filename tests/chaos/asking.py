"""A workflow that asks, with fault points around the commit of the question.

`inside` is between the request's row and the release of the lease, `after` is the instant after
their commit, before the worker knows. There a worker may be killed, or stop until it is told to go
on. Faults are met through Django's own hooks, so the product runs as it is.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from typing import Any

from django.db import connection, transaction

from ledger.workflows import AskApproval, Workflow
from tests.chaos.journal import Folder

ODDS = "LONGWATCH_CHAOS_ODDS"
"""How likely each of the four faults is to meet a question."""
FAULTS = {
    ("inside", "kill"): signal.SIGKILL,
    ("inside", "stop"): signal.SIGSTOP,
    ("after", "kill"): signal.SIGKILL,
    ("after", "stop"): signal.SIGSTOP,
}

asking = Workflow("chaos_asking", self_approval=True)


@asking.step
def ask(ctx: Any) -> AskApproval:
    """The question; now and then it meets a fault."""
    note(ctx, "ask")
    dice = random.Random()
    for where, what in FAULTS:
        if dice.random() < float(os.environ.get(ODDS, "0")):
            arm(ctx, where, what)
            break
    return AskApproval("Go on?", body=f"Task {ctx.task_id}", data={"asked": True})


@asking.step
def go_on(ctx: Any) -> dict[str, Any]:
    """What the answer leads to."""
    note(ctx, "go_on")
    return {"by": ctx.answer["by"]}


def note(ctx: Any, what: str, **more: Any) -> None:
    """One line in the sink."""
    Folder.find().sink.write(what=what, task=str(ctx.task_id), pid=os.getpid(), **more)


def arm(ctx: Any, where: str, what: str) -> None:
    """Let the question that this unit asks meet that fault; once, whatever comes of it."""

    def trip() -> None:
        note(ctx, "fault", where=where, fault=what)
        os.kill(os.getpid(), FAULTS[where, what])

    def watch(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        done = execute(sql, *rest)
        if sql.startswith('INSERT INTO "longwatch_approval" '):
            connection.execute_wrappers.remove(watch)
            trip() if where == "inside" else transaction.on_commit(trip)
        return done

    connection.execute_wrappers.append(watch)
