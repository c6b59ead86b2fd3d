"""`manage.py migrate`: Django's, for a ledger that is at work meanwhile.

A change of a table waits for whoever reads it, and all others wait behind that change: one long
reader would stop the product. So the wait is short, and the whole is tried again after a pause in
which the others get on. A migration is one transaction, its record included, so a try that failed,
or was killed, has changed nothing; or it is made of parts that can be repeated (`ledger.schema`).

All the tables that it changes are locked before it does anything: a writer that has one and wants
the next would wait for it, and it for the writer.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.core.management.commands.migrate import Command as Migrate
from django.db import OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations import Migration
from django.db.migrations.state import ProjectState

from ledger.outages import LOCKED, name_trouble
from ledger.schema import LOCK_SECONDS, lock_tables

ONE_AT_A_TIME = 4_711_202_611
"""Number of the advisory lock that a second `migrate` waits for."""

TURN_SECONDS = 3.0
"""Of one try."""

PAUSE_SECONDS = (1.0, 3.0)


class Command(Migrate):
    """Django's command with a bound on its waits."""

    def add_arguments(self, parser: CommandParser) -> None:
        """How long and how often a lock is waited for."""
        super().add_arguments(parser)
        parser.add_argument(
            "--lock-seconds",
            type=float,
            default=LOCK_SECONDS,
            help=f"wait for a lock; {LOCK_SECONDS}",
        )
        parser.add_argument("--tries", type=int, default=30, help="tries before it gives up; 30")

    def handle(self, *args: Any, **options: Any) -> None:
        """Raises CommandError, with nothing changed, when a lock is not to be had."""
        connection = connections[options["database"]]
        self._lock_seconds = options["lock_seconds"]
        for left in range(options["tries"] - 1, -1, -1):
            try:
                if connection.vendor == "postgresql":
                    _bound_waits(connection, options["lock_seconds"])
                super().handle(*args, **options)
                return
            except OperationalError as error:
                if name_trouble(error) != LOCKED:
                    raise
                if not left:
                    raise CommandError(_explain(connection)) from error
                self.stderr.write(f"A lock is not to be had; {left} more tries.")
            finally:
                connection.close()  # with the bounds and the advisory lock
            time.sleep(random.uniform(*PAUSE_SECONDS))

    def migration_progress_callback(
        self, action: str, migration: Migration | None = None, fake: bool = False
    ) -> None:
        """Told before each migration: have what it defers run as a part of it.

        Else Django runs indexes and foreign keys at the end of the transaction and records the
        migration in another: killed between the two, it is repeated, and fails on its own tables.
        """
        if action == "apply_start" and migration is not None and migration.atomic:
            migration.apply = _apply_whole(migration, self._lock_seconds)  # type: ignore[method-assign]
        super().migration_progress_callback(action, migration, fake)


def _apply_whole(migration: Migration, seconds: float) -> Callable[..., Any]:
    apply = migration.apply

    def run(state: ProjectState, editor: BaseDatabaseSchemaEditor, *more: Any) -> Any:
        connection = editor.connection
        if connection.vendor != "postgresql":
            return _apply_deferred(apply(state, editor, *more), editor)
        tables = _find_tables(migration, state)
        if not all(one.reduces_to_sql for one in migration.operations):
            lock_tables(connection, *tables, seconds)
            return _apply_deferred(apply(state, editor, *more), editor)
        # Django makes its models anew between two statements: a second and more, under the locks.
        planned = type(editor)(connection, collect_sql=True)
        planned.deferred_sql = []
        state = _apply_deferred(apply(state, planned, True), planned)
        lock_tables(connection, *tables, seconds)
        for statement in planned.collected_sql:
            if not statement.startswith("--") or "\n" in statement:  # the names of operations
                editor.execute(statement, None)
        return state

    return run


def _apply_deferred(state: ProjectState, editor: BaseDatabaseSchemaEditor) -> ProjectState:
    """What the editor put off: indexes and foreign keys."""
    while editor.deferred_sql:
        editor.execute(editor.deferred_sql.pop(0), None)
    return state


def _find_tables(migration: Migration, state: ProjectState) -> tuple[set[str], set[str]]:
    """(the tables that a migration changes, those that its new foreign keys name) of those there
    are before it."""
    changed, named = set[str](), set[str]()
    for one in migration.operations:
        name = getattr(one, "model_name_lower", None) or getattr(one, "name_lower", None)
        changed.add(f"{migration.app_label}.{name}")
        fields = dict(getattr(one, "fields", ())).values()
        for field in (*fields, getattr(one, "field", None)):
            if remote := getattr(field, "remote_field", None):
                named.add(str(getattr(remote.model, "_meta", remote.model)).lower())
    models = {model._meta.label_lower: model._meta.db_table for model in state.apps.get_models()}
    return {models[one] for one in changed & models.keys()}, {
        models[one] for one in named & models.keys()
    }


def _bound_waits(connection: BaseDatabaseWrapper, seconds: float) -> None:
    """Short for locks; none for statements, since an index may take its time.

    The turn is asked for again and again, not waited for: an index that is made beside writers
    waits for every older statement, so it and a waiting one would wait for each other.
    """
    with connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = {int(seconds * 1000)}")
        cursor.execute("SET statement_timeout = 0")
        until = time.monotonic() + TURN_SECONDS
        while True:
            cursor.execute("SELECT pg_try_advisory_lock(%s)", [ONE_AT_A_TIME])
            if cursor.fetchone()[0]:
                return
            if time.monotonic() > until:
                raise OperationalError("lock timeout: another migrate is at work")
            time.sleep(0.2)


def _explain(connection: BaseDatabaseWrapper) -> str:
    cure = "Look for a long transaction (a dump, an open psql: pg_stat_activity)"
    if connection.vendor != "postgresql":
        cure = "Look for another program that writes to the file"
    return f"The migration got no lock and changed nothing. {cure}, then run it again."
