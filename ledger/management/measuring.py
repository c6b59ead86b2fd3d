"""What tasks take of the disk: bytes of every table with its indexes, and of a task by workflow."""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

from django.apps import apps
from django.db import connection
from django.db.models import Count, Max, Model, Sum

from ledger.errors import LedgerError
from ledger.models import (
    Approval,
    Artifact,
    Blob,
    Effect,
    Event,
    Handoff,
    Signal,
    Spend,
    StepOutput,
    Task,
)

OF_TASKS: Final[tuple[type[Model], ...]] = (
    StepOutput, Event, Spend, Artifact, Approval, Effect, Signal, Handoff,
)  # fmt: skip
"""Whose rows are counted with their task."""

SAMPLE: Final = 200
"""Tasks of a workflow that are looked at, the newest finished ones."""


EMPTY: Final = 500_000
"""Bytes that a table may take while it holds nothing; above them it was emptied and takes room."""


class Table(NamedTuple):
    """One table of the ledger; bytes of its rows and of its indexes."""

    name: str
    rows: int
    size: int
    indexes: int


class PerTask(NamedTuple):
    """Means over the newest finished tasks of a workflow; bytes."""

    workflow: str
    tasks: int
    """How many were looked at."""
    units: float
    rows: float
    """Of the database, its indexes and half-empty pages included."""
    files: float
    """Of artifacts, those of equal content once a task."""


def measure_tables() -> list[Table]:
    """Every table that holds something or takes room, the largest first. Rows of large ones are
    estimates on PostgreSQL. On SQLite it reads the whole file."""
    names = sorted(
        model._meta.db_table for model in apps.get_app_config("longwatch_ledger").get_models()
    )
    measure = _measure_postgresql if connection.vendor == "postgresql" else _measure_sqlite
    found = [one for one in measure(names) if one.rows or one.size + one.indexes > EMPTY]
    return sorted(found, key=lambda table: -(table.size + table.indexes))


def _measure_postgresql(names: list[str]) -> list[Table]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT c.relname, greatest(c.reltuples, s.n_live_tup, 0)::bigint, "
            "pg_table_size(c.oid), pg_indexes_size(c.oid) FROM pg_class AS c "
            "JOIN pg_stat_user_tables AS s ON s.relid = c.oid WHERE c.relname = ANY(%s)",
            [names],
        )
        return [Table(*row) for row in cursor.fetchall()]


class NoSizes(LedgerError):
    """This SQLite can't tell what its tables take."""

    code = "no_sizes"


def _measure_sqlite(names: list[str]) -> list[Table]:
    sizes: dict[tuple[str, bool], int] = {}
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pragma_module_list WHERE name = 'dbstat'")
        if cursor.fetchone() is None:
            raise NoSizes("This Python's SQLite is built without dbstat; take another Python.")
        cursor.execute(
            "SELECT m.tbl_name, m.type = 'index', sum(d.pgsize) FROM dbstat AS d "
            "JOIN sqlite_master AS m ON m.name = d.name WHERE d.aggregate = 1 GROUP BY 1, 2"
        )
        for name, is_index, size in cursor.fetchall():
            sizes[name, bool(is_index)] = size
        found = []
        for name in names:
            cursor.execute(f'SELECT count(*) FROM "{name}"')
            size, index = sizes.get((name, False), 0), sizes.get((name, True), 0)
            found.append(Table(name, cursor.fetchone()[0], size, index))
    return found


def measure_workflows() -> list[PerTask]:
    """What a finished task of each workflow takes, the newest of them first; a row counts as much
    as its table has bytes a row."""
    a_row = {t.name: (t.size + t.indexes) / max(1, t.rows) for t in measure_tables()}
    over = Task.objects.exclude(finished_at=None).order_by()
    names = over.values("workflow").annotate(last=Max("finished_at")).order_by("-last")[:100]
    return [_measure_workflow(name, a_row) for name in names.values_list("workflow", flat=True)]


def _measure_workflow(name: str, a_row: dict[str, float]) -> PerTask:
    newest = Task.objects.filter(workflow=name).exclude(finished_at=None).order_by("-finished_at")
    keys: list[UUID] = list(newest.values_list("pk", flat=True)[:SAMPLE])
    number = len(keys)
    size = number * a_row[Task._meta.db_table]
    units = 0
    for table in OF_TASKS:
        rows = table._default_manager.filter(task__in=keys).count()
        units += rows if table is StepOutput else 0
        size += rows * a_row.get(table._meta.db_table, 0.0)
    digests = Artifact.objects.filter(task__in=keys, blob__isnull=False).order_by()
    named = digests.values("task", "blob").distinct().values_list("blob", flat=True)
    times = dict(digests.values_list("blob").annotate(times=Count("task", distinct=True)))
    held = Blob.objects.filter(pk__in=set(named))
    files = sum(row.size * times[row.digest] for row in held)
    return PerTask(name, number, units / number, size / number, files / number)


def measure_files() -> tuple[int, int]:
    """(how many blobs are on record, their bytes)."""
    found = Blob.objects.aggregate(number=Count("pk"), size=Sum("size"))
    return found["number"], found["size"] or 0
