"""Checks of a tree: does every file compile, and do as many tests pass as before."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from harness_site.workflows.modernise import probe
from harness_site.workflows.shared.tree import copy_tree, list_files, show_path
from ledger import sandbox

TESTS = ("unittest", "pytest", "compile")
"""How tests can be run. What a submitter gives is one of these names, never a command."""


@dataclasses.dataclass(frozen=True, slots=True)
class TestRun:
    """One run: how many tests ran and were skipped, which files do not compile (paths fit to
    show), what the kernel kept from them, and the end of the output. `problem` says in a few words
    why it is no pass.
    """

    __test__ = False  # for pytest: no test class

    kind: str
    ran: int
    skipped: int
    compiled: int
    broken: list[str]
    problem: str
    tail: str
    held: list[str]
    seconds: float

    @property
    def ok(self) -> bool:
        """True when everything that ran passed."""
        return not self.problem


def run_tests(
    kind: str,
    tree: Path,
    *,
    originals: Path | None = None,
    undone: Iterable[str] = (),
    bounds: sandbox.Bounds | None = None,
    isolate: bool = True,
    tick: Callable[[], object] = lambda: None,
) -> TestRun:
    """Run the tests of `tree` by the way named `kind`, on a copy, in the sandbox.

    The files `undone` are taken from `originals` instead. `tick` is called while it runs and may
    raise.
    """
    bounds = bounds or sandbox.Bounds()

    def fill(folder: Path) -> None:
        copy_tree(tree, folder, list_files(tree))
        if originals is not None:
            copy_tree(originals, folder, undone)

    ended = sandbox.run_confined(
        lambda report: [sys.executable, "-I", "-B", probe.__file__, kind, str(report)],
        fill,
        bounds=bounds,
        isolate=isolate,
        tick=tick,
    )
    return _read_run(kind, ended, bounds)


def compare_runs(before: TestRun, after: TestRun) -> str:
    """Why `after` is worse than `before`, in a few words; empty when it is not."""
    if after.problem:
        return f"{after.problem}; before, {before.ran} ran and none did"
    if newly := sorted(set(after.broken) - set(before.broken)):
        return f"{newly[0]} does not compile"
    if after.ran < before.ran:
        return f"{after.ran} tests ran, {before.ran} before"
    if after.ran - after.skipped < before.ran - before.skipped:
        return f"{after.skipped} tests were skipped, {before.skipped} before"
    return ""


def _read_run(kind: str, ended: sandbox.Ended, bounds: sandbox.Bounds) -> TestRun:
    counts = _read_counts(ended.report)
    broken = counts.get("broken")
    return TestRun(
        kind=kind,
        ran=_read_count(counts, "ran"),
        skipped=_read_count(counts, "skipped"),
        compiled=_read_count(counts, "compiled"),
        broken=[show_path(path) for path in broken if isinstance(path, str)]
        if isinstance(broken, list)
        else [],
        problem=_find_problem(ended, counts, bounds),
        tail=ended.tail,
        held=sorted(ended.held),
        seconds=round(ended.seconds, 2),
    )


def _find_problem(ended: sandbox.Ended, counts: dict[str, Any], bounds: sandbox.Bounds) -> str:
    ran, failed = _read_count(counts, "ran"), _read_count(counts, "failed")
    if ended.timed_out:
        return f"the tests did not end in {bounds.seconds:g} s"
    if not counts:
        return f"the tests ended without a result ({_name_exit(ended.code)})"
    if problem := counts.get("problem"):
        return str(problem)[:200]
    if failed:
        return f"{failed} of {ran} tests failed"
    if not ran:
        return "no tests were found"
    return "" if ended.code == 0 else f"the tests ended with {_name_exit(ended.code)}"


def _read_counts(report: list[bytes]) -> dict[str, Any]:
    # The tests may have written here too: anything but a JSON object is no result.
    try:
        counts = json.loads(report[-1]) if report else {}
    except (ValueError, RecursionError):
        return {}
    return counts if isinstance(counts, dict) else {}


def _read_count(counts: dict[str, Any], name: str) -> int:
    value = counts.get(name)
    return value if isinstance(value, int) and 0 <= value < 2**31 else 0


def _name_exit(code: int) -> str:
    return f"signal {code - 128}" if code > 128 else f"exit code {code}"
