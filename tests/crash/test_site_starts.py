"""Starts: under every start method, and stopped again before they are over."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ledger.models import Task
from tests.conftest import ROOT
from tests.crash.cluster_kit import LONG, SIGTERM, wait_for
from tests.crash.conftest import StartSite

pytestmark = [
    pytest.mark.case(25),
    pytest.mark.both_databases,
    pytest.mark.django_db(transaction=True),
]

PROOF = bool(os.environ.get("LONGWATCH_TEST_PROOF"))
TASKS = 100 if PROOF else 10
STARTS = 20 if PROOF else 6


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_cluster_works_whatever_start_method_its_project_has_chosen(
    method: str, start_site: StartSite
) -> None:
    settings = {"DJANGO_SETTINGS_MODULE": "tests.crash.method_settings"}
    with start_site(**settings, LONGWATCH_TEST_METHOD=method) as cluster:
        for _ in range(TASKS):
            cluster.submit(seconds=0, turns=1)
        done = Task.objects.filter(status="completed")
        wait_for("all have completed", lambda: done.count() == TASKS)
        stopped = time.monotonic()
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
        assert time.monotonic() - stopped < 10
        assert len(cluster.read_sink()) == 3 * TASKS
        assert "Traceback" not in cluster.read_log()


def test_a_start_that_is_stopped_at_once_leaves_nothing(
    site_env: dict[str, str], tmp_path: Path
) -> None:
    """Many at once, each signalled at another moment of its start: before Python has read its
    first line, while it imports, while it forks. It ends in good order, or as the signal says."""
    mark = f"start-{os.getpid()}"
    environment = site_env | {"LONGWATCH_TEST_MARK": mark}
    with (tmp_path / "log").open("wb") as log:
        starts = [
            subprocess.Popen(
                [sys.executable, "manage.py", "qcluster"], cwd=ROOT, env=environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )
            for _ in range(STARTS)
        ]  # fmt: skip
    begun = time.monotonic()
    for number, start in enumerate(starts):
        due = begun + number * 0.5 * 6 / STARTS
        wait_for("its moment", lambda due=due: time.monotonic() >= due)
        start.send_signal(SIGTERM)
    assert {start.wait(LONG) for start in starts} <= {0, -SIGTERM}
    wait_for("nothing is left", lambda: not find_marked(mark), 5)
    assert "Traceback" not in (tmp_path / "log").read_text()


def find_marked(mark: str) -> list[int]:
    """The processes that carry this mark in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("LONGWATCH_TEST_MARK") == mark:
                found.append(process.pid)
        except psutil.Error:
            pass
    return found
