"""One statement that gives many rows other values, each its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connection
from django.db.models import Model


def write_rows(table: type[Model], columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Write `rows`, each (primary key, value of each column), as if they were stored one by one."""
    names = ["pk", *columns]
    fields: list[Any] = [table._meta.pk, *(table._meta.get_field(name) for name in columns)]
    stored = [
        [
            field.get_db_prep_save(value, connection)
            for field, value in zip(fields, row, strict=True)
        ]
        for row in rows
    ]
    if not stored:
        return
    own, key = table._meta.db_table, fields[0].column
    with connection.cursor() as cursor:
        if connection.vendor != "postgresql":
            pairs = ", ".join(f'"{field.column}" = %s' for field in fields[1:])
            text = f"UPDATE {own} SET {pairs} WHERE {key} = %s"
            cursor.executemany(text, [[*row[1:], row[0]] for row in stored])
            return
        kinds = [field.rel_db_type(connection) if n == 0 else field.db_type(connection)
                 for n, field in enumerate(fields)]  # fmt: skip
        pairs = ", ".join(
            f'"{field.column}" = new.{name}_'
            for field, name in zip(fields[1:], names[1:], strict=True)
        )
        arrays = ", ".join(f"CAST(%s AS {kind}[])" for kind in kinds)
        given = ", ".join(f"{name}_" for name in names)
        cursor.execute(
            f"UPDATE {own} SET {pairs} FROM unnest({arrays}) AS new ({given}) "
            f"WHERE {own}.{key} = new.pk_",
            [list(column) for column in zip(*stored, strict=True)],
        )
