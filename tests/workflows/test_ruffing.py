"""ruff: safe fixes only, by its own defaults, whatever the tree would like."""

from __future__ import annotations

import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness_site.workflows.modernise.ruffing import (
    MAX_FILE_BYTES,
    RULES,
    TARGET,
    apply_fixes,
    count_findings,
    find_rule_problem,
)
from harness_site.workflows.modernise.ruffing import plan_changes as plan_in
from harness_site.workflows.shared.tree import list_files
from ledger.linting import RuffFailed, find_ruff

OLD = b"import os\nimport sys\nprint(sys.path)\n"
NEW = b"import sys\n\nprint(sys.path)\n"


def plan_changes(root: Path, rules: Sequence[str], target: str) -> list[str]:
    with tempfile.TemporaryDirectory() as trial:
        return plan_in(root, Path(trial), rules, target)


def write(root: Path, name: str, content: bytes = OLD, mode: int = 0o644) -> Path:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    file.chmod(mode)
    return file


def test_the_binary_is_found_by_ruff_itself() -> None:
    assert Path(find_ruff()).is_file()


def test_planning_changes_nothing_and_names_what_would_change(tmp_path: Path) -> None:
    write(tmp_path, "a.py")
    write(tmp_path, "b.py", NEW)
    write(tmp_path, "c.txt")
    assert plan_changes(tmp_path, RULES, TARGET) == ["a.py"]
    assert (tmp_path / "a.py").read_bytes() == OLD


@pytest.mark.parametrize(
    "name", ["@args.py", "-q.py", "a b.py", "caf\u00e9.py", 'q"uote.py', "build/x.py", "$x;y.py"]
)
def test_odd_names_are_files_like_others(tmp_path: Path, name: str) -> None:
    write(tmp_path, name, mode=0o755)
    assert count_findings(tmp_path, name, RULES, TARGET) == 2  # unused, and not sorted
    assert plan_changes(tmp_path, RULES, TARGET) == [name]
    apply_fixes(tmp_path, [name], RULES, TARGET)
    assert (tmp_path / name).read_bytes() == NEW
    assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o755
    assert list_files(tmp_path) == [name]
    assert count_findings(tmp_path, name, RULES, TARGET) == 0


def test_the_configuration_of_the_tree_counts_for_nothing(tmp_path: Path) -> None:
    write(tmp_path, "ruff.toml", b"extend = '/etc/passwd'\n")
    write(tmp_path, "pkg/pyproject.toml", b"[tool.ruff]\nexclude = ['*.py']\n")
    write(tmp_path, "pkg/.gitignore", b"*.py\n")
    write(tmp_path, "pkg/a.py")
    assert plan_changes(tmp_path, RULES, TARGET) == ["pkg/a.py"]


def test_line_endings_and_marks_stay(tmp_path: Path) -> None:
    file = write(tmp_path, "a.py", b"\xef\xbb\xbf" + OLD.replace(b"\n", b"\r\n")[:-2])
    apply_fixes(tmp_path, ["a.py"], ["F"], TARGET)
    assert file.read_bytes() == b"\xef\xbb\xbfimport sys\r\nprint(sys.path)"


def test_what_can_not_be_read_or_is_too_large_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path, "latin.py", b"# coding: latin-1\nimport os\nx = '\xe9'\n")
    write(tmp_path, "broken.py", b"import os\ndef f(:\n")
    write(tmp_path, "large.py", OLD + b"#" * MAX_FILE_BYTES)
    write(tmp_path, "good.py")
    assert plan_changes(tmp_path, RULES, TARGET) == ["good.py"]


def test_unsafe_fixes_are_not_made(tmp_path: Path) -> None:
    write(tmp_path, "a.py", b"def f(x):\n    unused = x()\n")
    assert count_findings(tmp_path, "a.py", ["F"], TARGET) == 1
    assert plan_changes(tmp_path, ["F"], TARGET) == []


def test_the_target_decides(tmp_path: Path) -> None:
    write(tmp_path, "a.py", b"from typing import List\n\nx: List[int]\n")
    assert plan_changes(tmp_path, ["UP"], "py38") == []
    assert count_findings(tmp_path, "a.py", ["UP"], "py312") > 0


def test_many_files_take_several_calls(tmp_path: Path) -> None:
    for number in range(450):
        write(tmp_path, f"f{number}.py")
    assert len(plan_changes(tmp_path, RULES, TARGET)) == 450


def test_a_rule_that_is_none_is_told(tmp_path: Path) -> None:
    write(tmp_path, "a.py")
    with pytest.raises(RuffFailed, match="NOPE"):
        plan_changes(tmp_path, ["NOPE"], TARGET)
    assert "NOPE" in find_rule_problem(("F", "NOPE"))
    assert find_rule_problem(RULES) == ""
