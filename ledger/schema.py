"""Changes of the ledger's tables while others write to them; what migrations are made of.

On PostgreSQL a change of a table waits for whoever uses it, and everybody who comes later waits
behind it. So that wait is short, and comes after the long one, for vacuum, behind which nobody
stands; and what reads every row, an index or a check, does it under a lock that lets others write.
SQLite has one writer at a time, so there all of this is as Django does it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from django.db import migrations, models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

LOCK_SECONDS: Final = 0.5
"""Others stand behind this wait. Less than the second after which the server looks for deadlocks,
so that of two who wait for each other the migration is who gives way."""

PATIENT_SECONDS: Final = 600.0
"""Nobody stands behind this one: for a vacuum, which the server ends after a second, and for
transactions that are older than an index."""

FIRST: Final = "longwatch_task"
"""Locked before all others, as every writer does."""


@contextmanager
def waiting_at_most(connection: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
    """Locks are waited for so long within the block; afterwards as before."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('lock_timeout')")
        [before] = cursor.fetchone()
        setting = "SELECT set_config('lock_timeout', %s, false)"
        cursor.execute(setting, [f"{int(seconds * 1000)}ms"])
        yield
        cursor.execute(setting, [before])


def lock_tables(
    connection: BaseDatabaseWrapper, changed: Iterable[str], named: Iterable[str], seconds: float
) -> None:
    """In a transaction on PostgreSQL: have the tables that are to be changed, and those that a new
    foreign key names, before anything is done, all at once and in one order.

    Raises OperationalError where `seconds` are not enough; then nobody waits for us any more.
    """
    wanted = dict.fromkeys(named, "SHARE ROW EXCLUSIVE")
    wanted |= dict.fromkeys(changed, "ACCESS EXCLUSIVE")
    names = sorted(wanted, key=lambda name: (name != FIRST, name))
    with connection.cursor() as cursor:
        with waiting_at_most(connection, PATIENT_SECONDS):
            for name in names:
                cursor.execute(f'LOCK TABLE "{name}" IN SHARE UPDATE EXCLUSIVE MODE')
        with waiting_at_most(connection, seconds):
            for name in names:
                cursor.execute(f'LOCK TABLE "{name}" IN {wanted[name]} MODE')


class AddIndexBeside(migrations.AddIndex):
    """An index that is made while others write; for a migration that is not atomic.

    Nothing where it is already, so it can be repeated; what a kill left half made is made anew.
    """

    def database_forwards(self, app_label: str, schema_editor: Any, *states: Any) -> None:
        """Look, and make it."""
        whole = _is_whole(schema_editor.connection, self.index.name)
        if whole:
            return
        if schema_editor.connection.vendor != "postgresql":
            super().database_forwards(app_label, schema_editor, *states)
            return
        model = states[1].apps.get_model(app_label, self.model_name)
        with waiting_at_most(schema_editor.connection, PATIENT_SECONDS):
            if whole is False:
                schema_editor.remove_index(model, self.index, concurrently=True)
            schema_editor.add_index(model, self.index, concurrently=True)


class RemoveIndexBeside(migrations.RemoveIndex):
    """An index that is dropped while others write; for a migration that is not atomic."""

    def database_forwards(self, app_label: str, schema_editor: Any, *states: Any) -> None:
        """Nothing where there is none any more, so it can be repeated."""
        if _is_whole(schema_editor.connection, self.name) is None:
            return
        if schema_editor.connection.vendor != "postgresql":
            super().database_forwards(app_label, schema_editor, *states)
            return
        model = states[0].apps.get_model(app_label, self.model_name)
        index = states[0].models[app_label, self.model_name_lower].get_index_by_name(self.name)
        with waiting_at_most(schema_editor.connection, PATIENT_SECONDS):
            schema_editor.remove_index(model, index, concurrently=True)


