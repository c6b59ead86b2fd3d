"""Workflows whose steps do what no step should, for real workers."""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from django.db import connection
from pydantic import BaseModel

from ledger.workflows import Fail, Workflow
from tests.crash.flows import note_attempt
from tests.poison.kinds import POISONS

TREE = "LONGWATCH_TEST_TREE"
"""In the environment of every process that a `leaves` step starts: the task's id."""

SHELLS = [
    "sleep 600 & (sleep 600 & wait)",
    "setsid sleep 600 & setsid sh -c 'sleep 600 & wait'",
    "trap '' TERM HUP; setsid sh -c 'while :; do sleep 1; done'",
]
"""A tree, one that has left its session, and one that no SIGTERM ends."""


class Leaving(BaseModel):
    """How long the step goes on after it has started its processes; `wait`: for them."""

    seconds: float = 0.0
    wait: bool = False


leaves = Workflow("leaves", input=Leaving)


@leaves.step(timeout=30, retries=0)
def leave(ctx: Any) -> Any:
    """Start processes in every way and end before them."""
    environment = os.environ | {TREE: str(ctx.task_id)}
    for shell in SHELLS:
        subprocess.Popen(["sh", "-c", shell], env=environment)
    if os.fork() == 0:
        os.execvpe("sleep", ["sleep", "600"], environment)
    ctx.report(1, note="started")
    time.sleep(ctx.input.seconds)


@leaves.step(timeout=2, retries=0)
def block(ctx: Any) -> Any:
    """Read a pipe that a process holds which has left its session, beyond the deadline."""
    shell = "setsid sleep 600 & sleep 0.1"
    subprocess.run(
        ["sh", "-c", shell], env=os.environ | {TREE: str(ctx.task_id)}, stdout=subprocess.PIPE
    )


class Dose(BaseModel):
    """Which poison, and the file outside in which each run leaves a line."""

    kind: str
    sink: str


poisoned = Workflow("poisoned", input=Dose)
hurried = Workflow("hurried", input=Dose)


def take(ctx: Any) -> Any:
    """Note the attempt, then do it."""
    note_attempt(ctx)
    return POISONS[ctx.input.kind].do(ctx)


poisoned.step(take, timeout=40)
hurried.step(take, timeout=1)

rueful = Workflow("rueful", input=Dose)


@rueful.compensation(timeout=1, retries=0)
def undo_badly(ctx: Any, effect: Any) -> Any:
    """What undoes the effect does the poison."""
    return take(ctx)


@rueful.step(isolate=True)
def act_outside(ctx: Any) -> Any:
    """Isolated, unlike what undoes it."""
    ctx.once("act", os.getpid, compensate=undo_badly)
    raise Fail("no_use", "in vain")


canary = Workflow("canary", input=Dose)


@canary.step
def sing(ctx: Any) -> Any:
    """A normal unit."""
    note_attempt(ctx)
    return {"sang": True}


class Much(Dose):
    """Of what the step makes so much."""

    amount: int


much = Workflow("much", input=Much)


@much.step(timeout=1800, retries=0)
def overdo(ctx: Any) -> Any:
    """`amount` log lines, or a value of so many bytes."""
    note_attempt(ctx)
    if ctx.input.kind == "text":
        return {"text": "x" * ctx.input.amount}
    for number in range(ctx.input.amount):
        ctx.log.info("line %d of text", number)
    return None


wedged = Workflow("wedged", input=Dose)


@wedged.step(timeout=600, retries=0)
def seize(ctx: Any) -> Any:
    """Once: keep a lock of the database, and in C the interpreter's, for good."""
    note_attempt(ctx)
    if Path(ctx.input.sink).read_text().count(f"{ctx.task_id} seize") > 1:
        return None
    with connection.cursor() as cursor:
        cursor.execute("BEGIN IMMEDIATE" if connection.vendor == "sqlite" else "BEGIN")
        cursor.execute("UPDATE longwatch_task SET title = '' WHERE id = %s", [ctx.task_id.hex])
    ctypes.PyDLL(None).sleep(600)  # PyDLL does not let go of it


class Busy(BaseModel):
    """How to be busy, for how long, and a file outside."""

    how: str
    seconds: float
    sink: str


busy = Workflow("busy", input=Busy)


def spin(until: float) -> None:
    while time.monotonic() < until:
        sum(range(1_000))


async def spin_beside_a_task(until: float) -> None:
    beside = asyncio.create_task(asyncio.sleep(3600))
    await asyncio.sleep(0)
    spin(until)
    beside.cancel()


@busy.step(timeout=120, retries=0)
def keep_busy(ctx: Any) -> Any:
    """Leave the interpreter as little to others as Python code can."""
    note_attempt(ctx)
    until = time.monotonic() + ctx.input.seconds
    if ctx.input.how == "a loop":
        spin(until)
    elif ctx.input.how == "a loop of events":
        asyncio.run(spin_beside_a_task(until))
    else:
        threads = [threading.Thread(target=spin, args=(until,)) for _ in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
