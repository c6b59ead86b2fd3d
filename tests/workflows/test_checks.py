"""Counting tests: by unittest, by pytest, and by compiling alone."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest

from harness_site.workflows.modernise.checks import TestRun, compare_runs, run_tests
from harness_site.workflows.shared.tree import list_files
from ledger.sandbox import Bounds

SUITE = """
import unittest
class Suite(unittest.TestCase):
    def test_one(self): pass
    def test_two(self): pass
    @unittest.skip("later")
    def test_three(self): pass
    def helper(self): pass
"""
FAILING = SUITE + "    def test_four(self): self.fail('by design')\n"
PLAIN = """
import pytest
def test_one(): pass
def test_two(): pass
@pytest.mark.skip
def test_three(): pass
@pytest.fixture
def broken(): raise RuntimeError
"""


def write_tree(root: Path, files: dict[str, str] | None = None, **modules: str) -> Path:
    """Files by their path, modules of the root by their name."""
    for name, content in (files or {f"{name}.py": text for name, text in modules.items()}).items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return root


def get_counts(run: TestRun) -> tuple[int, int, bool]:
    return run.ran, run.skipped, run.ok


@pytest.mark.parametrize(
    "files",
    [
        {"pkg/__init__.py": "", "pkg/test_a.py": SUITE},
        {"pkg/__init__.py": "", "tests/test_a.py": SUITE},
        {"src/pkg/__init__.py": "", "tests/test_a.py": "import pkg\n" + SUITE},
        {"src/pkg/__init__.py": "", "src/pkg/test_a.py": "import pkg\n" + SUITE},
        {"name-1.0/pkg/__init__.py": "", "name-1.0/test/test_a.py": "import pkg\n" + SUITE},
        {"name-1.0/test_a.py": SUITE, "name-1.0/setup.py": "raise SystemExit"},
    ],
    ids=["in the package", "beside it", "src", "in src", "in a folder", "at the top"],
)
def test_unittest_finds_the_tests_wherever_packages_keep_them(
    tmp_path: Path, files: dict[str, str]
) -> None:
    run = run_tests("unittest", write_tree(tmp_path, files))
    assert get_counts(run) == (3, 1, True), run.tail


def test_a_failure_is_a_problem_with_its_output(tmp_path: Path) -> None:
    run = run_tests("unittest", write_tree(tmp_path, test_a=FAILING))
    assert get_counts(run) == (4, 1, False)
    assert run.problem == "1 of 4 tests failed"
    assert "by design" in run.tail


def test_a_module_that_can_not_be_imported_is_a_problem(tmp_path: Path) -> None:
    run = run_tests("unittest", write_tree(tmp_path, test_a=SUITE, test_b="import nowhere"))
    assert get_counts(run) == (4, 1, False)
    assert "No module named 'nowhere'" in run.tail


def test_no_tests_is_a_problem(tmp_path: Path) -> None:
    assert run_tests("unittest", write_tree(tmp_path, a="x = 1")).problem == "no tests were found"
    assert run_tests("compile", tmp_path / "empty").problem == "no tests were found"


def test_pytest_counts_as_unittest_does(tmp_path: Path) -> None:
    run = run_tests("pytest", write_tree(tmp_path, test_a=PLAIN))
    assert get_counts(run) == (3, 1, True), run.tail
    write_tree(tmp_path, test_b=PLAIN + "def test_four(broken): pass\n")
    run = run_tests("pytest", tmp_path)
    assert get_counts(run) == (7, 2, False), run.tail
    assert run.problem == "1 of 7 tests failed"
    write_tree(tmp_path, test_c="import nowhere")
    assert run_tests("pytest", tmp_path).problem == "1 of 0 tests failed"


def test_compiling_executes_nothing(tmp_path: Path) -> None:
    write_tree(tmp_path, a="raise SystemExit('executed')", b="def f(:", c="x = '\\d'")
    (tmp_path / "latin.py").write_bytes(b"# coding: latin-1\nx = '\xe9'\n")
    (tmp_path / "bad.py").write_bytes(b"x = '\xe9'\n")
    (tmp_path / "deep.py").write_text("(" * 5_000)
    run = run_tests("compile", tmp_path)
    assert get_counts(run) == (3, 0, True)
    assert run.broken == ["b.py", "bad.py", "deep.py"]
    assert run.tail == ""


@pytest.mark.parametrize(
    ("test", "problem"),
    [
        ("import os; os._exit(0)", "the tests ended without a result (exit code 0)"),
        ("import os; os.kill(os.getpid(), 9)", "the tests ended without a result (signal 9)"),
        ("raise SystemExit(0)", "1 of 1 tests failed"),
        (
            "import os\nfor fd in range(3, 300):\n  try: os.write(fd, b'[1]\\n')\n"
            "  except OSError: pass\nos._exit(0)",
            "the tests ended without a result (exit code 0)",
        ),
        (
            "import os\nfor fd in range(3, 300):\n"
            '  try: os.write(fd, b\'{"ran": -5, "broken": [[1]], "skipped": "x"}\\n\')\n'
            "  except OSError: pass\nos._exit(0)",
            "no tests were found",
        ),
        (
            "import os\nfor fd in range(3, 300):\n  try: os.write(fd, b'[' * 100_000)\n"
            "  except OSError: pass\nos._exit(0)",
            "the tests ended without a result (exit code 0)",
        ),
    ],
    ids=["exit", "kill", "system exit", "forged list", "forged counts", "forged depth"],
)
def test_tests_that_cheat_break_nothing(tmp_path: Path, test: str, problem: str) -> None:
    assert run_tests("unittest", write_tree(tmp_path, test_a=test)).problem == problem


def test_what_a_test_leaves_running_does_not_hold_up_the_answer(tmp_path: Path) -> None:
    test = SUITE + "import threading, time\nthreading.Thread(target=time.sleep, args=[600]).start()"
    started = time.monotonic()
    assert run_tests("unittest", write_tree(tmp_path, test_a=test)).ok
    assert time.monotonic() - started < 60


def test_a_test_that_never_ends_is_ended(tmp_path: Path) -> None:
    run = run_tests(
        "unittest", write_tree(tmp_path, test_a="while True: pass"), bounds=Bounds(seconds=1)
    )
    assert run.problem == "the tests did not end in 1 s"


def test_the_tree_is_not_touched(tmp_path: Path) -> None:
    test = SUITE + "import pathlib\nfor p in pathlib.Path('.').rglob('*.py'): p.write_text('gone')"
    write_tree(tmp_path, test_a=test, b="x = 1")
    assert run_tests("unittest", tmp_path).ok
    assert list_files(tmp_path) == ["b.py", "test_a.py"]
    assert (tmp_path / "b.py").read_text() == "x = 1"


def test_files_can_be_taken_from_the_originals(tmp_path: Path) -> None:
    write_tree(tmp_path / "new", test_a=FAILING, test_b=FAILING)
    write_tree(tmp_path / "old", test_a=SUITE, test_b=SUITE)
    run = run_tests(
        "unittest", tmp_path / "new", originals=tmp_path / "old", undone=["test_a.py", "test_b.py"]
    )
    assert get_counts(run) == (6, 2, True)
    run = run_tests("unittest", tmp_path / "new", originals=tmp_path / "old", undone=["test_b.py"])
    assert get_counts(run) == (7, 2, False)


def test_worse_is_fewer_tests_more_skips_or_a_file_that_compiles_no_more() -> None:
    before = TestRun("unittest", 10, 2, 5, ["old.py"], "", "", [], 1.0)

    def compare(**changes: object) -> str:
        return compare_runs(before, dataclasses.replace(before, **changes))  # type: ignore[arg-type]

    assert compare() == compare(ran=11) == compare(broken=[]) == compare(ran=11, skipped=3) == ""
    assert compare(ran=9, skipped=1) == "9 tests ran, 10 before"
    assert compare(skipped=3) == "3 tests were skipped, 2 before"
    assert compare(broken=["new.py", "old.py"]) == "new.py does not compile"
    assert compare(problem="1 of 9 tests failed") == (
        "1 of 9 tests failed; before, 10 ran and none did"
    )
