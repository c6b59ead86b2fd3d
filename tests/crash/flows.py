"""Workflows for the tests that kill real workers; each attempt leaves a line outside."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote

from pydantic import BaseModel

from ledger import clock
from ledger.workflows import Again, Child, Concurrency, Fail, Spawn, WaitFor, Workflow, post_json


class Pace(BaseModel):
    """Where to write, how long each unit takes, and how many turns `work` has."""

    sink: str
    seconds: float = 0.5
    turns: int = 3


def note_attempt(ctx: Any) -> None:
    """One line per attempt, `step turn pid fence time`: the count that the ledger can't flatter."""
    line = f"{ctx.task_id} {ctx.step} {ctx.turn} {os.getpid()} {time.time()}\n"
    with Path(ctx.input.sink).open("a") as sink:
        sink.write(line)


paced = Workflow("paced", input=Pace)


@paced.step
def begin(ctx: Any) -> Any:
    """A unit that takes no time."""
    note_attempt(ctx)
    return {"begun": True}


@paced.step
def work(ctx: Any) -> Any:
    """`turns` units of `seconds` each."""
    note_attempt(ctx)
    time.sleep(ctx.input.seconds)
    return Again() if ctx.turn + 1 < ctx.input.turns else {"worked": ctx.turn + 1}


@paced.step
def end(ctx: Any) -> Any:
    """The last unit."""
    note_attempt(ctx)
    return {"ended": True}


class Place(Pace):
    """What one task at a time works on."""

    on: str


keyed = Workflow("keyed", input=Place, concurrency=Concurrency(key="input.on"))
keyed.step(begin, name="begin")
keyed.step(work, name="work")
keyed.step(end, name="end")


class Stint(Pace):
    """What its units share with others, and what each of them pays before it works."""

    on: str | None = None
    cost: str = "0"


def work_in_turns(ctx: Any) -> Any:
    """`turns` units of `seconds` each, by the clock that a test may have moved."""
    with contextlib.suppress(FileNotFoundError):
        clock.offset = float(Path(f"{ctx.input.sink}.clock").read_text())
    if ctx.input.cost != "0":
        with ctx.reserve(tokens=10, cost=ctx.input.cost) as hold:
            time.sleep(ctx.input.seconds)
            hold.settle(tokens_out=10, cost=ctx.input.cost)
    else:
        time.sleep(ctx.input.seconds)
    return Again() if ctx.turn + 1 < ctx.input.turns else {}


brief = Workflow("brief", input=Stint)
few = Workflow("few", input=Stint, concurrency=Concurrency(at_most=2))
alone = Workflow("alone", input=Stint, concurrency=Concurrency(key="input.on"))
for one in (brief, few, alone):
    one.step(work_in_turns, name="turn")


class Gate(Pace):
    """`work` waits for the file `go-N` beside the sink, N being the attempt."""

    fails: bool = False


gated = Workflow("gated", input=Gate)
gated.step(begin, name="begin")


@gated.step(name="work")
def work_when_let(ctx: Any) -> Any:
    """Pays 40 before it waits and 60 after it, whatever ends it; the first attempt may fail."""
    note_attempt(ctx)
    pay(ctx, 40)
    try:
        while not Path(f"{ctx.input.sink}.go-{ctx.attempt}").exists():
            time.sleep(0.02)
    finally:
        pay(ctx, 60)
    if ctx.input.fails and ctx.attempt == 1:
        raise RuntimeError("late")
    return {"attempt": ctx.attempt}


gated.step(end, name="end")


def pay(ctx: Any, tokens: int) -> None:
    """The provider's own list, one line a call, and then the ledger's."""
    with Path(f"{ctx.input.sink}.bill").open("a") as bill:
        bill.write(f"{tokens}\n")
    ctx.spend(tokens_in=tokens)


class Crowd(Pace):
    """How many children, each a `paced` of this pace."""

    children: int


family = Workflow("family", input=Crowd)


@family.step
def split(ctx: Any) -> Any:
    """The children."""
    pace = ctx.input.model_dump(exclude={"children"})
    return Spawn([Child("paced", pace)] * ctx.input.children)


family.step(end, name="end")

listening = Workflow("listening", input=Gate)


@listening.step(name="work")
def listen_when_let(ctx: Any) -> Any:
    """Waits for the signal `go`, once the gate is open."""
    work_when_let(ctx)
    return WaitFor("go")


@listening.step(name="end")
def tell(ctx: Any) -> Any:
    """What was heard."""
    note_attempt(ctx)
    return {"heard": ctx.signal["data"]}


class Bill(Pace):
    """Where `pay` pays, whether it asks there what came of a payment, and whether all is undone."""

    bank: str
    verify: bool
    fails: bool = False


paying = Workflow("paying", input=Bill)


def look_up(bank: str, book: str, key: str) -> Any:
    """What the bank knows of a charge or a refund; None for nothing."""
    try:
        with urllib.request.urlopen(f"{bank}/{book}/{quote(key)}") as answer:
            return json.load(answer)
    except HTTPError as error:
        if error.code == 404:
            return None
        raise


def refund_blindly(ctx: Any, effect: Any) -> Any:
    """Gives back what was charged."""
    if look_up(ctx.input.bank, "charges", effect.key) is None:
        return {"number": 0}
    return post_json(f"{ctx.input.bank}/refunds", {"pid": os.getpid()}, key=effect.undo_key)


paying.compensation(refund_blindly)


@paying.compensation(name="refund", verify=lambda ctx, effect: look_up(
    ctx.input.bank, "refunds", effect.undo_key))  # fmt: skip
def refund(ctx: Any, effect: Any) -> Any:
    """The same, and asks the bank first where an attempt was lost."""
    return refund_blindly(ctx, effect)


@paying.step(name="pay")
def pay_the_bank(ctx: Any) -> Any:
    """One charge in each of `turns` units."""
    verify = ctx.input.verify

    def charge(key: str) -> Any:
        return post_json(f"{ctx.input.bank}/charges", {"pid": os.getpid()}, key=key)

    def find(key: str) -> Any:
        return look_up(ctx.input.bank, "charges", key)

    told = ctx.once("charge", charge, verify=find if verify else None,
                    compensate=refund if verify else "refund_blindly")  # fmt: skip
    if ctx.turn + 1 < ctx.input.turns:
        return Again(told)
    if ctx.input.fails:
        raise Fail("no_use", "the goods are sold out")
    return told


blabbing = Workflow("blabbing", input=Pace)


@blabbing.step(retries=0)
def blab(ctx: Any) -> Any:
    """Says its secret wherever a step can, also in its title, and fails with it."""
    secret = ctx.secret("CANARY")
    ctx.log.info("the secret is %s", secret)
    logging.getLogger("blabbing").warning("the secret is %s", secret)
    ctx.report(1, 2, note=secret)
    note_attempt(ctx)
    raise RuntimeError(f"bad login with {secret}")
