"""The process of an isolated step: loads the workflow, runs the step, tells what came of it.

Started by `isolation.run_isolated` in a worker, which holds the fence, beats, and does all that
`ctx` is asked for. Here is no database: what the ORM is asked for is refused.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import faulthandler
import functools
import logging
import math
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn
from uuid import UUID

from ledger.holds import Hold
from ledger.wire import Wire, encode_outcome

if TYPE_CHECKING:
    from ledger.blobs import Source
    from ledger.workflows import Workflow

CHECK_SECONDS = 0.05
"""ctx.check() asks the worker so often at most."""

LOG_BURST = 50
"""Log lines a second that are sent at once; more are sent in one message, the last of them."""

REPORT_MEMORY = 64 * 1024**2
"""On top of the step's memory, to tell that it was not enough."""


def run_child(descriptor: int) -> NoReturn:
    """Serve the worker at the other end of the socket, once."""
    pid = os.getpid()
    status = 1
    try:
        wire = Wire(socket.socket(fileno=descriptor))
        told = _find_outcome(wire)
        if os.getpid() == pid:  # not in a process that the step forked
            wire.send(told)
        sys.stdout.flush()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)  # what the step left running, threads too, keeps nobody


def _find_outcome(wire: Wire) -> dict[str, Any]:
    try:
        start, _ = wire.receive()
        _bound_process(start)
        return {"done": encode_outcome(_run_step(start, wire))}
    except BaseException as error:
        _widen_memory()
        return {"raised": _describe(error)}


def _run_step(start: dict[str, Any], wire: Wire) -> Any:
    import django

    django.setup()
    _refuse_database()

    from ledger import asynchronous, registry, workflows

    workflow = registry.load_located(*start["located"])
    step = workflow.steps[workflow.index_of(start["unit"]["step"])]
    ctx = RemoteContext(start["unit"], workflow, wire)
    value = asynchronous.call_step(step, ctx)
    ctx.log.flush()
    return workflows.normalise(value, workflow, step)


def _bound_process(start: dict[str, Any]) -> None:
    with contextlib.suppress(AttributeError):  # Linux: die with the worker
        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != start["parent"]:
        os._exit(0)
    import resource

    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if start["memory"] is not None:
        # Of private memory: mapped libraries, which all processes share, are not the step's.
        kind = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (start["memory"], start["memory"] + REPORT_MEMORY))
    if start["cpu"] is not None:
        seconds = math.ceil(start["cpu"])
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))


def _widen_memory() -> None:
    import resource

    for kind in (resource.RLIMIT_DATA, resource.RLIMIT_AS):
        with contextlib.suppress(ValueError, OSError):
            most = resource.getrlimit(kind)[1]
            resource.setrlimit(kind, (most, most))


def _refuse_database() -> None:
    from django.db.backends.base.base import BaseDatabaseWrapper

    def refuse(connection: Any) -> NoReturn:
        raise RuntimeError("an isolated step has no database; ask for what it needs before it")

    BaseDatabaseWrapper.connect = refuse  # type: ignore[method-assign,assignment]


def _describe(error: BaseException) -> dict[str, Any]:
    """What the step raised, as data for the worker."""
    from ledger.errors import Unserialisable
    from ledger.failures import describe_error
    from ledger.outcomes import Fail, RetryLater

    if (number := getattr(error, "_from_worker", None)) is not None:
        return {"answer": number}
    if isinstance(error, RetryLater):
        return {"retry_later": [error.seconds, str(error)]}
    if isinstance(error, Fail):
        return {"fail": [str(error.reason), str(error.message)]}
    if isinstance(error, Unserialisable):
        return {"unserialisable": [error.path, error.why]}
    return {"error": describe_error(error)}