def _is_whole(connection: BaseDatabaseWrapper, index: str) -> bool | None:
    """Whether the index holds every row; None where there is no such index."""
    query = "SELECT true FROM sqlite_master WHERE type = 'index' AND name = %s"
    if connection.vendor == "postgresql":
        query = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)"
    with connection.cursor() as cursor:
        cursor.execute(query, [index])
        row = cursor.fetchone()
    return None if row is None else bool(row[0])


class AddCheckBeside(migrations.AddConstraint):
    """A check of what is written from now on; `ValidateCheck` reads what is stored already."""

    def database_forwards(self, app_label: str, schema_editor: Any, *states: Any) -> None:
        """On PostgreSQL no row is read."""
        if schema_editor.connection.vendor != "postgresql":
            super().database_forwards(app_label, schema_editor, *states)
            return
        model = states[1].apps.get_model(app_label, self.model_name)
        table = schema_editor.quote_name(model._meta.db_table)
        check = self.constraint.constraint_sql(model, schema_editor)
        schema_editor.execute(f"ALTER TABLE {table} ADD {check} NOT VALID", None)


class AllowNull(migrations.AlterField):
    """A column that may be null from now on. Django's own makes a foreign key anew beside that, and
    reads every row for it."""

    def database_forwards(self, app_label: str, schema_editor: Any, *states: Any) -> None:
        """On PostgreSQL no row is read."""
        if schema_editor.connection.vendor != "postgresql":
            super().database_forwards(app_label, schema_editor, *states)
            return
        model = states[1].apps.get_model(app_label, self.model_name)
        column = schema_editor.quote_name(model._meta.get_field(self.name).column)
        table = schema_editor.quote_name(model._meta.db_table)
        schema_editor.execute(f"ALTER TABLE {table} ALTER COLUMN {column} DROP NOT NULL", None)


class ValidateCheck(migrations.RunSQL):
    """Read the stored rows for a check, under a lock that lets others write; PostgreSQL only."""

    def __init__(self, table: str, check: str) -> None:
        self.table, self.check = table, check
        super().__init__(f'ALTER TABLE "{table}" VALIDATE CONSTRAINT "{check}"', self.noop)

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        """As it was made."""
        return type(self).__name__, [self.table, self.check], {}

    def database_forwards(self, app_label: str, schema_editor: Any, *states: Any) -> None:
        """Nobody waits meanwhile, so it may take its time."""
        if schema_editor.connection.vendor == "postgresql":
            with waiting_at_most(schema_editor.connection, PATIENT_SECONDS):
                super().database_forwards(app_label, schema_editor, *states)


class RewriteChecks(migrations.SeparateDatabaseAndState):
    """The checks of a task's row in other words for the same rules, so what is stored fits.

    On PostgreSQL only, and the rows are read under a lock that lets others write. SQLite would
    write the whole table anew: it keeps the words that it has.
    """

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        """Drop what is there, check what is written from now on, then what is stored."""
        if schema_editor.connection.vendor != "postgresql":
            return
        old, new = (
            [
                check
                for check in state.apps.get_model(app_label, "task")._meta.constraints
                if isinstance(check, models.CheckConstraint)
            ]
            for state in (from_state, to_state)
        )
        model = to_state.apps.get_model(app_label, "task")
        table = schema_editor.quote_name(model._meta.db_table)
        parts = [f"DROP CONSTRAINT IF EXISTS {schema_editor.quote_name(c.name)}" for c in old + new]
        parts += [f"ADD {c.constraint_sql(model, schema_editor)} NOT VALID" for c in new]
        with transaction.atomic(using=schema_editor.connection.alias):
            lock_tables(schema_editor.connection, [model._meta.db_table], [], LOCK_SECONDS)
            schema_editor.execute(f"ALTER TABLE {table} {', '.join(dict.fromkeys(parts))}", None)
        for check in new:
            read = ValidateCheck(model._meta.db_table, check.name)
            read.database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        """As it was."""
        self.database_forwards(app_label, schema_editor, from_state, to_state)
