"""Workflows that print and log in every way, for real workers."""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ledger import steplog
from ledger.workflows import RetryLater, Workflow

library = logging.getLogger("some.library")

SECRET = "s3cr3t-of-the-log"
AMOUNT = 200_000_000
LINE = "0123456789" * 9


class Where(BaseModel):
    """The file outside which tells that the step may go on, and what to do."""

    sink: str
    kind: str = ""


def wait_for_go(ctx: Any) -> None:
    """Until the test lets it."""
    until = time.monotonic() + 60
    while not Path(f"{ctx.input.sink}.go").exists() and time.monotonic() < until:
        ctx.check()
        time.sleep(0.02)


talks = Workflow("talks", input=Where)


@talks.step(retries=0)
def speak(ctx: Any) -> None:
    """From Python, C, a subprocess, a thread, a library and a command."""
    print("from print")
    sys.stderr.write("from stderr\n")
    os.write(1, b"from write\n")
    ctypes.CDLL(None).printf(b"from printf\n")
    subprocess.run(["sh", "-c", "echo from a process; echo and its stderr >&2"], check=True)
    thread = threading.Thread(target=lambda: (print("from a thread"), library.error("thread's")))
    thread.start()
    thread.join()
    library.warning("from a library")
    ctx.log.info("from ctx.log\nand its second line")
    steplog.write_output(b"from a comm")
    steplog.write_output(b"and\n")
    value = ctx.secret("LOGGED")
    os.write(1, f"token {value[:5]}".encode())
    os.write(1, f"{value[5:]} {value}{'x' * 70_000}{value}\n".encode())
    print("\x1b[31mred\x1b[0m \u202egnp\x07.exe", end="")


@talks.step
async def whisper(ctx: Any) -> None:
    """From a coroutine."""
    print("from async")
    library.warning("async library")


@talks.step(isolate=True)
def mumble(ctx: Any) -> None:
    """From a process of its own."""
    print("from isolation")
    library.warning("isolated library")
    ctx.log.warning("isolated log")


@talks.step
def silent(ctx: Any) -> None:
    """Nothing."""


breaks = Workflow("breaks", input=Where)


@breaks.step
def wreck(ctx: Any) -> None:
    """Take files 1 and 2 away in several ways; a process that lives on holds the old ones."""
    subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 0.3; echo a late line; sleep 60"])
    print("before")
    own = os.open(f"{ctx.input.sink}.own", os.O_WRONLY | os.O_CREAT)
    os.dup2(own, 1)
    os.write(1, b"into its own file")
    os.close(2)
    sys.stdout.close()
    sys.stderr = None  # type: ignore[assignment]


@breaks.step
def after(ctx: Any) -> None:
    """As if nothing had been."""
    print("after")
    sys.stderr.write("and stderr\n")
    os.write(2, b"raw\n")


pours = Workflow("pours", input=Where)


@pours.step(retries=0)
def pour(ctx: Any) -> None:
    """Print 200 MB: from Python, from a process, and from C while it holds the lock."""
    print("the first line")
    for _ in range(AMOUNT // 4 // len(LINE)):
        print(LINE)
    subprocess.run(["sh", "-c", f"yes {LINE} | head -c {AMOUNT // 2}"], check=True)
    held = ctypes.PyDLL(None)
    data = (LINE.encode() + b"\n") * 1_000
    for _ in range(AMOUNT // 4 // len(data)):
        held.write(1, data, len(data))
    print("the last line")


lives = Workflow("lives", input=Where)


@lives.step(retries=0)
def live(ctx: Any) -> None:
    """Say something, wait, say more, and end as it is told to."""
    for number in range(5):
        print(f"early {number}")
    wait_for_go(ctx)
    print("late")
    if ctx.input.kind == "fail":
        raise ValueError("no good")
    if ctx.input.kind == "long":
        for number in range(1_000):
            ctx.log.info("line %d of many", number)
    if ctx.input.kind == "later" and ctx.attempt == 1:
        raise RetryLater(0.1)
