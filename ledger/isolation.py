"""An isolated step from the worker's side: its process, what that asks for, and how it ended.

The worker holds the fence and beats; the process has its memory and its crashes to itself. It is
in a group of its own and ends with the unit, by SIGKILL.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

from ledger import canonical, registry
from ledger.deadlines import UnitStopped, UnitTimeout
from ledger.errors import Unserialisable
from ledger.failures import RemoteFailure
from ledger.outcomes import Fail, Outcome, RetryLater
from ledger.processes import describe_exit
from ledger.wire import Wire, decode_outcome

if TYPE_CHECKING:
    from ledger.context import Context
    from ledger.workflows import Step, Workflow

BOOT: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from ledger.isolated import run_child; run_child(int(sys.argv[1]))"
)
CALLS: Final = frozenset(
    {
        "output_of",
        "secret",
        "allow_tool",
        "report",
        "spend",
        "check",
        "_begin_effect",
        "_finish_effect",
        "_reserve",
        "_settle_hold",
        "_release_hold",
    }
)
"""What it may have of `ctx` by a plain call."""

EXIT_SECONDS: Final = 2.0
"""How long a process may live on that has closed its end of the wire."""


class StepProcessDied(Exception):
    """The process of an isolated step ended without a word of what came of the step."""


def run_isolated(workflow: Workflow, step: Step, ctx: Context) -> Outcome:
    """Run the step in a process of its own; what came of it, as `call_step` would have it.

    Raises what the step raised: as RemoteFailure, which is text, but for the exceptions that mean
    something to the ledger. StepProcessDied says how a process ended that told nothing.
    """
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process = _start_process(theirs.fileno())
        try:
            wire = Wire(ours)
            try:
                wire.send(_describe_unit(workflow, step, ctx))
                return _serve(wire, ctx)
            except (EOFError, ConnectionError):
                raise StepProcessDied(_wait_for_cause(process, step)) from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _start_process(descriptor: int) -> subprocess.Popen[bytes]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name != "LONGWATCH_DATABASE_URL"
        and (name == "LONGWATCH_SECRET_KEY" or not name.startswith("LONGWATCH_SECRET_"))
    }
    return subprocess.Popen(
        [sys.executable, "-c", BOOT, str(descriptor), json.dumps(sys.path)],
        env=kept, stdin=subprocess.DEVNULL, pass_fds=[descriptor], process_group=0,
    )  # fmt: skip


def _describe_unit(workflow: Workflow, step: Step, ctx: Context) -> dict[str, Any]:
    assert step.isolation is not None
    unit = {
        name: getattr(ctx, name)
        for name in (
            "step",
            "turn",
            "round",
            "attempt",
            "title",
            "submitted_by",
            "answer",
            "signal",
        )
    }
    return {
        "parent": os.getpid(),
        "located": [*registry.locate(workflow), workflow.name, workflow.version],
        "memory": step.isolation.memory,
        "cpu": step.isolation.cpu,
        "unit": unit | {"task_id": str(ctx.task_id), "input": ctx.raw_input},
    }


def _serve(wire: Wire, ctx: Context) -> Outcome:
    """Answer until the step has ended."""
    raised: list[BaseException | None] = [None]
    while True:
        message, file = wire.receive()
        try:
            if "done" in message:
                return decode_outcome(message["done"])
            if "raised" in message:
                raise _read_raised(message["raised"], raised)
            if "log" in message:
                _keep_lines(ctx, message["log"])
            else:
                raised.append(_answer(wire, ctx, message, file))
        finally:
            if file is not None:
                os.close(file)


def _answer(
    wire: Wire, ctx: Context, message: dict[str, Any], file: int | None
) -> BaseException | None:
    """Answer one question; what it raised, which the step may let pass."""
    what, given = message["ask"], message["given"]
    sent = None
    try:
        value = None
        if what in {"progress", "feedback", "children"}:
            value = getattr(ctx, what)
        elif what in CALLS:
            value = getattr(ctx, what)(**given)
        elif what == "handoff":
            told = ctx.handoff(given["tokens"])
            names = ("markdown", "data", "digest", "tokens")
            value = {name: getattr(told, name) for name in names}
        elif what == "workspace":
            value = str(ctx.workspace)
        elif what == "save_artifact" and file is not None:
            with os.fdopen(os.dup(file), "rb") as source:
                saved = ctx.save_artifact(given["name"], source, given["media_type"])
            value = {"id": str(saved.id), "name": saved.name, "media_type": saved.media_type}
        elif what == "open_artifact":
            sent = ctx.open_artifact(**given)
        else:
            raise ValueError(f"an isolated step can't ask for {what!r}")
    except UnitTimeout:
        raise
    except BaseException as error:
        if isinstance(error, UnitStopped) and what != "check":
            raise
        wire.send({"error": _describe_error(error)})
        return error
    with sent or contextlib.nullcontext():
        wire.send({"value": value}, sent.fileno() if sent else None)
    return None


def _describe_error(error: BaseException) -> dict[str, Any]:
    facts = {}
    for name, value in vars(error).items():
        with contextlib.suppress(Unserialisable):
            canonical.check_json(value)
            facts[name] = value
    message = canonical.clean_text(error)
    return {"type": canonical.name_type(error), "message": message, "facts": facts}


def _read_raised(told: dict[str, Any], raised: list[BaseException | None]) -> BaseException:
    """What the step raised, as the runner takes it."""
    if "answer" in told:
        error: BaseException | None = raised[told["answer"]]
        assert error is not None
        return error
    if "retry_later" in told:
        return RetryLater(*told["retry_later"])
    if "fail" in told:
        return Fail(*told["fail"])
    if "unserialisable" in told:
        return Unserialisable(*told["unserialisable"])
    return RemoteFailure(told["error"])


def _keep_lines(ctx: Context, lines: list[list[Any]]) -> None:
    for created, level, text in lines:
        record = ctx.log.makeRecord(ctx.log.name, level, "", 0, str(text), (), None)
        record.created = created
        ctx.log.handle(record)


def _wait_for_cause(process: subprocess.Popen[bytes], step: Step) -> str:
    assert step.isolation is not None
    what = f"the process of the isolated step {step.name}"
    try:
        code = process.wait(EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        return f"{what} has closed its connection to the worker"
    cause = describe_exit(code)
    if code == -signal.SIGXCPU and step.isolation.cpu is not None:
        cause = f"it used more than its {step.isolation.cpu:g} s of processor time"
    return f"{what}: {cause}"
