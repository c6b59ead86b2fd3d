"""Retention beside live workers: killed half-way, on a full store, on a full disk; and repeated."""

from __future__ import annotations

import io
import json
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


class Live(Submissions):
    """20 tasks a second in the long form."""

    rate = 20.0 if PROOF else 3.0


class Retention:
    """`manage.py retention` of the site: in a process of its own to be killed, else in ours."""

    def __init__(self, env: dict[str, str], folder: Path, settings: Any) -> None:
        self.rules, self.settings = folder / "retention.toml", settings
        self.env = env | {"LONGWATCH_RETENTION": str(self.rules)}

    def set_days(self, **days: int) -> None:
        rule = {"status": ["completed"], **days}
        self.settings.LONGWATCH_RETENTION = {"rules": [rule]}
        said = "".join(f"{name} = {json.dumps(value)}\n" for name, value in rule.items())
        self.rules.write_text(f"[[rules]]\n{said}")

    def begin(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "manage.py", *words], cwd=ROOT, env=self.env, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self) -> str:
        """To its end; what it says."""
        said = io.StringIO()
        call_command("retention", run=True, minutes=600, stdout=said)
        return said.getvalue()

    def run_beside(self, load: Live) -> float:
        """A minute of it, in a process of its own; the live tasks a second meanwhile."""
        process = self.begin("retention", "--run", "--minutes", "1")
        try:
            rate = measure(load)
            assert process.poll() is None, "it was at work all the time"
            process.communicate(timeout=120)
        finally:
            process.kill()
        assert process.returncode == 0
        return rate

    def kill_when(self, what: str, is_so: Any) -> None:
        """Begin it, and kill it in the middle."""
        process = self.begin("retention", "--run")
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
    yield Retention(site_env | {"LONGWATCH_ARTIFACTS": str(disk.place)}, tmp_path, settings)
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
        load.wait_for_more()
        some = PAST // 4
        retention.set_days(payload_days=30)
        retention.kill_when("some are done", lambda: thinned.count() >= some)
        assert some <= thinned.count() < PAST
        assert not past.filter(thinned_at=None, thinned_days__isnull=False).exists()
        if disk.real:
            disk.break_down("full")
        compare(retention, load, "contents")
        call_command("collect", hours=0)  # by the rules first
        assert thinned.count() == PAST
        assert count_files(disk) == 0
        assert not StepOutput.objects.filter(task__in=past, output__has_key="text").exists()
        retention.set_days(task_days=35)
        retention.kill_when("some are gone", lambda: past.count() <= PAST - some)
        assert 0 < past.count() <= PAST - some
        compare(retention, load, "tasks")
        retention.run()
        assert not past.exists()
        assert not Event.objects.exclude(task__workflow="paced").exists()
        assert AuditEntry.objects.filter(action="removed").count() == PAST
        assert "0 whole tasks" in retention.run(), "again does nothing"
        load.wait_for_more()
        load.__exit__()
        load.check()
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM django_q_task")
        assert cursor.fetchone()[0] == 0, "nor does django-q2 keep anything"


def compare(retention: Retention, load: Live, what: str) -> None:
    """PROOF: nine of ten live tasks end beside it, too."""
    if PROOF:
        before, beside, after = measure(load), retention.run_beside(load), measure(load)
        said = f"{before:.1f} before, {beside:.1f} beside, {after:.1f} after"
        sys.stderr.write(f"live tasks ended a second while {what} go: {said}\n")
        assert beside >= 0.9 * min(before, after)


def measure(load: Live) -> float:
    """Live tasks that ended a second, over 40 seconds; all that was submitted keeps up."""
    ended = Task.objects.filter(workflow="paced", status="completed")
    began, first = time.monotonic(), ended.count()
    wait_for("some time has passed", lambda: time.monotonic() - began > 40, 70)
    rate = (ended.count() - first) / (time.monotonic() - began)
    assert load.errors == []
    assert Task.objects.filter(workflow="paced", finished_at=None).count() < 200, "they keep up"
    return rate


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
        cursor.execute("VACUUM")  # other tests' rows left free pages, which would do
        cursor.execute(f"PRAGMA max_page_count = {count}")
