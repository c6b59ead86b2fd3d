"""The workflows of a chaos run. Every attempt leaves lines outside: `begin`, then `end` or `raise`.

A step returns its unit and fence, which end up in the task's progress; the `begin` of a later step
writes down what it sees there. So the sink holds a witness of every output that was accepted.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import random
import time
import uuid
from collections.abc import Callable
from typing import Any

from ledger.workflows import (
    Again,
    AskApproval,
    Fail,
    Repair,
    RetryLater,
    Sleep,
    Workflow,
)
from tests.chaos.journal import Folder

MANY = 100_000
"""Retries of a step that fails now and then: its plan says that it completes."""


class Planned(Exception):
    """A failure that the plan asks for: the only one that may be charged."""


def note(ctx: Any, what: str, **more: Any) -> None:
    """One line in the sink."""
    held = ctx._claimed
    Folder.find().sink.write(
        what=what, task=str(ctx.task_id), step=ctx.step, turn=ctx.turn, round=ctx.round,
        attempt=ctx.attempt, fence=held.fence, owner=held.owner, pid=os.getpid(), **more,
    )  # fmt: skip


def mark(ctx: Any) -> dict[str, int]:
    """What a unit returns: its own name and fence."""
    return {f"{ctx.step}:{ctx.turn}:{ctx.round}": ctx._claimed.fence}


def draw(ctx: Any, what: str) -> float:
    """A number from 0 to 1, another in each attempt."""
    return random.Random(f"{ctx.task_id}:{ctx._claimed.fence}:{what}").random()


def add(workflow: Workflow, **options: Any) -> Callable[[Callable[[Any], Any]], Any]:
    """Append a step whose attempts leave their lines."""

    def wrap(fn: Callable[[Any], Any]) -> Any:
        @functools.wraps(fn)
        def run(ctx: Any) -> Any:
            seen = {key: n for key, n in ctx.progress.items() if key.count(":") == 2}
            note(ctx, "begin", seen=seen)
            try:
                outcome = fn(ctx)
            except BaseException as error:
                note(ctx, "raise", error=type(error).__name__)
                raise
            note(ctx, "end")
            return mark(ctx) if outcome is None else outcome

        workflow.step(run, **options)
        return fn

    return wrap


fast = Workflow("chaos_fast")
"""Units of no time: here a kill meets claims and settles."""
for _name in ("a", "b", "c", "d"):
    add(fast, name=_name)(lambda ctx: None)

slow = Workflow("chaos_slow")


@add(slow)
def prepare(ctx: Any) -> None:
    """Nothing."""


@add(slow)
def grind(ctx: Any) -> None:
    """Seconds of work that reports now and then."""
    ends = time.monotonic() + ctx.input["seconds"]
    while (left := ends - time.monotonic()) > 0:
        time.sleep(min(0.4, left))
        ctx.report(note=f"{left:.1f} s left")


add(slow, name="finish")(lambda ctx: None)

loop = Workflow("chaos_loop")


@add(loop)
def think(ctx: Any) -> Any:
    """`turns` short units."""
    time.sleep(draw(ctx, "pause") * ctx.input["seconds"])
    return Again(mark(ctx)) if ctx.turn + 1 < ctx.input["turns"] else None


add(loop, name="conclude")(lambda ctx: None)

flaky = Workflow("chaos_flaky")


@add(flaky, retries=MANY)
def stumble(ctx: Any) -> None:
    """Fails often, is told to come later sometimes; not more than three times, as the pause before
    the eighth try may last minutes."""
    luck = draw(ctx, "luck")
    if luck < 0.3 and ctx.attempt <= 3:
        raise Planned("it broke, as planned")
    if luck < 0.5:
        raise RetryLater(0.2)


add(flaky, name="recover")(lambda ctx: None)

doomed = Workflow("chaos_doomed")
"""Ends as failed by its own word."""


@add(doomed)
def give_up(ctx: Any) -> None:
    """No retry would help."""
    raise Fail("no_way", "as planned")


hopeless = Workflow("chaos_hopeless")
"""Ends as dead: its retries are used up."""


@add(hopeless, retries=1)
def insist(ctx: Any) -> None:
    """Fails each time."""
    raise Planned("it always breaks")


repairing = Workflow("chaos_repairing", max_repairs=1000)
add(repairing, name="draft")(lambda ctx: None)


@add(repairing)
def verify(ctx: Any) -> Any:
    """Sends the draft back until enough rounds are done."""
    if ctx.round < ctx.input["rounds"]:
        return Repair("draft", {"round": ctx.round}, **mark(ctx))
    return None


add(repairing, name="seal")(lambda ctx: None)

asking = Workflow("chaos_asking", max_repairs=1000)
add(asking, name="propose")(lambda ctx: None)


@add(asking)
def ask(ctx: Any) -> Any:
    """The payload tells the bot what to answer."""
    wish = ctx.input["wish"]
    if wish == "send_back" and ctx.round > 0:
        wish = "approve"
    return AskApproval("Go on?", payload={"wish": wish}, send_back_to="propose", data=mark(ctx))


add(asking, name="publish")(lambda ctx: None)

paying = Workflow("chaos_paying")


@add(paying)
def call(ctx: Any) -> Any:
    """Three amounts a unit, each attempt paying anew."""
    for number in range(1, 4):
        key = f"call:{ctx.turn}:{ctx._claimed.fence}:{number}"
        pay(ctx, key, given=None)
    return Again(mark(ctx)) if ctx.turn + 1 < ctx.input["turns"] else None


@add(paying)
def reconcile(ctx: Any) -> None:
    """As with a provider that keeps a list: what a lost attempt paid is recorded by the next."""
    for line in Folder.find().stub(ctx.task_id).read_all():
        if line["key"].startswith("request-") and line["what"] == "charge":
            ctx.spend(line["tokens"], 0, line["cost"], key=line["key"])
    key = f"request-{uuid.uuid4().hex}"
    pay(ctx, key, given=key)


add(paying, name="close")(lambda ctx: None)


def pay(ctx: Any, key: str, given: str | None) -> None:
    """The stub charges, then the ledger is told; `recorded` is written when it has answered."""
    stub = Folder.find().stub(ctx.task_id)
    chance = random.Random(f"{ctx.task_id}:{key}")
    tokens, cost = chance.randrange(1, 500), f"0.{chance.randrange(1, 10**7):09d}"
    about = {"key": key, "fence": ctx._claimed.fence, "tokens": tokens, "cost": cost}
    stub.write(what="charge", **about)
    try:
        time.sleep(0.01)
    finally:  # whoever ends the unit here, what is paid is told
        ctx.spend(tokens, 0, cost, key=given)
    stub.write(what="recorded", **about)


making = Workflow("chaos_making")


@add(making)
def make(ctx: Any) -> Any:
    """Two artifacts, a file in the workspace and, sometimes, an output too large for its row."""
    content = make_content(ctx)
    for name in ("one.bin", "two.bin"):
        ctx.save_artifact(name, content + name.encode())
    (ctx.workspace / "made").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    note(ctx, "made", digest=digest, size=len(content))
    big = {"big": "x" * 70_000} if ctx.input["big"] else {}
    return {**mark(ctx), "digest": digest, **big}


@add(making)
def use(ctx: Any) -> None:
    """What the accepted unit made is what the next one finds."""
    content = (ctx.workspace / "made").read_bytes()
    if hashlib.sha256(content).hexdigest() != ctx.progress["digest"]:
        raise AssertionError("the workspace is not what the accepted unit left")
    with ctx.open_artifact("one.bin") as file:
        if file.read() != content + b"one.bin":
            raise AssertionError("the artifact is not what the accepted unit saved")
    if ctx.input["big"] and ctx.progress["big"] != "x" * 70_000:
        raise AssertionError("the large value is not what was returned")


def make_content(ctx: Any) -> bytes:
    """Bytes of this attempt and of no other."""
    chance = random.Random(f"{ctx.task_id}:{ctx._claimed.fence}")
    return chance.randbytes(chance.randrange(100, 40_000))


napping = Workflow("chaos_napping")


@add(napping)
def nap(ctx: Any) -> Any:
    """Turns with a pause between them, then a timer."""
    if ctx.turn < 2:
        return Again(mark(ctx), after=0.3)
    return Sleep(0.5, data=mark(ctx))


add(napping, name="wake")(lambda ctx: None)

held = Workflow("chaos_held")
"""For measurements: what is killed or stopped in a unit, at its first attempt only."""


@add(held)
def hold(ctx: Any) -> None:
    """Takes `seconds`; below 0 for ever, in C and with the GIL."""
    if ctx._claimed.fence > 1:
        return
    if ctx.input["seconds"] >= 0:
        time.sleep(ctx.input["seconds"])
        return
    mutex = ctypes.create_string_buffer(128)
    for _ in range(2):  # the second waits for the first; no signal ends that
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)
