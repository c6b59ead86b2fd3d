"""A command that judges a task's work: whoever dies or is stopped, it is gone, and judges anew."""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path

import psutil
import pytest

from ledger.models import Task
from ledger.transitions import operators
from tests.crash.cluster_kit import SIGKILL, SIGTERM, wait_for
from tests.crash.command_flows import judged
from tests.crash.conftest import StartSite
from tests.crash.site_kit import read_kinds, wait_for_status
from tests.durable import LEASE
from tests.factories import OPERATOR
from tests.workflows.test_sandbox import list_marked

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]

WAITS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if not os.fork():
    os.setsid()
while not os.path.exists(sys.argv[2]):
    time.sleep(0.02)
"""


def wait_for_command(mark: str, *old: int) -> list[int]:
    """The processes of the command, its forked child too."""

    def look() -> list[int]:
        found = [pid for pid in list_marked(mark) if pid not in old and is_ours(pid)]
        return found if len(found) >= 2 else []

    return wait_for("the command runs", look, 60)


def is_ours(pid: int) -> bool:
    """True for what the warden started; its own command line has the mark too."""
    try:
        return "warden.py" not in " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return False


def find_worker(task: Task) -> int:
    task.refresh_from_db()
    return int(task.lease_owner.rsplit(":", 2)[1])


def test_a_command_ends_with_its_worker_and_with_its_unit(
    start_site: StartSite, tmp_path: Path
) -> None:
    mark, gate, file = f"mark-{uuid.uuid4().hex}", tmp_path / "go", tmp_path / "checks.json"
    argv = [sys.executable, "-c", WAITS, mark, str(gate)]
    file.write_text(json.dumps({"tests": {"argv": argv}}))
    more = {"LONGWATCH_WORKFLOWS": "tests.crash.command_flows", "LONGWATCH_CHECKS": str(file)}
    with start_site(**more) as cluster:
        stopped = cluster.submit(judged)
        wait_for_command(mark)
        worker = find_worker(stopped)
        lease, fence = stopped.lease_until, stopped.fence

        def is_kept() -> bool:
            stopped.refresh_from_db()
            return bool(
                stopped.lease_until and (stopped.lease_until - lease).total_seconds() > LEASE
            )

        wait_for("the lease is kept beyond its first length", is_kept)
        assert stopped.fence == fence
        operators.cancel_task(stopped.pk, actor=OPERATOR)
        operators.stop_task(stopped.pk, actor=OPERATOR)
        wait_for("nothing of it is left", lambda: list_marked(mark) == [])
        wait_for_status(stopped, "cancelled")
        assert worker in cluster.list_pids("worker")

        killed = cluster.submit(judged)
        first = wait_for_command(mark)
        cluster.signal(SIGKILL, find_worker(killed))
        wait_for("nothing of it is left", lambda: not set(first) & set(list_marked(mark)))
        wait_for_command(mark, *first)
        gate.touch()
        wait_for_status(killed, "completed")
        assert read_kinds(killed).count("reclaimed") == 1
        assert [one.step_name for one in killed.outputs.order_by("seq")] == ["work", "judge"]
        wait_for("nothing is left", lambda: list_marked(mark) == [])
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
