"""bubblewrap, where this machine has it: a command that writes nowhere but into one folder.

The warden's own namespaces take the network and the other processes away. This adds that all
files are read-only but the folder's and a /tmp that is the command's own.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

from ledger import sandbox

PROBE_SECONDS = 20.0
TMP_BYTES = 256 * 1024**2
PRIVATE = ("/tmp", "/var/tmp")


_found: dict[str, str] = {}


def find_fault(path: str) -> str:
    """Why commands are not wrapped here; "" where they are. Found out once for a `path`, unless the
    machine was too busy to tell."""
    if path not in _found:
        fault, sure = _probe(path)
        if not sure:
            return fault
        _found[path] = fault
    return _found[path]


def _probe(path: str) -> tuple[str, bool]:
    program = shutil.which("bwrap", path=path)
    if program is None:
        return "bubblewrap is not installed on this worker", True
    try:
        ended = sandbox.run_confined(
            lambda report: _wrap(program, ["/bin/sh", "-c", "exit 0"], None, "", network=False),
            bounds=sandbox.Bounds(seconds=PROBE_SECONDS),
            jailer=True,
        )
    except OSError as error:
        return f"bubblewrap can't be started on this worker: {error}", False
    said = ended.tail.strip()[-200:] or f"exit code {ended.code}"
    fault = f"bubblewrap does not work on this worker: {said}" if ended.code else ""
    return fault, not ended.timed_out


def wrap_command(
    argv: list[str], folder: Path, cwd: str, path: str, *, network: bool = False
) -> list[str]:
    """The command that runs `argv` in there, in `folder`/`cwd`; `argv` itself where it can't."""
    if find_fault(path):
        return argv
    program = shutil.which("bwrap", path=path)
    assert program is not None
    return _wrap(program, argv, folder, cwd, network=network)


def _wrap(
    program: str, argv: list[str], folder: Path | None, cwd: str, *, network: bool
) -> list[str]:
    given = ["--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL",
             "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]  # fmt: skip
    if network:
        given.append("--share-net")
    for place in PRIVATE:
        if os.path.isdir(place):
            size = ["--size", str(TMP_BYTES)] if _knows_size(program) else []
            given += [*size, "--tmpfs", place]
    for needed in dict.fromkeys([sys.prefix, sys.base_prefix, os.path.dirname(argv[0])]):
        if needed.startswith(PRIVATE):
            given += ["--ro-bind", needed, needed]
    if folder is not None:
        given += ["--bind", str(folder), str(folder), "--chdir", str(folder / cwd)]
    for name in ("HOME", "TMPDIR"):
        given += ["--setenv", name, PRIVATE[0]]
    return [program, *given, "--", *argv]


@functools.cache
def _knows_size(program: str) -> bool:
    done = subprocess.run([program, "--help"], capture_output=True, text=True, check=False)
    return "--size" in done.stdout + done.stderr
