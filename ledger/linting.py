"""ruff over files that are not trusted: never by their own configuration, always within bounds."""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import selectors
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from ledger.sandbox import PATH

SECONDS = 120.0
TICK_SECONDS = 0.25
MAX_OUTPUT = 8 * 1024**2
MEMORY = 2 * 1024**3
BLOCK = 65_536


class RuffFailed(Exception):
    """ruff refused what it was asked to do; the text is its own last words."""


def find_ruff() -> str:
    """The path of the binary, as ruff's own package finds it. Raises RuffFailed."""
    try:
        return str(importlib.import_module("ruff.__main__").find_ruff_bin())
    except (ImportError, FileNotFoundError) as error:
        raise RuffFailed(f"ruff is not installed here: {error}") from None


def run_ruff(
    root: Path,
    paths: Iterable[str],
    rules: Iterable[str],
    target: str,
    *options: str,
    tick: Callable[[], object] = lambda: None,
) -> str:
    """What `ruff check` writes of these paths below `root`: whole lines, for 8 MiB at most. `tick`
    is called meanwhile and may raise, which ends it. Raises RuffFailed.
    """
    command = [
        find_ruff(),
        *("check", "--isolated", "--no-cache", "--no-respect-gitignore", "--quiet"),
        *("--target-version", target, "--select", ",".join(rules), *options),
        # Never bare: `@name` would be read as a list of arguments, `-name` as an option.
        *(f"./{path}" for path in paths),
    ]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command,
            cwd=root,
            env={"PATH": PATH, "LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as process,
    ):
        try:
            output, is_whole = _read_output(process, tick)
            if is_whole:
                process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            raise RuffFailed(f"ruff did not end in {SECONDS:g} s") from None
        finally:
            process.kill()
        code = process.wait()
        errors.seek(0)
        words = " ".join(errors.read(BLOCK).decode(errors="replace").split())[:500]
    if is_whole and code not in {0, 1}:
        raise RuffFailed(words or f"ruff ended with {code}")
    return output


def _read_output(process: subprocess.Popen[bytes], tick: Callable[[], object]) -> tuple[str, bool]:
    """What it writes to its end, or else as many whole lines as there is room for."""
    assert process.stdout is not None
    with contextlib.suppress(AttributeError, OSError, ValueError):  # another system; ended already
        # So that a file made for it takes no more than this.
        resource.prlimit(process.pid, resource.RLIMIT_AS, (MEMORY, MEMORY))
    output = bytearray()
    give_up = time.monotonic() + SECONDS
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while time.monotonic() < give_up:
            tick()
            if not selector.select(TICK_SECONDS):
                continue
            block = os.read(process.stdout.fileno(), BLOCK)
            if not block:
                return output.decode(errors="replace"), True
            output += block
            if len(output) > MAX_OUTPUT:
                end = output.rfind(b"\n", 0, MAX_OUTPUT) + 1
                if not end:  # nothing at all would be a pass
                    raise RuffFailed(f"ruff wrote a line of over {MAX_OUTPUT >> 20} MiB")
                return output[:end].decode(errors="replace"), False
    raise subprocess.TimeoutExpired("ruff", SECONDS)
