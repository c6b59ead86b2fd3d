"""ruff's safe fixes, by the binary that ruff itself locates, never by the tree's configuration."""

from __future__ import annotations

import functools
import importlib
import itertools
import json
import subprocess
from collections.abc import Iterable
from pathlib import Path

from harness_site.workflows.modernise.checks import copy_tree
from harness_site.workflows.modernise.tree import list_changes, list_files
from ledger.sandbox import PATH

RULES = ("UP", "F", "I", "B", "SIM", "C4", "RUF", "PIE", "RET")
TARGET = "py312"
MAX_FILE_BYTES = 512 * 1024
"""A larger file is left alone: neither ruff nor a person's eyes are for generated megabytes."""

CHUNK = 200  # files per call: a command line has an end
SECONDS = 120.0


class RuffFailed(Exception):
    """ruff refused what it was asked to do; the text is its own last words."""


def find_ruff() -> str:
    """The path of the binary, as ruff's own package finds it."""
    return str(importlib.import_module("ruff.__main__").find_ruff_bin())


@functools.cache
def find_rule_problem(rules: tuple[str, ...]) -> str:
    """Why ruff does not take `rules`; empty when it does."""
    here = Path(__file__)  # any file will do: nothing is fixed
    try:
        _run_ruff(here.parent, [here.name], rules, TARGET)
    except RuffFailed as error:
        return str(error)
    return ""


def list_candidates(root: Path) -> list[str]:
    """The Python files that ruff may work on."""
    return [
        path
        for path in list_files(root)
        if path.endswith(".py") and (root / path).stat().st_size <= MAX_FILE_BYTES
    ]


def plan_changes(root: Path, trial: Path, rules: Iterable[str], target: str) -> list[str]:
    """The files of `root` that the safe fixes of `rules` would change, tried in a copy at `trial`.

    `root` stays as it is. Raises RuffFailed.
    """
    copy_tree(root, trial, list_files(root))
    apply_fixes(trial, list_candidates(trial), rules, target)
    return list_changes(root, trial)


def apply_fixes(root: Path, paths: Iterable[str], rules: Iterable[str], target: str) -> None:
    """Fix the files in place. Raises RuffFailed. What ruff can't read or parse it leaves alone."""
    for chunk in itertools.batched(paths, CHUNK):
        _run_ruff(root, chunk, rules, target, "--fix-only")


def count_findings(root: Path, path: str, rules: Iterable[str], target: str) -> int:
    """How many findings of `rules` the file has."""
    output = _run_ruff(
        root, [path], rules, target, "--exit-zero", "--statistics", "--output-format=json"
    )
    return sum(line["count"] for line in json.loads(output or "[]"))


def _run_ruff(
    root: Path, paths: Iterable[str], rules: Iterable[str], target: str, *options: str
) -> str:
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
