"""What real workers keep of what their steps print and log."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ledger import queries
from ledger.models import Artifact, LiveLog, Task
from ledger.unitlog import LOG_TYPE
from tests.conftest import ROOT
from tests.crash.cluster_kit import SIGKILL, wait_for
from tests.crash.site_kit import SiteCluster, wait_for_status
from tests.logs.flows import AMOUNT, LINE, SECRET, breaks, lives, pours, talks

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]

MIB = 1024 * 1024


StartCluster = Callable[..., SiteCluster]


@pytest.fixture
def start(site_env: dict[str, str], tmp_path: Path, settings: Any) -> StartCluster:
    settings.LONGWATCH_VAR = str(tmp_path / "var")
    settings.LONGWATCH_ARTIFACTS = str(tmp_path / "artifacts")
    given = {
        "LONGWATCH_WORKFLOWS": "tests.logs.flows",
        "LONGWATCH_SECRET_LOGGED": SECRET,
        "LONGWATCH_ARTIFACTS": str(tmp_path / "artifacts"),
        "LONGWATCH_WORKERS": 1,
    }
    return lambda **more: SiteCluster(tmp_path, site_env, **given | more)


@pytest.fixture
def cluster(start: StartCluster) -> Iterator[SiteCluster]:
    with start() as running:
        yield running


def read_unit(task: Task, unit: str) -> list[str]:
    """Its lines without their times."""
    text: str = queries.read_log(task.pk, unit=unit, whole=True)["text"]
    return [line if line.startswith(" ") else line[9:] for line in text.splitlines()]


def read_live(task: Task) -> str:
    return str(queries.read_log(task.pk)["text"])


def test_all_that_a_unit_says_is_in_its_log_and_nobody_elses(cluster: SiteCluster) -> None:
    task = wait_for_status(cluster.submit(talks), "completed")
    lines = read_unit(task, "speak:0")
    lines.remove("OUT from printf")  # C keeps it until the end, or not
    assert lines[:3] == ["OUT from print", "OUT from stderr", "OUT from write"]
    assert lines[3:7] == [
        "OUT from a process", "OUT and its stderr", "OUT from a thread",
        "ERROR some.library: thread's",
    ]  # fmt: skip
    assert lines[7:11] == [
        "WARNING some.library: from a library", "INFO from ctx.log", "    and its second line",
        "CMD from a command",
    ]  # fmt: skip
    (masked,) = [line for line in lines if "token" in line]
    assert masked.startswith("OUT token [secret] [secret]xxx")
    assert masked.endswith(" bytes in one line")
    assert r"OUT red \u202egnp\x07.exe" in lines
    assert read_unit(task, "whisper:0") == ["OUT from async", "WARNING some.library: async library"]
    alone = read_unit(task, "mumble:0")
    assert {"OUT from isolation", "WARNING isolated log"} <= set(alone)
    assert any("isolated library" in line for line in alone)
    assert read_unit(task, "silent:0") == []
    told = cluster.read_log()
    assert "from a process\n" in told, "the worker's own log has it too"
    assert SECRET[5:] not in told + str(lines)


def test_a_step_that_takes_the_files_away_costs_the_next_one_nothing(cluster: SiteCluster) -> None:
    task = wait_for_status(cluster.submit(breaks), "completed")
    assert read_unit(task, "wreck:0") == ["OUT before"]
    assert read_unit(task, "after:0") == ["OUT after", "OUT and stderr", "OUT raw"]
    assert Path(f"{cluster.sink}.own").read_text() == "into its own file"
    assert "left running" in cluster.read_log(), "and so did the engine's own log go on"


def test_output_without_end_costs_no_memory_and_keeps_both_ends(cluster: SiteCluster) -> None:
    (pid,) = cluster.list_pids("worker")
    task = cluster.submit(pours)
    worker, most = psutil.Process(pid), 0
    least = worker.memory_info().rss
    until = time.monotonic() + 90
    while not task.finished_at:
        assert time.monotonic() < until
        most = max(most, worker.memory_info().rss, worker.memory_info().shared)
        time.sleep(0.02)
        task.refresh_from_db()
    assert (task.status, task.reclaims) == ("completed", 0), task.error
    assert most - least < 64 * MIB, f"{(most - least) / MIB:.0f} MiB"
    (stored,) = Artifact.objects.filter(task=task, media_type=LOG_TYPE).select_related("blob")
    assert MIB < stored.blob.size <= 4 * MIB + 100
    assert queries.list_artifacts(task.pk).items == [], "no product of the task"
    assert queries.list_products(task.pk).groups == []
    lines = read_unit(task, "pour:0")
    assert lines[0] == "OUT the first line"
    assert lines[-1] == "OUT the last line"
    assert lines[-2] == f"OUT {LINE}"
    (gap,) = [line for line in queries.read_log(task.pk, whole=True)["text"].splitlines()
              if "left out" in line]  # fmt: skip
    assert int(gap.split()[1].replace(",", "")) > AMOUNT - 4 * MIB
    assert len(cluster.read_log()) < 2 * MIB


def test_a_unit_at_work_is_followed_to_its_end(start: StartCluster) -> None:
    with start(LONGWATCH_WORKERS=4) as cluster:
        tasks = {kind: cluster.submit(lives, kind=kind) for kind in ("", "fail", "long", "later")}
        seen = {}
        for kind, task in tasks.items():
            wait_for("it is shown", lambda task=task: "early 4" in read_live(task))  # type: ignore[misc]
            (row,) = LiveLog.objects.filter(task=task)
            seen[kind] = queries.read_log(task.pk)
            assert (seen[kind]["state"], seen[kind]["next"]) == ("running", row.size)
        command = [sys.executable, "manage.py", "logs", "--follow", str(tasks["fail"].pk)]
        follower = subprocess.Popen(command, cwd=ROOT, env=cluster.environment, text=True,
                                    stdout=subprocess.PIPE)  # fmt: skip
        assert follower.stdout is not None
        told = [follower.stdout.readline()]
        Path(f"{cluster.sink}.go").touch()
        shown = {}
        for kind, task in tasks.items():
            wait_for_status(task, "dead" if kind == "fail" else "completed")
            first = seen[kind]
            rest = queries.read_log(task.pk, fence=first["fence"], after=first["next"])
            shown[kind] = rest["text"].splitlines()
            assert shown[kind][0].endswith("OUT late")
            states = {"fail": "failed", "later": "released"}
            assert rest["state"] == states.get(kind, "done")
        told += list(follower.stdout)
        assert follower.wait(60) == 0, "it ends with the task"
        follower.stdout.close()
        assert [line[9:-1] for line in told] == [f"OUT early {n}" for n in range(5)] + ["OUT late"]
        assert len(shown["long"]) == 1001
        assert shown["long"][-1].endswith("line 999 of many")
        assert queries.read_log(tasks["long"].pk)["artifact"]
        kept = [tasks["later"].pk]  # nothing but its row tells of an attempt that was given back
        wait_for(
            "the other rows are gone",
            lambda: list(LiveLog.objects.values_list("task", flat=True)) == kept,
        )


def test_of_a_killed_worker_what_was_written_down_is_kept(cluster: SiteCluster) -> None:
    task = cluster.submit(lives)
    wait_for("it is shown", lambda: "early 4" in read_live(task))
    (row,) = LiveLog.objects.filter(task=task)
    cluster.signal(SIGKILL, cluster.list_pids("worker")[0])
    Path(f"{cluster.sink}.go").touch()
    wait_for_status(task, "completed")
    lost = queries.read_log(task.pk, fence=row.fence)
    assert (lost["state"], lost["text"].count("early")) == ("lost", 5)
    assert "late" not in lost["text"]
    assert read_unit(task, "live:0")[-1] == "OUT late"
