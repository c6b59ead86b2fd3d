"""Runs a command that is not trusted: bounded, alone, and with none of our environment.

A fence against accidents and plain malice, not a jail: what a kernel bug gives away stays given.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import psutil
from django.conf import settings

from ledger import warden
from ledger.conf import locate_var

TAIL_BYTES = 64 * 1024
REPORT_BYTES = 4 * 1024 * 1024
TICK_SECONDS = 0.25
MARGIN_SECONDS = 15.0  # the warden's own deadline and cleaning up come first
PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclasses.dataclass(frozen=True, slots=True)
class Bounds:
    """What the command may use. Seconds are of wall and, per process, of processor time."""

    seconds: float = 300.0
    memory_bytes: int = 2 * 1024**3
    file_bytes: int = 64 * 1024**2
    open_files: int = 512
    processes: int = 256
    output_bytes: int = 256 * 1024**2

    def list_limits(self) -> dict[str, int]:
        """The resource limits by their name in the `resource` module."""
        return {
            "RLIMIT_CPU": int(self.seconds) + 1,
            "RLIMIT_AS": self.memory_bytes,
            "RLIMIT_FSIZE": self.file_bytes,
            "RLIMIT_NOFILE": self.open_files,
            # Counts all processes of the user, so it stands on top of those there are.
            "RLIMIT_NPROC": _count_processes() + self.processes,
            "RLIMIT_CORE": 0,
        }


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """How the command ended: its exit code (128 + N: signal N), the end of its output (stdout and
    stderr), what it wrote to the report's descriptor, and what the kernel kept from it: `network`,
    `processes` (of others), `files` (those that were to be hidden). Of an output longer than
    TAIL_BYTES `head` is the beginning, and `dropped` counts the bytes between the two.
    """

    code: int
    timed_out: bool
    tail: str
    report: list[bytes]
    held: frozenset[str]
    seconds: float
    head: str = ""
    dropped: int = 0


def run_confined(
    build: Callable[[int], list[str]],
    fill: Callable[[Path], object] = lambda folder: None,
    *,
    folder: Path | None = None,
    cwd: str = "",
    environment: Mapping[str, str] | None = None,
    bounds: Bounds | None = None,
    isolate: bool = True,
    jailer: bool = False,
    network: bool = False,
    tick: Callable[[], object] = lambda: None,
) -> Ended:
    """Run `build(descriptor of the report)` in `folder` (in `cwd` there), or else in one of its
    own, which `fill` has filled; wait for its end.

    When this returns or raises, and soon after this process dies too, all processes of the command
    are dead and its own folder is removed, with the HOME and TMPDIR that it was given. What
    `environment` holds is added. `tick` is called a few times a second and may raise. With
    `isolate=False` it has no namespaces, as on a kernel without; `network=True` leaves it the
    network, and a `jailer` what root may do, which it takes from the command that it runs.
    """
    bounds = bounds or Bounds()
    scratch = Path(tempfile.mkdtemp(prefix="longwatch-"))
    reading, writing = os.pipe()
    try:
        with open(reading, "rb", buffering=0) as report:
            try:
                spec = _describe(build(writing), scratch, folder, bounds, environment or {})
                spec |= {"report": writing, "isolate": isolate, "network": network, "cwd": cwd}
                spec |= {"jailer": jailer}
                process = _start_warden(spec)
            finally:
                os.close(writing)
            try:
                fill(scratch / "tree")
                started = time.monotonic()
                _begin(process)
                output, lines = _read(process, report, bounds, tick)
            finally:
                _end(process)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)  # the warden has, unless it never began
    seconds = time.monotonic() - started
    return Ended(
        code=process.returncode if process.returncode >= 0 else 128 - process.returncode,
        timed_out=process.returncode == warden.TIMED_OUT and seconds >= bounds.seconds,
        tail=output.tail.decode("utf-8", "backslashreplace"),
        report=lines[1:],
        held=_read_held(lines[:1]),
        seconds=seconds,
        head=output.head.decode("utf-8", "backslashreplace"),
        dropped=output.dropped,
    )


def _start_warden(spec: dict[str, Any]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-B", warden.__file__, json.dumps(spec)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd="/",
        env=spec["environment"],
        pass_fds=[spec["report"]],
        start_new_session=True,
    )


def _describe(
    command: list[str],
    scratch: Path,
    folder: Path | None,
    bounds: Bounds,
    environment: Mapping[str, str],
) -> dict[str, Any]:
    for name in ("home", "tmp", "tree"):
        (scratch / name).mkdir()
    folder = folder or scratch / "tree"
    return {
        "command": command,
        "scratch": str(scratch),
        "folder": str(folder),
        "seconds": bounds.seconds,
        "limits": bounds.list_limits(),
        "processes": bounds.processes,
        "hide": list_hidden(scratch, folder),
        "environment": {
            "PATH": PATH,
            "LANG": "C.UTF-8",
            "HOME": str(scratch / "home"),
            "TMPDIR": str(scratch / "tmp"),
            **environment,
        },
    }


def pick_environment(declared: Iterable[str]) -> dict[str, str]:
    """Variables for others' programs, and no more than are declared: `NAME=value`, or the name of
    one of our own to hand on, where we have it."""
    given = [entry.partition("=") for entry in declared]
    return {
        name: value if equals else os.environ[name]
        for name, equals, value in given
        if equals or name in os.environ
    }


def list_hidden(*own: Path) -> list[str]:
    """What of the site an untrusted command must not read: its keys, database and artifacts.

    Of a folder that holds one of the command's `own` everything beside that is hidden, as other
    tasks' files are. One that holds the interpreter or this code can't be, and is left.
    """
    needed = [Path(sys.prefix), Path(sys.base_prefix), Path(__file__).resolve()]
    wanted = [locate_var()]
    artifacts = str(getattr(settings, "LONGWATCH_ARTIFACTS", "") or "")
    if artifacts and "://" not in artifacts:
        wanted.append(Path(artifacts))
    for database in settings.DATABASES.values():
        if database["ENGINE"].endswith("sqlite3"):
            wanted += [Path(f"{database['NAME']}{suffix}") for suffix in ("", "-wal", "-shm")]
    paths = dict.fromkeys(path.resolve() for path in wanted)
    kept = [path.resolve() for path in own]
    hidable = [path for path in paths if not any(part.is_relative_to(path) for part in needed)]
    return [str(part) for path in hidable for part in _cover(path, kept)]


def _cover(path: Path, kept: list[Path]) -> list[Path]:
    """What must be hidden for `path` to be, but for `kept`."""
    if any(path.is_relative_to(one) for one in kept):
        return []
    if not any(one.is_relative_to(path) for one in kept):
        return [path]
    return [
        part
        for child in sorted(path.iterdir())
        if not child.is_symlink()
        for part in _cover(child, kept)
    ]


class _Output(NamedTuple):
    """The first TAIL_BYTES, how many bytes are left out, and the last TAIL_BYTES."""

    head: bytes
    dropped: int
    tail: bytes


def _read(
    process: subprocess.Popen[bytes],
    report: IO[bytes],
    bounds: Bounds,
    tick: Callable[[], object],
) -> tuple[_Output, list[bytes]]:
    """The output's two ends and the report's lines, read until both are closed."""
    assert process.stdout
    give_up = time.monotonic() + bounds.seconds + MARGIN_SECONDS
    output, reported, total, ticked = bytearray(), bytearray(), 0, 0.0
    head, cut = b"", 0
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, output)
        selector.register(report, selectors.EVENT_READ, reported)
        while selector.get_map() and time.monotonic() < give_up:
            for key, _ in selector.select(TICK_SECONDS):
                block = os.read(key.fd, TAIL_BYTES)
                if not block:
                    selector.unregister(key.fileobj)
                total += len(block)
                key.data.extend(block)
            if (over := len(output) - TAIL_BYTES) > 0:
                head += bytes(output[: min(over, TAIL_BYTES - len(head))])
                cut += over
            del output[:-TAIL_BYTES], reported[REPORT_BYTES:]
            if total > bounds.output_bytes:
                output += b"\n[ended here: more than %d bytes of output]" % bounds.output_bytes
                break
            if time.monotonic() > ticked + TICK_SECONDS:
                tick()
                ticked = time.monotonic()
    return _Output(head, cut - len(head), bytes(output)), bytes(reported).splitlines()


def _begin(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin
    with contextlib.suppress(BrokenPipeError):  # the warden is gone, as its exit code will tell
        os.write(process.stdin.fileno(), warden.BEGIN)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close the pipe that keeps the warden going, and wait for it to have cleaned up."""
    assert process.stdin
    assert process.stdout
    process.stdin.close()
    process.stdout.close()
    try:
        process.wait(MARGIN_SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _read_held(lines: list[bytes]) -> frozenset[str]:
    # Written before the command began, so it is the warden's word.
    return frozenset(json.loads(lines[0])["held"]) if lines else frozenset()


def _count_processes() -> int:
    me = os.getuid()
    count = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            count += process.uids().real == me
    return count
