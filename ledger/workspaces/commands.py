"""A set-up command: run in a group of its own until it ends or the unit does."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import select
import shlex
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from ledger.processes import describe_exit
from ledger.sandbox import pick_environment

LAST_LINES: Final = 20
LONGEST_LINE: Final = 2_000
CHUNK: Final = 65_536
PIPE: Final = 1 << 20
"""Bytes that are read after its end: what a pipe may hold, and no more of what has left its group
and writes on."""

LOOK_SECONDS: Final = 0.05

KEPT: Final = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ", "LANG", "LC_ALL", "LC_CTYPE",
)  # fmt: skip
"""What programs and their caches are found by. The rest names the database and holds keys of
clouds, and the command may run other people's code."""


class SetupFailed(Exception):
    """A task's folder could not be set up; the message names the command and says why."""

    def __init__(self, argv: Sequence[str], why: str) -> None:
        super().__init__(f"the set-up command `{shlex.join(argv)}` {why}")


def run_command(
    argv: Sequence[str],
    folder: Path,
    log: logging.Logger,
    check: Callable[[], None],
    env: Sequence[str] = (),
) -> None:
    """Run it in `folder`, what it writes to `log`; `check`, called all along, may raise to end it.
    Of our environment it has KEPT, and what `env` declares.

    Ends with all of its group, however that is. Raises SetupFailed, with its last lines.
    """
    log.info("set-up: %s", shlex.join(argv))
    try:
        process = subprocess.Popen(
            argv, cwd=folder, env=pick_environment([*KEPT, *env]), bufsize=0, process_group=0,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        raise SetupFailed(argv, f"can't be started: {error}") from error
    last: deque[str] = deque(maxlen=LAST_LINES)
    try:
        for line in _read_lines(process, check):
            log.info("%s", line)
            last.append(line)
    finally:
        _end_group(process)
        code = process.wait()
        assert process.stdout is not None
        process.stdout.close()
    if code:
        how = f"ended with exit status {code}" if code > 0 else f"failed: {describe_exit(code)}"
        raise SetupFailed(argv, "\n".join([f"{how}; the last it wrote:" if last else how, *last]))


def _read_lines(process: subprocess.Popen[bytes], check: Callable[[], None]) -> Iterator[str]:
    """What it writes until it has ended. What it left running is ended, not waited for."""
    assert process.stdout is not None
    out = process.stdout.fileno()
    os.set_blocking(out, False)
    rest = b""
    left = PIPE
    while left > 0:
        check()
        ended = _has_ended(process)
        if ended:
            _end_group(process)
        try:
            chunk: bytes | None = os.read(out, CHUNK)
        except BlockingIOError:
            chunk = None
        if chunk:
            left -= len(chunk) if ended else 0
            *lines, rest = re.split(rb"[\r\n]+", rest + chunk)
            lines += [rest] if len(rest) > LONGEST_LINE else []
            rest = b"" if len(rest) > LONGEST_LINE else rest
            yield from (line.decode(errors="replace") for line in lines if line)
        elif ended:
            break
        else:
            select.select([out] if chunk is None else [], [], [], LOOK_SECONDS)
    if rest:
        yield rest.decode(errors="replace")


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    # Not reaped: its number stays its own until its group is ended.
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
