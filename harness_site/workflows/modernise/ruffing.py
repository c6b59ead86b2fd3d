"""ruff's safe fixes, by the binary that ruff itself locates, never by the tree's configuration."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable
from pathlib import Path

from harness_site.workflows.shared.tree import copy_tree, list_changes, list_files
from ledger.linting import RuffFailed, run_ruff

RULES = ("UP", "F", "I", "B", "SIM", "C4", "RUF", "PIE", "RET")
TARGET = "py312"
MAX_FILE_BYTES = 512 * 1024
"""A larger file is left alone: neither ruff nor a person's eyes are for generated megabytes."""

CHUNK = 200  # files per call: a command line has an end


@functools.cache
def find_rule_problem(rules: tuple[str, ...]) -> str:
    """Why ruff does not take `rules`; empty when it does."""
    here = Path(__file__)  # any file will do: nothing is fixed
    try:
        run_ruff(here.parent, [here.name], rules, TARGET)
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
        run_ruff(root, chunk, rules, target, "--fix-only")


def count_findings(root: Path, path: str, rules: Iterable[str], target: str) -> int:
    """How many findings of `rules` the file has."""
    output = run_ruff(
        root, [path], rules, target, "--exit-zero", "--statistics", "--output-format=json"
    )
    return sum(line["count"] for line in json.loads(output or "[]"))
