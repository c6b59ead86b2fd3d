"""`manage.py new_workflow`: what it writes works, and it spoils nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


def run_manage(
    folder: Path, environment: dict[str, str], *arguments: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "manage.py", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
    )


def test_the_written_workflow_is_known_and_passes_its_test(
    tmp_path: Path, site_env: dict[str, str]
) -> None:
    done = run_manage(tmp_path, site_env, "new_workflow", "tea_report")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["workflows/tea_report.py", "workflows/test_tea_report.py"]
    environment = site_env | {"PYTHONPATH": f"{tmp_path}", "LONGWATCH_DATABASE_URL": ""}
    tested = run_manage(tmp_path, environment, "test", "workflows")
    assert tested.returncode == 0, tested.stderr
    assert "Ran 2 tests" in tested.stderr
    known = "from ledger import workflows; assert ('tea_report', '1') in workflows.known()"
    shown = run_manage(tmp_path, site_env, "shell", "--no-imports", "-c", known)
    assert (shown.returncode, shown.stdout) == (0, ""), shown.stderr
    again = run_manage(tmp_path, site_env, "new_workflow", "tea_report")
    assert again.returncode == 1
    assert "There is a workflow 'tea_report' already" in again.stderr


def test_the_written_agent_passes_its_test_without_a_key(
    tmp_path: Path, site_env: dict[str, str]
) -> None:
    done = run_manage(tmp_path, site_env, "new_workflow", "shopping", "--agent")
    assert done.stdout.split() == ["workflows/shopping.py", "workflows/test_shopping.py"]
    environment = site_env | {"PYTHONPATH": f"{tmp_path}", "LONGWATCH_DATABASE_URL": ""}
    tested = run_manage(tmp_path, environment, "test", "workflows")
    assert tested.returncode == 0, tested.stderr
    assert "Ran 2 tests" in tested.stderr


def test_nothing_is_overwritten(tmp_path: Path, site_env: dict[str, str]) -> None:
    (tmp_path / "workflows").mkdir()
    (tmp_path / "workflows" / "test_tea.py").write_text("mine")
    done = run_manage(tmp_path, site_env, "new_workflow", "tea")
    assert done.returncode == 1
    assert "workflows/test_tea.py exists" in done.stderr
    assert [path.name for path in (tmp_path / "workflows").iterdir()] == ["test_tea.py"]


@pytest.mark.parametrize(
    "name", ["Tea", "1tea", "a-b", "../tea", "class", "test_tea", "", "x" * 61]
)
def test_a_bad_name_is_refused_with_one_line(
    tmp_path: Path, site_env: dict[str, str], name: str
) -> None:
    done = run_manage(tmp_path, site_env, "new_workflow", name)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert name[:20] in done.stderr
    assert not (tmp_path / "workflows").exists()
