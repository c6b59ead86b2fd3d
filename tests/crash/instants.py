"""`python -m tests.crash.instants`: runs one unit again and again, each time in a fork that is
killed at another instant: before or after its n-th call into the system or the database.

The product knows nothing of it. `sys.monitoring` tells of every call to a function that is not
Python's; those that leave the process are counted.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import traceback
import types
from pathlib import Path
from typing import Any

TOOL = 4
CALLS = {
    # files
    "open", "write", "flush", "fsync", "replace", "rename", "unlink", "mkdir", "utime", "close",
    "fchmod", "chmod", "mkstemp",
    # SQLite, PostgreSQL
    "execute", "executemany", "commit", "rollback", "wait", "wait_c",
    # sockets
    "connect", "send", "sendall", "recv_into",
}  # fmt: skip
SIZES = {"folder": 2_200_000, "bucket": 9 << 20}
"""Of the artifact: more than two chunks, or than one part."""


def make_bytes(seed: object, size: int) -> bytes:
    """As many bytes, of that seed's own."""
    return (hashlib.sha512(str(seed).encode()).digest() * (size // 64 + 1))[:size]


def make_flow() -> Any:
    """A unit that keeps an artifact and files, and one that reads both."""
    from ledger.workflows import Workflow

    flow = Workflow("instants", version="1")

    @flow.step(retries=10)
    def keep(ctx: Any) -> dict[str, Any]:
        seed, size = ctx.input["seed"], ctx.input["size"]
        (ctx.workspace / "file").write_bytes(make_bytes(f"file {seed}", 50_000))
        ctx.save_artifact("kept", make_bytes(seed, size))
        return {"size": size}

    @flow.step
    def look(ctx: Any) -> dict[str, Any]:
        seed, size = ctx.input["seed"], ctx.input["size"]
        with ctx.open_artifact("kept") as file:
            same = file.read() == make_bytes(seed, size)
        files = (ctx.workspace / "file").read_bytes() == make_bytes(f"file {seed}", 50_000)
        return {"same": same and files}

    return flow


class Reaper:
    """Counts the calls, and kills this process at one of them."""

    def __init__(self, at: int) -> None:
        self.at, self.seen = at, list[str]()

    def begin(self) -> None:
        monitoring = sys.monitoring
        monitoring.use_tool_id(TOOL, "instants")
        events = monitoring.events
        monitoring.register_callback(TOOL, events.CALL, self._before)
        monitoring.register_callback(TOOL, events.C_RETURN, self._after)
        monitoring.set_events(TOOL, events.CALL)  # C_RETURN comes with it

    def end(self) -> None:
        sys.monitoring.set_events(TOOL, 0)
        sys.monitoring.free_tool_id(TOOL)

    def _before(self, code: Any, offset: int, called: Any, first: Any) -> None:
        self._count("before", called)

    def _after(self, code: Any, offset: int, called: Any, first: Any) -> None:
        self._count("after", called)

    def _count(self, when: str, called: Any) -> None:
        name = getattr(called, "__name__", "")
        if name not in CALLS or isinstance(called, (types.FunctionType, types.MethodType, type)):
            return
        owner = getattr(called, "__objclass__", type(getattr(called, "__self__", None)))
        if owner in {str, bytes, types.GeneratorType, types.CoroutineType}:  # `"a".replace`
            return
        if len(self.seen) == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.seen.append(f"{when} {name}")


def run_unit(lane: str, at: int) -> list[str]:
    """Claim the task of a lane and run its first unit; the instants there were, if it lives."""
    from ledger.registry import registered
    from ledger.runner import Engine, run_attempt
    from ledger.testing import _OwnLane

    engine = Engine(f"instants:{os.getpid()}:{lane}")
    engine.picker = _OwnLane(lane)
    reaper = Reaper(at)
    with registered(make_flow()):
        held = engine.claim()
        assert held is not None
        reaper.begin()
        run_attempt(engine, held)
        reaper.end()
    return reaper.seen


def main() -> None:
    """Reads `lane at file` from stdin, runs that in a fork, and answers how it ended."""
    import django

    django.setup()
    from ledger import blobs, registry, runner, testing  # noqa: F401  before the fork: once

    blobs.get_storage()
    registry.load_all()
    for line in sys.stdin:
        lane, at, file = line.split()
        pid = os.fork()
        if not pid:
            code = 1
            try:
                Path(file).write_text(json.dumps(run_unit(lane, int(at))))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        sys.stdout.write("killed\n" if os.WIFSIGNALED(status) else f"ended {status >> 8}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
