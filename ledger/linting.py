"""ruff over files that are not trusted: never by their own configuration, always within bounds."""

from __future__ import annotations

import importlib
import subprocess
from collections.abc import Iterable
from pathlib import Path

from ledger.sandbox import PATH

SECONDS = 120.0


class RuffFailed(Exception):
    """ruff refused what it was asked to do; the text is its own last words."""


def find_ruff() -> str:
    """The path of the binary, as ruff's own package finds it. Raises RuffFailed."""
    try:
        return str(importlib.import_module("ruff.__main__").find_ruff_bin())
    except (ImportError, FileNotFoundError) as error:
        raise RuffFailed(f"ruff is not installed here: {error}") from None


def run_ruff(
    root: Path, paths: Iterable[str], rules: Iterable[str], target: str, *options: str
) -> str:
    """What `ruff check` writes of these paths below `root`. Raises RuffFailed."""
    command = [
        find_ruff(),
        *("check", "--isolated", "--no-cache", "--no-respect-gitignore", "--quiet"),
        *("--target-version", target, "--select", ",".join(rules), *options),
        # Never bare: `@name` would be read as a list of arguments, `-name` as an option.
        *(f"./{path}" for path in paths),
    ]
    try:
        done = subprocess.run(
            command,
            cwd=root,
            env={"PATH": PATH, "LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            check=False,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        raise RuffFailed(f"ruff did not end in {SECONDS:g} s") from None
    if done.returncode not in {0, 1}:
        words = " ".join(done.stderr.split())[:500]
        raise RuffFailed(words or f"ruff ended with {done.returncode}")
    return done.stdout
