"""Workflows with isolated steps: what `ctx` gives them, and all that may go wrong there."""

from __future__ import annotations

import ctypes
import datetime as dt
import hashlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from django.db import connection
from pydantic import BaseModel

from ledger.errors import NotFound
from ledger.workflows import (
    Again,
    AskApproval,
    Child,
    Fail,
    Finish,
    RetryLater,
    Sleep,
    Spawn,
    WaitFor,
    Workflow,
)
from tests.crash.flows import note_attempt


class Free(BaseModel):
    """A date, for which JSON has no word; what to do; and a file outside."""

    day: dt.date = dt.date(2026, 1, 2)
    kind: str = ""
    sink: str = ""


alone = Workflow("alone", input=Free, self_approval=True)


@alone.step
def plan(ctx: Any) -> Any:
    """In the worker."""
    return {"plan": ["one"], "text": "x" * 200_000, "worker": os.getpid()}


@alone.step(isolate=True, memory="1G", cpu=60)
def read(ctx: Any) -> Any:
    """What a step is told, and what it may ask for."""
    assert ctx.input.day == dt.date(2026, 1, 2)
    assert len(ctx.progress["text"]) == 200_000
    assert ctx.output_of("plan")["plan"] == ["one"]
    assert (ctx.feedback, ctx.answer, ctx.attempt) == (None, None, 1)
    if ctx.turn == 0:
        return Again({"turned": True})
    return {
        "read": [os.getpid() != ctx.progress["worker"], os.getpgid(0) == os.getpid(),
                 ctx.idempotency_key("k").endswith(":read:1:0:k"), os.getcwd()],
        "left out": [name for name, value in os.environ.items() if value == "sqlite:////nowhere"
                     or name.startswith("LONGWATCH_SECRET_ALONE")],
    }  # fmt: skip


@alone.step(isolate=True)
def write(ctx: Any) -> Any:
    """What it may do."""
    ctx.log.info("the secret is %s", ctx.secret("ALONE"))
    ctx.report(1, 2, "half")
    ctx.spend(tokens_in=3, tokens_out=4, cost="0.5", key="k")
    ctx.check()
    saved = ctx.save_artifact("bytes", b"some bytes")
    (ctx.workspace / "file").write_text("from the step")
    ctx.save_artifact("file", ctx.workspace / "file", "text/plain")
    with ctx.open_artifact(saved.id) as file:
        assert file.read() == b"some bytes"
    try:
        ctx.open_artifact("nothing")
    except NotFound as error:
        missing = str(error)
    try:
        connection.ensure_connection()
    except RuntimeError as error:
        refused = str(error)
    return Sleep(1, data={"missing": missing, "refused": refused, "said": ctx.secret("ALONE")})


@alone.step(isolate=True)
async def ask(ctx: Any) -> Any:
    """An outcome of many fields, from a coroutine."""
    assert (ctx.workspace / "file").read_text() == "from the step"
    return AskApproval(
        "Go on?", body="Well?", form={"type": "object"}, proposal={}, send_back_to="plan"
    )


@alone.compensation
def untell(ctx: Any, effect: Any) -> None:
    """Nothing; the process that names it need not call it."""


@alone.step(isolate=True)
def end(ctx: Any) -> Any:
    """The answer reaches it."""
    told = ctx.once("tell", os.getpid, compensate=untell, args={"to": "all"})
    return Finish({"by": ctx.answer["by"], "said": "done", "told before": told != os.getpid()})


def escape(ctx: Any) -> None:
    subprocess.Popen(["setsid", "sleep", "600"], env=os.environ | {"TREE": str(ctx.task_id)})


def log_and_crash(ctx: Any) -> None:
    for number in range(1_000):
        ctx.log.info("line %d", number)
    time.sleep(1.1)  # the next second's first line takes along what waits
    ctx.log.error("the last word")
    ctypes.string_at(0)


def fork_and_return(ctx: Any) -> Any:
    os.fork()
    return {"side": "any"}


def retry_later_once(ctx: Any) -> None:
    if ctx.attempt == 1:
        raise RetryLater(30, "busy")


def fail(ctx: Any) -> None:
    raise Fail("no_use", "nothing to do")


def raise_with_cause(ctx: Any) -> None:
    try:
        raise KeyError("inner\x00")
    except KeyError as error:
        raise ValueError("outer") from error


def exceed_limit(ctx: Any) -> None:
    try:
        ctx.spend(tokens_in=1_000)
    except ValueError:
        raise AssertionError from None


