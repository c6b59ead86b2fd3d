"""Migrations beside writers on PostgreSQL: nobody waits behind what they wait for."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.apps import apps
from django.db import connection, transaction
from django.db.migrations import (
    AddConstraint,
    AddField,
    AddIndex,
    AlterField,
    CreateModel,
    Migration,
)
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState
from django.db.models import TextField

from harness_site.management.commands.migrate import _apply_whole
from ledger import schema
from tests.conftest import ROOT
from tests.crash.cluster_kit import wait_for
from tests.upgrades.conftest import Query
from tests.upgrades.old_code import list_later_migrations

pytestmark = [
    pytest.mark.postgresql,
    pytest.mark.django_db(transaction=True),
    pytest.mark.case(37),
]

TOUCH = "UPDATE longwatch_task SET beat = beat + 1"
WAITS = """SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'longwatch_task'::regclass
    AND mode = 'ShareUpdateExclusiveLock'"""


def test_a_writer_waits_no_second_while_a_migration_waits_for_a_reader(
    recorded: tuple[dict[str, str], Query],
) -> None:
    """It asks again and again, each time for half a second, and gives up with nothing changed."""
    environment, _ = recorded
    slowest, over = 0.0, threading.Event()

    def write() -> None:
        nonlocal slowest
        with psycopg.connect(environment["LONGWATCH_DATABASE_URL"], autocommit=True) as link:
            while not over.wait(0.02):
                began = time.monotonic()
                link.execute(TOUCH)
                slowest = max(slowest, time.monotonic() - began)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with psycopg.connect(environment["LONGWATCH_DATABASE_URL"]) as reader:
            reader.execute("SELECT count(*) FROM longwatch_task")
            done = subprocess.run(
                [sys.executable, "manage.py", "migrate", "longwatch_ledger", "--tries", "2"],
                cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100,
            )  # fmt: skip
            assert (done.returncode, "got no lock" in done.stderr) == (1, True), done.stderr
    finally:
        over.set()
        writer.join()
    assert schema.LOCK_SECONDS - 0.1 < slowest < 2 * schema.LOCK_SECONDS + 1.0


@pytest.fixture
def other(database_url: str) -> Iterator[Any]:
    with psycopg.connect(database_url) as link:
        yield link


def test_nobody_waits_behind_a_migration_that_waits_for_a_vacuum(
    database_url: str, other: Any
) -> None:
    """A vacuum may take minutes; until it ends, or is ended, all others write."""
    other.execute("LOCK TABLE longwatch_task IN SHARE UPDATE EXCLUSIVE MODE")  # as vacuum does
    has = threading.Event()

    def change() -> None:
        with transaction.atomic():
            schema.lock_tables(connection, ["longwatch_task"], ["longwatch_spend"], 5.0)
            has.set()
        connection.close()

    changing = threading.Thread(target=change)
    changing.start()
    try:
        with psycopg.connect(database_url, autocommit=True) as writer:
            wait_for("it waits", lambda: writer.execute(WAITS).fetchall())
            writer.execute("SET lock_timeout = 1")
            writer.execute(TOUCH)
        assert not has.is_set()
    finally:
        other.rollback()
        changing.join(30)
    assert has.is_set()


class Making:
    """An index as a migration makes it, on the test's tables, and how the server sees it."""

    name = "longwatch_task_begun"

    def __init__(self) -> None:
        loader = MigrationLoader(None, ignore_no_migrations=True)
        made = loader.disk_migrations["longwatch_ledger", "0032_beside_writers"].operations
        (self.operation,) = [
            one for one in made if isinstance(one, AddIndex) and one.index.name == self.name
        ]

    def run(self) -> None:
        state = ProjectState.from_apps(apps)
        with connection.schema_editor(atomic=False) as editor:
            self.operation.database_forwards("longwatch_ledger", editor, state, state)

    def ask(self) -> tuple[Any, ...] | None:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT indexrelid, indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)",
                [self.name],
            )
            return cursor.fetchone()  # type: ignore[no-any-return]


def test_an_index_is_made_while_others_write_and_what_a_kill_left_is_made_anew(other: Any) -> None:
    making = Making()
    before = making.ask()
    assert before is not None
    making.run()
    assert making.ask() == before, "again is harmless"
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = %s", before[:1])
    other.execute(TOUCH)  # an open transaction that wrote before
    thread = threading.Thread(target=lambda: (making.run(), connection.close()))
    thread.start()
    try:
        other.execute("SET lock_timeout = 1000")
        other.execute("DELETE FROM longwatch_tally WHERE false")
        other.execute(TOUCH)
    finally:
        other.rollback()
        thread.join(30)
    after = making.ask()
    assert after is not None
    assert (after[0] != before[0], after[1]) == (True, True)


def test_no_lock_is_held_while_django_thinks() -> None:
    """It makes its models anew for every operation: a second and more on a busy machine."""
    seen = []

    class Look(AddField):
        def database_forwards(self, app_label: str, schema_editor: Any, *states: Any) -> None:
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() "
                    "AND relation = 'longwatch_task'::regclass"
                )
                seen.append(cursor.fetchone()[0])
            schema_editor.execute("COMMENT ON TABLE longwatch_task IS 'seen'", None)

    migration = Migration("0099_look", "longwatch_ledger")
    migration.operations = [Look("task", f"look_{n}", TextField(null=True)) for n in range(2)]
    state = ProjectState.from_apps(apps)
    apply = _apply_whole(migration, 5.0)
    with connection.schema_editor() as editor:
        apply(state, editor)
        with connection.cursor() as cursor:
            cursor.execute("SELECT obj_description('longwatch_task'::regclass)")
            assert cursor.fetchone() == ("seen",), "afterwards it is done"
            cursor.execute("COMMENT ON TABLE longwatch_task IS NULL")
    assert seen == [0, 0]


def test_no_later_migration_reads_a_table_that_was_there_while_it_locks_it() -> None:
    """At a million tasks that is seconds in which nobody writes."""
    loader = MigrationLoader(None, ignore_no_migrations=True)
    new: set[str] = set()
    for name in list_later_migrations():
        migration = loader.disk_migrations["longwatch_ledger", name]
        for one in migration.operations:
            if isinstance(one, CreateModel):
                new.add(one.name.lower())
            elif isinstance(one, AddIndex | AddConstraint) and one.model_name_lower not in new:
                beside = isinstance(one, schema.AddIndexBeside | schema.AddCheckBeside)
                assert beside, f"{name}: {one.describe()}: ledger.schema has a way beside writers"
                assert isinstance(one, schema.AddCheckBeside) or not migration.atomic, name
            elif isinstance(one, AlterField) and one.model_name_lower not in new:
                assert isinstance(one, schema.AllowNull), f"{name}: {one.describe()}"
