"""A script: compiles every Python file of a tree, runs its tests and counts them.

Runs inside the sandbox as `python -I -B probe.py KIND DESCRIPTOR`, in the tree's root, and writes
one line of JSON to the descriptor: compiled, broken (paths), ran, skipped, failed, ok, problem. The
tree is in control of this process, so whoever reads that line believes none of it too much.
"""

from __future__ import annotations

import json
import os
import sys
import unittest
import warnings
from pathlib import Path
from typing import Any

type Counts = dict[str, Any]


def main(kind: str, report: int) -> None:
    """Run the tests of `kind` (unittest, pytest, compile) and end the process."""
    tree = Path.cwd()
    compiled, broken = _compile_all(tree)
    counts: Counts = {"compiled": compiled, "broken": broken}
    project = _find_project(tree)
    os.chdir(project)
    sys.path[:0] = [str(path) for path in (project, project / "src") if path.is_dir()]
    sys.argv = [str(project)]
    if kind == "unittest":
        counts |= _run_unittest(project)
    elif kind == "pytest":
        counts |= _run_pytest(project)
    else:
        counts |= {"ran": compiled, "skipped": 0, "failed": 0, "ok": True}
    sys.stdout.flush()
    os.write(report, json.dumps(counts).encode() + b"\n")
    # At once: a thread or an exit hook that a test left behind must not hold up the answer.
    os._exit(0 if counts["ok"] else 1)


def _compile_all(tree: Path) -> tuple[int, list[str]]:
    compiled, broken = 0, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for folder, _, names in os.walk(tree):
            for path in (Path(folder, name) for name in names if name.endswith(".py")):
                try:
                    compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
                    compiled += 1
                except (Exception, RecursionError, MemoryError):
                    broken.append(path.relative_to(tree).as_posix())
    return compiled, sorted(broken)


def _find_project(tree: Path) -> Path:
    """The tree, or its only folder when that is no package: what a source archive holds."""
    entries = list(tree.iterdir())
    if len(entries) == 1 and entries[0].is_dir() and not (entries[0] / "__init__.py").exists():
        return entries[0]
    return tree


def _run_unittest(project: Path) -> Counts:
    loader, suite = unittest.TestLoader(), unittest.TestSuite()
    for name in (".", "src", "tests", "test"):
        folder = project / name
        # A package below the project is found from there; a plain folder is a start of its own.
        if name == "." or (folder.is_dir() and not (folder / "__init__.py").exists()):
            suite.addTest(loader.discover(str(folder), top_level_dir=str(folder)))
    result = unittest.TextTestRunner(stream=sys.stdout).run(suite)
    return {
        "ran": result.testsRun,
        "skipped": len(result.skipped),
        "failed": len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses),
        "ok": result.wasSuccessful(),
    }


def _run_pytest(project: Path) -> Counts:
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # the site's plugins are not the tree's
    try:
        import pytest
    except ImportError:
        return {"ok": False, "problem": "pytest is not installed here"}
    counter = _Counter()
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", str(project), str(project)]
    code = pytest.main(options, plugins=[counter])
    return {
        "ran": counter.ran,
        "skipped": counter.skipped,
        "failed": counter.failed,
        "ok": code == 0,
    }


class _Counter:
    """A pytest plugin that counts tests as unittest does: a skipped one ran."""

    ran = skipped = failed = 0

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Count a test at its call, or at the set-up that it never got past."""
        if report.when == "call" or (report.when == "setup" and not report.passed):
            self.ran += 1
            self.skipped += report.skipped
        self.failed += report.failed

    def pytest_collectreport(self, report: Any) -> None:
        """A module that can't be imported is a failure, as it is to unittest."""
        self.failed += report.failed


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