class RemoteContext:
    """What `ledger.context.Context` is to a step in the worker, asked for through the wire."""

    def __init__(self, unit: dict[str, Any], workflow: Workflow, wire: Wire) -> None:
        self._workflow = workflow
        self._input = unit["input"]
        self._wire = wire
        self._pid = os.getpid()
        self._turn = threading.RLock()  # one question at a time, whichever thread asks
        self._asked = 0
        self._next_check = 0.0
        self.task_id = UUID(unit["task_id"])
        self.step: str = unit["step"]
        self.turn: int = unit["turn"]
        self.round: int = unit["round"]
        self.attempt: int = unit["attempt"]
        self.title: str = unit["title"]
        self.submitted_by: str = unit["submitted_by"]
        self.answer: dict[str, Any] | None = unit["answer"]
        self.signal: dict[str, Any] | None = unit["signal"]
        self.log = RemoteLog(self._tell)

    @functools.cached_property
    def input(self) -> Any:
        """See Context."""
        return self._workflow.read_input(self._input)

    @functools.cached_property
    def progress(self) -> dict[str, Any]:
        """See Context."""
        return dict(self._ask("progress"))

    @functools.cached_property
    def feedback(self) -> Any:
        """See Context."""
        return self._ask("feedback")

    @functools.cached_property
    def children(self) -> list[dict[str, Any]]:
        """See Context."""
        return list(self._ask("children"))

    def output_of(self, step: str) -> Any:
        """See Context."""
        return self._ask("output_of", step=step)

    def idempotency_key(self, name: str) -> str:
        """See Context."""
        return f"{self.task_id}:{self.step}:{self.turn}:{self.round}:{name}"

    def secret(self, name: str) -> str:
        """See Context."""
        from ledger.secrets import hide_value

        value = str(self._ask("secret", name=name))
        hide_value(value)
        return value

    def allow_tool(self, name: str) -> None:
        """See Context."""
        self._ask("allow_tool", name=name)

    def check(self) -> None:
        """See Context."""
        if time.monotonic() >= self._next_check:
            self._ask("check")
            self._next_check = time.monotonic() + CHECK_SECONDS

    def report(self, done: float | None = None, total: float | None = None, note: str = "") -> None:
        """See Context."""
        self._ask("report", done=done, total=total, note=str(note))

    def spend(
        self,
        tokens_in: int = 0,
        tokens_out: int = 0,
        cost: Decimal | str | int = 0,
        note: str = "",
        key: str | None = None,
    ) -> None:
        """See Context."""
        told = cost if isinstance(cost, float) else str(cost)
        self._ask(
            "spend", tokens_in=tokens_in, tokens_out=tokens_out, cost=told, note=note, key=key
        )

    def once(
        self, name: str, fn: Any, *, verify: Any = None, compensate: Any = None, args: Any = None
    ) -> Any:
        """See Context."""
        from ledger.effects import do_once

        return do_once(self, name, fn, verify, compensate, args)

    def handoff(self, tokens: int | None = None) -> Any:
        """See Context."""
        return SimpleNamespace(**self._ask("handoff", tokens=tokens))

    def _begin_effect(self, name: str, args: Any, compensation: str) -> dict[str, Any]:
        from ledger import canonical

        canonical.check_json(args, "args")
        given = {"name": name, "args": args, "compensation": compensation}
        return dict(self._ask("_begin_effect", **given))

    def _finish_effect(self, name: str, result: Any) -> Any:
        from ledger import canonical

        canonical.check_json(result, f"the result of effect {name}")
        return self._ask("_finish_effect", name=name, result=result)

    def reserve(
        self, *, cost: Decimal | str | int = 0, tokens: int = 0, key: str | None = None
    ) -> Hold:
        """See Context."""
        told = cost if isinstance(cost, float) else str(cost)
        return Hold(self, str(self._ask("_reserve", cost=told, tokens=tokens, key=key)))

    def _settle_hold(self, hold: str, given: dict[str, Any]) -> None:
        self._ask("_settle_hold", hold=hold, given=given)

    def _release_hold(self, hold: str) -> None:
        self._ask("_release_hold", hold=hold)

    def save_artifact(
        self, name: str, source: Source, media_type: str | None = None
    ) -> SimpleNamespace:
        """See Context; what is returned has `id`, `name` and `media_type`."""
        from ledger.blobs import open_regular, read_chunks

        with contextlib.ExitStack() as stack:
            if isinstance(source, Path):
                file: Any = stack.enter_context(open_regular(source))
            else:
                file = stack.enter_context(tempfile.TemporaryFile())
                file.writelines(read_chunks(source))
                file.flush()
                file.seek(0)
            told = self._ask("save_artifact", file.fileno(), name=name, media_type=media_type)
        return SimpleNamespace(**told | {"id": UUID(told["id"])})

    def open_artifact(self, ref: UUID | str, **which: Any) -> BinaryIO:
        """See Context."""
        with self._turn:
            self._ask("open_artifact", ref=str(ref), **which)
            assert self._file is not None
            return os.fdopen(self._file, "rb")

    @functools.cached_property
    def workspace(self) -> Path:
        """See Context."""
        return Path(self._ask("workspace"))

    def _ask(self, what: str, file: int | None = None, /, **given: Any) -> Any:
        """What the worker's own `ctx` answers. Raises what it raises."""
        if os.getpid() != self._pid:
            raise RuntimeError(f"{what}(): not in a process that the step forks")
        with self._turn:
            self._asked += 1
            self._wire.send({"ask": what, "given": given}, file)
            answer, self._file = self._wire.receive()
        if "error" in answer:
            raise _rebuild_error(answer["error"], self._asked)
        return answer["value"]

    def _tell(self, lines: list[list[Any]]) -> None:
        if os.getpid() == self._pid:
            with self._turn:
                self._wire.send({"log": lines})


class RemoteLog(logging.Logger):
    """A logger whose lines go to the worker, which keeps their tail and masks them."""

    def __init__(self, tell: Any) -> None:
        super().__init__("longwatch.step", logging.DEBUG)
        self.propagate = False
        self._handler = _Sender(tell)
        self.addHandler(self._handler)

    def flush(self) -> None:
        """Send what waits."""
        self._handler.flush()


class _Sender(logging.Handler):
    def __init__(self, tell: Any) -> None:
        from collections import deque

        from ledger.unitlog import MAX_LINES

        super().__init__()
        self._tell = tell
        self._waiting: deque[list[Any]] = deque(maxlen=MAX_LINES)
        self._window = 0.0
        self._left = LOG_BURST

    def emit(self, record: logging.LogRecord) -> None:
        """Send at once what comes slowly, so that what a killed step said last is there; of a
        flood the last lines of each second."""
        from ledger.steplog import write_line

        self._waiting.append([record.created, record.levelno, write_line(record)])
        now = time.monotonic()
        if now >= self._window:
            self._window, self._left = now + 1.0, LOG_BURST
        if self._left > 0:
            self._left -= 1
            self.flush()

    def flush(self) -> None:
        """Send what waits."""
        if self._waiting:
            lines, self._waiting = list(self._waiting), self._waiting.copy()
            self._waiting.clear()
            self._tell(lines)


def _rebuild_error(told: dict[str, Any], number: int) -> BaseException:
    """The worker's exception as one of the same class where that is known here."""
    from ledger import blobs, deadlines, errors, secrets

    kind: Any = RuntimeError
    for module in (errors, secrets, blobs, deadlines, builtins):
        found = vars(module).get(told["type"])
        if isinstance(found, type) and issubclass(found, BaseException):
            kind = found
            break
    error: BaseException = kind.__new__(kind)
    error.args = (told["message"],)
    vars(error).update(told["facts"], _from_worker=number)
    return error