def spin(ctx: Any) -> None:
    while True:
        pass


RETRIES = ("dead", "retries_exhausted")

DIED = (*RETRIES, "StepProcessDied")
UNSTORABLE = ("dead", "unserialisable_output", "Unserialisable")
DONE = ("completed", "", "", "")

ENDS: dict[str, tuple[Callable[[Any], Any], tuple[str, str, str, str]]] = {
    "crash": (log_and_crash, (*DIED, "it crashed, or was ended by a signal (SIGSEGV)")),
    "exit": (lambda ctx: os._exit(0), (*DIED, "exit status 0, as by os._exit()")),
    "sys.exit": (lambda ctx: sys.exit(0), (*RETRIES, "SystemExit", "0")),
    "kill": (lambda ctx: os.kill(os.getpid(), 9), (*DIED, "SIGKILL")),
    "kill group": (lambda ctx: os.killpg(0, 9), (*DIED, "SIGKILL")),
    "memory": (lambda ctx: bytearray(2 * 1024**3), (*RETRIES, "MemoryError", "")),
    "processor": (spin, (*DIED, "it used more than its 1 s of processor time")),
    "closed files": (lambda ctx: os.closerange(3, 999), (*DIED, "the isolated step go")),
    "not JSON": (lambda ctx: {"value": {1, 2}}, (*UNSTORABLE, "output.value: a set is not JSON")),
    "not finite": (
        lambda ctx: {"a": [{"b": float("nan")}]},
        (*UNSTORABLE, "output.a[0].b: nan is not a JSON number"),
    ),
    "no outcome": (lambda ctx: 42, (*RETRIES, "TypeError", "step go returned a int")),
    "much": (lambda ctx: {"text": "x" * 5_000_000}, DONE),
    "fork": (fork_and_return, DONE),
    "later": (retry_later_once, DONE),
    "fail": (fail, ("failed", "workflow_failed", "Fail", "no_use: nothing to do")),
    "error": (raise_with_cause, (*RETRIES, "ValueError", "outer")),
    "limit": (exceed_limit, ("dead", "limit_tokens", "LimitReached", "")),
    "wrong call": (lambda ctx: ctx.spend(cost=0.5), (*RETRIES, "ValueError", "0.5 is a float")),
}
"""What the step does, and the status, the reason, the error's type and a part of its text."""

goes_alone = Workflow("goes_alone", input=Free)


@goes_alone.step(isolate=True, memory="512M", cpu=1, timeout=30, retries=0)
def go(ctx: Any) -> Any:
    """What `kind` names."""
    return ENDS[ctx.input.kind][0](ctx)


holds = Workflow("holds", input=Free)


@holds.step(timeout=60, isolate=True, retries=0)
def hold_the_lock(ctx: Any) -> Any:
    """Keep the interpreter's lock, in C, for longer than two leases of 3 s."""
    note_attempt(ctx)
    ctx.report(1, 2, note="holding")
    until = time.monotonic() + 7
    while time.monotonic() < until:
        re.match(r"(a+)+$", "a" * 24 + "b")


@holds.step(timeout=6, isolate=True, retries=0)
def hang(ctx: Any) -> Any:
    """Swallow whatever comes."""
    note_attempt(ctx)
    escape(ctx)
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass


calls = Workflow("calls")
called = Workflow("called")


@called.step(isolate=True)
def echo(ctx: Any) -> Any:
    """A child, alone as well."""
    return {"heard": ctx.input["word"]}


@calls.step(isolate=True)
def wait(ctx: Any) -> Any:
    """For a signal."""
    return WaitFor("word")


@calls.step(isolate=True)
def spawn(ctx: Any) -> Any:
    """What the signal said, to a child."""
    word = ctx.signal["data"]
    return Spawn([Child(called, {"word": word}, limits={"cost": "1"}), Child(called, {"word": 2})])


@calls.step(isolate=True)
def gather(ctx: Any) -> Any:
    """What the children heard."""
    return {"all": [one["result"]["heard"] for one in ctx.children]}


told_alone = Workflow("told-alone")


@told_alone.step(name="read", isolate=True)
def read_handoff(ctx: Any) -> Any:
    """What it is told is what the worker's own ctx says."""
    sent = ctx.handoff(tokens=2_000)
    same = hashlib.sha256(sent.markdown.encode()).hexdigest() == sent.digest
    return {"key": sent.data["objective"][0]["key"], "same": same}
