"""Retention beside live workers: killed half-way, on a full store, on a full disk; and repeated."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from ledger import artifacts, blobs, clock
from ledger.models import Artifact, AuditEntry, Event, StepOutput, Task
from tests.conftest import ROOT
from tests.crash.cluster_kit import SIGKILL, SIGTERM, wait_for
from tests.crash.past import DAY, fill_past
from tests.crash.site_kit import SiteCluster
from tests.outages.test_migrate import Submissions
from tests.test_store_trouble import Disk

PROOF = bool(os.environ.get("LONGWATCH_TEST_PROOF"))
PAST = int(os.environ.get("LONGWATCH_TEST_PAST", "1_000_000" if PROOF else "60"))
FILES = 30

pytestmark = [
    pytest.mark.both_databases,
    pytest.mark.django_db(transaction=True),
    pytest.mark.case(38),
    pytest.mark.timeout(14_400 if PROOF else 180),
]

RULES = '[[rules]]\nstatus = ["completed"]\n'


class Live(Submissions):
    """20 tasks a second in the long form."""

    rate = 20.0 if PROOF else 5.0


class Retention:
    """`manage.py retention` and `collect` of the site, in processes of their own."""

    def __init__(self, env: dict[str, str], folder: Path) -> None:
        self.rules = folder / "retention.toml"
        self.env = env | {"LONGWATCH_RETENTION": str(self.rules)}

    def begin(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "manage.py", *words], cwd=ROOT, env=self.env, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, *words: str) -> str:
        process = self.begin(*words)
        said, _ = process.communicate(timeout=14_400 if PROOF else 100)
        assert process.returncode == 0, said
        return said

    def kill_when(self, what: str, is_so: Any, *words: str) -> None:
        """Begin it, and kill it in the middle."""
        process = self.begin(*words)
        wait_for(what, is_so, 600 if PROOF else 60)
        assert process.poll() is None, "it was faster than the test"
        process.send_signal(SIGKILL)
        process.communicate(timeout=30)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    (tmp_path / "disk").mkdir()
    found = Disk(tmp_path / "disk")
    yield found
    found.close()


@pytest.fixture
def retention(
    site_env: dict[str, str], tmp_path: Path, disk: Disk, settings: Any
) -> Iterator[Retention]:
    """Its files are in a small file system of their own."""
    settings.LONGWATCH_ARTIFACTS = str(disk.place)
    yield Retention(site_env | {"LONGWATCH_ARTIFACTS": str(disk.place)}, tmp_path)
    clock.offset = 0.0


def give_files(count: int) -> None:
    """So many of the past artifacts have a file that no other one names."""
    for number, key in enumerate(Artifact.objects.values_list("pk", flat=True)[:count]):
        [stored] = blobs.store_blobs([f"file {number}".encode()])
        artifacts.write_blob_rows([stored])
        Artifact.objects.filter(pk=key).update(blob=stored.digest)


def count_files(disk: Disk) -> int:
    return sum(one.is_file() for one in disk.place.glob("??/*"))


def test_retention_beside_live_tasks_is_killed_and_repeated_on_a_full_store(
    retention: Retention, site_env: dict[str, str], tmp_path: Path, disk: Disk
) -> None:
    """PROOF: a million tasks of 10 units, and what it does to the live ones is printed."""
    fill_past(PAST, days=40)
    give_files(FILES)
    past = Task.objects.filter(workflow="past")
    thinned = past.exclude(thinned_days=None)
    assert (past.count(), count_files(disk) >= FILES) == (PAST, True)
    live = site_env | {"LONGWATCH_ARTIFACTS": str(disk.place)}
    with SiteCluster(tmp_path, live) as cluster, Live(cluster) as load:
        before = measure(load)
        retention.rules.write_text(f"{RULES}payload_days = 30\n")
        some = PAST // 4
        retention.kill_when("some are done", lambda: thinned.count() >= some, "retention", "--run")
        assert some <= thinned.count() < PAST
        assert not past.filter(thinned_at=None, thinned_days__isnull=False).exists()
        if disk.real:
            disk.break_down("full")
        began = time.monotonic()
        beside = measure(load)
        retention.run("collect", "--hours", "0")
        report("contents", PAST - some, began, before, beside)
        assert thinned.count() == PAST
        assert count_files(disk) == 0
        assert not StepOutput.objects.filter(task__in=past, output__has_key="text").exists()
        retention.rules.write_text(f"{RULES}task_days = 35\n")
        retention.kill_when(
            "some are gone", lambda: past.count() <= PAST - some, "retention", "--run"
        )
        assert 0 < past.count() <= PAST - some
        began = time.monotonic()
        retention.run("retention", "--run", "--minutes", "600")
        report("tasks", past.count() or PAST - some, began, before, measure(load))
        assert not past.exists()
        assert not Event.objects.exclude(task__workflow="paced").exists()
        assert AuditEntry.objects.filter(action="removed").count() == PAST
        assert "0 whole tasks" in retention.run("retention", "--run"), "again does nothing"
        load.__exit__()
        load.check()
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM django_q_task")
        assert cursor.fetchone()[0] == 0, "nor does django-q2 keep anything"


def measure(load: Live) -> float:
    """Live tasks a second, over some seconds."""
    seconds = 20.0 if PROOF else 1.0
    done = Task.objects.filter(workflow="paced", finished_at=None)
    began, first = time.monotonic(), load.count
    wait_for("some time has passed", lambda: time.monotonic() - began > seconds, seconds + 30)
    assert load.errors == []
    assert done.count() < 200, "they keep up"
    return (load.count - first) / (time.monotonic() - began)


def report(what: str, count: int, began: float, before: float, beside: float) -> None:
    seconds = time.monotonic() - began
    sys.stderr.write(
        f"{what} of {count} tasks in {seconds:.1f} s, {count / seconds:.0f}/s; live tasks/s "
        f"{before:.1f} before, {beside:.1f} beside\n"
    )


@pytest.mark.sqlite
def test_a_full_disk_ends_it_with_the_cause_and_the_next_pass_goes_on(settings: Any) -> None:
    """The file may not grow by a page."""
    settings.LONGWATCH_RETENTION = {"rules": [{"payload_days": 30}]}
    fill_past(60, days=1, steps=2)
    StepOutput.objects.update(output={"n": 1})
    clock.offset = 31 * DAY
    try:
        limit_pages(1)
        with pytest.raises(CommandError, match="full"):
            call_command("retention", run=True)
        limit_pages(1_000_000_000)
        call_command("retention", run=True)
        assert not Task.objects.filter(thinned_days=None).exists()
        assert not StepOutput.objects.filter(output__has_key="n").exists()
    finally:
        limit_pages(1_000_000_000)
        clock.offset = 0.0


def limit_pages(count: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"PRAGMA max_page_count = {count}")
