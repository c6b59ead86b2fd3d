"""A later release changes the ledger's tables while the workers of this one go on."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from django.db import connection
from django.db.migrations import (
    AddField,
    CreateModel,
    DeleteModel,
    RemoveField,
    RenameField,
    RenameModel,
)
from django.db.migrations.loader import MigrationLoader

from ledger.models import Task
from tests.conftest import ROOT
from tests.crash.cluster_kit import SIGTERM, wait_for
from tests.crash.site_kit import SiteCluster, assert_whole, wait_for_status
from tests.outages.kit import Load

pytestmark = [
    pytest.mark.both_databases,
    pytest.mark.django_db(transaction=True),
    pytest.mark.case(37),
]

STALL_SECONDS = 10.0
"""3 s for the lock and the way there, on a machine that is busy with other things."""


class Later:
    """`manage.py` of the later release, on the test's database."""

    def __init__(self, env: dict[str, str]) -> None:
        self.env = env | {"DJANGO_SETTINGS_MODULE": "tests.outages.later_settings"}

    def begin(self, *words: str, **more: str) -> subprocess.Popen[str]:
        """Start the command."""
        return subprocess.Popen(
            [sys.executable, "manage.py", "migrate", *words], cwd=ROOT, env=self.env | more,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, *words: str) -> tuple[int, str]:
        """Its exit code and what it wrote."""
        process = self.begin(*words)
        out, err = process.communicate(timeout=90)
        return process.returncode, out + err


@pytest.fixture
def later(site_env: dict[str, str]) -> Iterator[Later]:
    """The later release; what it changed is taken back afterwards."""
    release = Later(site_env)
    yield release
    connection.close()
    if has_column():
        assert release.run("later", "zero")[0] == 0


def has_column() -> bool:
    with connection.cursor() as cursor:
        columns = connection.introspection.get_table_description(cursor, "longwatch_task")
    return "later" in {column.name for column in columns}


class Submissions(Load):
    """A client that submits 10 tasks a second."""

    def __init__(self, cluster: SiteCluster) -> None:
        super().__init__()
        self.cluster = cluster
        self.tasks: list[Task] = []

    def act(self) -> None:
        self.tasks.append(self.cluster.submit(seconds=0.01, turns=1))

    def check(self) -> None:
        """All is done, once, by workers that know nothing of the later release."""
        for task in self.tasks:
            wait_for_status(task, "completed")
            assert_whole(task, 1)
            assert (task.attempts, task.reclaims, task.releases) == (0, 0, 0)
        assert self.slowest < STALL_SECONDS


def test_old_workers_go_on_while_and_after_the_ledger_is_migrated(
    later: Later, site_env: dict[str, str], tmp_path: Path
) -> None:
    with SiteCluster(tmp_path, site_env) as cluster:
        with Submissions(cluster) as load:
            load.wait_for_more()
            halt = tmp_path / "half-way"
            killed = later.begin(LATER_HALT=str(halt))
            wait_for("it is half-way", halt.exists)
            killed.send_signal(signal.SIGKILL)
            killed.communicate(timeout=30)
            load.wait_for_more()
            assert not has_column(), "half a migration is none"
            code, said = later.run()
            assert code == 0, said
            assert has_column()
            code, said = later.run()
            assert (code, "No migrations to apply." in said) == (0, True), "again is harmless"
            load.wait_for_more()
        load.check()
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0


@pytest.mark.postgresql
def test_a_migration_that_gets_no_lock_gives_way_and_says_so(
    later: Later, site_env: dict[str, str], tmp_path: Path, database_url: str
) -> None:
    """A dump holds its snapshot; the change of the table must not stop everybody behind it."""
    with SiteCluster(tmp_path, site_env) as cluster, Submissions(cluster) as load:
        load.wait_for_more()
        with psycopg.connect(database_url) as reader:
            reader.execute("SELECT count(*) FROM longwatch_task")
            code, said = later.run("--lock-seconds", "1", "--tries", "2")
            assert code == 1
            assert "A lock is not to be had; 1 more tries." in said
            assert "changed nothing. Look for a long transaction" in said
            assert "Traceback" not in said
            load.wait_for_more()
        assert not has_column()
        code, said = later.run("--tries", "3")
        assert code == 0, said
        load.__exit__()
        load.check()


def test_a_migration_is_recorded_in_its_own_transaction(later: Later, tmp_path: Path) -> None:
    """Killed when all is made but the record, with indexes and keys, it is repeated as if new."""
    halt = tmp_path / "unrecorded"
    more = {"HALT_AT": "later.0002_notes", "HALT_FILE": str(halt)}
    killed = later.begin(DJANGO_SETTINGS_MODULE="tests.upgrades.halting_settings", **more)
    wait_for("all is made but the record", halt.exists)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=30)
    code, said = later.run()
    assert (code, "Applying later.0002_notes... OK" in said) == (0, True), said


@pytest.mark.postgresql
def test_two_migrations_at_once_take_turns(later: Later, tmp_path: Path) -> None:
    halt = tmp_path / "half-way"
    first = later.begin(LATER_HALT=str(halt))
    wait_for("the first is half-way", halt.exists)
    code, said = later.run("--lock-seconds", "0.3", "--tries", "1")
    assert (code, "got no lock" in said) == (1, True), said
    first.kill()
    first.communicate(timeout=30)
    assert later.run()[0] == 0


def test_the_code_of_the_release_before_can_write_what_later_migrations_made() -> None:
    """A column that it does not know needs a default of the database's own; one that it knows
    stays. `null` alone would do too. So web and workers need not stop together."""
    loader = MigrationLoader(None, ignore_no_migrations=True)
    later = {
        name: migration.operations
        for (app, name), migration in loader.disk_migrations.items()
        if app == "longwatch_ledger" and name != "0001_initial"
    }
    assert later
    operations = [(name, one) for name, found in later.items() for one in found]
    new = {one.name.lower() for _, one in operations if isinstance(one, CreateModel)}
    for name, operation in operations:
        what = f"{name}: {operation.describe()}"
        assert not isinstance(operation, GONE), f"{what}: drop it a release later"
        if isinstance(operation, AddField) and operation.model_name_lower not in new:
            field = operation.field
            assert field.null or field.has_db_default(), f"{what}: give it db_default"


GONE = (RemoveField, RenameField, DeleteModel, RenameModel)
