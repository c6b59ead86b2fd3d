"""The runner of the rings: two at once, each by itself, and nothing of them stays."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from tests import rings
from tests.conftest import ROOT

pytestmark = pytest.mark.postgresql  # where there is a server for the second ring

MEETING = """
import os, pathlib, subprocess, sys, time
import pytest

here = pathlib.Path(__file__).parent
ring = os.environ["LONGWATCH_TEST_RING"]
pytestmark = pytest.mark.both_databases

def note(word):
    with (here / "notes").open("a") as file:
        file.write(f"{ring} {word}\\n")

def meet(place):
    (here / f"{place}-{ring}").touch()
    deadline = time.monotonic() + 60
    while not all((here / f"{place}-{one}").exists() for one in ("sqlite", "postgresql")):
        assert time.monotonic() < deadline, "the other ring does not run beside this one"
        time.sleep(0.02)

def leave_process():
    command = [sys.executable, "-c", "import time; time.sleep(600)", str(here)]
    return subprocess.Popen(command, start_new_session=True)
"""


def start_rings(folder: Path, code: str, *options: str) -> subprocess.Popen[str]:
    """The runner with both rings, on one file of tests in the order that they stand in."""
    file = folder / "test_made_up.py"
    file.write_text(MEETING + code)
    ini = ["-c", str(ROOT / "pyproject.toml"), f"--rootdir={ROOT}"]
    plugins = ["-p", "tests.conftest", "-p", "no:randomly"]
    command = [sys.executable, "-m", "tests.rings", "sqlite", "postgresql", "--beside", *options]
    return subprocess.Popen(
        [*command, "--", *ini, *plugins, str(file)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def run_rings(folder: Path, code: str, *options: str) -> tuple[int, list[str]]:
    """Its exit code, and the lines that it printed."""
    with start_rings(folder, code, *options) as process:
        assert process.stdout is not None
        lines = process.stdout.read().splitlines()
    return process.returncode, lines


def list_left(folder: Path) -> list[int]:
    """What the made-up tests started and what still lives."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(folder) in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            pass
    return found


def test_two_rings_run_at_once_and_each_repeats_its_own_failures(tmp_path: Path) -> None:
    code = """
@pytest.mark.parametrize("wrong_in", ["sqlite", "postgresql"])
def test_fails_once(wrong_in):
    mark = here / f"failed-{ring}"
    note(wrong_in)
    if ring == wrong_in and not mark.exists():
        mark.touch()
        raise AssertionError

def test_both_end_at_once():
    meet("end")
"""
    ended, lines = run_rings(tmp_path, code, "--again")
    assert ended == 0, "\n".join(lines)
    assert lines[-2:] == ["ring sqlite: ran 3 tests", "ring postgresql: ran 3 tests"]
    notes = Counter((tmp_path / "notes").read_text().splitlines())
    assert notes == {
        "sqlite sqlite": 2,
        "sqlite postgresql": 1,
        "postgresql sqlite": 1,
        "postgresql postgresql": 2,
    }
    assert "sqlite     | === ring sqlite: FLAKY, passed when run alone" in lines


def test_a_ring_that_fails_or_dies_fails_the_whole_and_its_end_is_shown(tmp_path: Path) -> None:
    code = """
def test_one_fails_and_the_other_is_killed():
    meet("start")
    if ring == "postgresql":
        leave_process()
        os.kill(os.getppid(), 9)
        time.sleep(60)
    print("of a test: ")
    raise AssertionError("seven green bottles")
"""
    ended, lines = run_rings(tmp_path, code)
    assert (ended, list_left(tmp_path)) == (1, [])
    assert lines[-4:] == [
        "FAILED sqlite: 1 failed (pytest exit code 1)",
        "FAILED postgresql: ended with exit code -9",
        "ring sqlite: ran 1 tests",
        "ring postgresql: ran 0 tests",
    ]
    shown = lines[lines.index("=== ring sqlite FAILED, and ended so:") :]
    assert "E       AssertionError: seven green bottles" in shown


def test_a_stopped_run_ends_both_rings_and_all_below(tmp_path: Path) -> None:
    code = """
def test_waits():
    leave_process()
    meet("start")
    meet("stop")
    time.sleep(100)
"""
    with start_rings(tmp_path, code) as process:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.glob("stop-*"))) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        below = psutil.Process(process.pid).children(recursive=True)
        assert len(below) >= 6, "rings, their tests, what those left"
        deadline = time.monotonic() + 60
        while process.poll() is None:
            assert time.monotonic() < deadline
            process.terminate()  # the first one counts, no later one breaks off the clearing up
            time.sleep(0.05)
        assert process.returncode == 143
        assert [one for one in below if one.is_running()] == []
        assert list_left(tmp_path) == []


def test_where_there_is_no_room_rings_run_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    every = ["sqlite", "postgresql", "browser"]
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(rings, "LEAST_MEMORY", 0)
    assert rings.choose_beside(rings.BUDGETS) == every
    assert rings.choose_beside(["browser"]) == []
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    assert rings.choose_beside(rings.BUDGETS) == []
    assert rings.choose_beside(rings.BUDGETS, pressed=True) == every


def test_a_machine_without_namespaces_says_what_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert rings.find_lacks("postgresql") == "", "the tests of hosts ran here"
    assert rings.find_lacks("sqlite") == ""
    monkeypatch.setenv("PATH", "/nonexistent")
    assert "iproute2" in rings.find_lacks("postgresql")
