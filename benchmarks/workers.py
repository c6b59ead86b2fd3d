"""Processes of a run: started together, ready before the clock starts, ended by their pids."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.work import wait_for
from tests.pg import die_with_parent

ROOT = Path(__file__).resolve().parent.parent
GRACE = 20.0
READY = "READY"


@contextlib.contextmanager
def running(*command: str) -> Iterator[Callable[[], str]]:
    """A Python process of this command; SIGTERM at the end. Yields a reader of what it wrote,
    which raises when it has ended by itself."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )

        def read_log() -> str:
            log.seek(0)
            text = log.read().decode(errors="replace")
            if process.poll() is not None:
                raise RuntimeError(f"{' '.join(command)} ended by itself:\n{text[-3000:]}")
            return text

        try:
            yield read_log
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(GRACE)


@contextlib.contextmanager
def two_loops(module: str, *arguments: str) -> Iterator[None]:
    """Two idle workers of a reference: processes of `module worker`."""
    with contextlib.ExitStack() as stack:
        command = ("-m", module, "worker", *arguments, "--name")
        logs = [stack.enter_context(running(*command, name)) for name in ("1", "2")]
        wait_for("both workers are ready", lambda: all(READY in read_log() for read_log in logs))
        yield


def repeat(unit: Callable[[], object]) -> None:
    """Call `unit` until SIGTERM, which ends the process wherever it is."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(READY, flush=True)
    while True:
        unit()
