"""Empties the database after a test that committed. In place of Django's flush, which truncates all
tables and makes content types and permissions anew: with 500 such tests a minute of a ring.
"""

from __future__ import annotations

import functools

from django.db import connection, transaction
from django.test import TransactionTestCase

KEPT = {"django_content_type", "auth_permission"}
"""What Django makes for each model after a migration, and every test finds the same."""


@functools.cache
def list_tables() -> list[str]:
    """The tables of all models but KEPT."""
    found = connection.introspection.django_table_names(only_existing=True, include_views=False)
    return sorted(set(found) - KEPT)


def empty_tables(_: TransactionTestCase | None = None) -> None:
    """Delete every row of them, in one transaction."""
    tables = list_tables()
    with transaction.atomic(), connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            asked = (f"SELECT '{name}' WHERE EXISTS (SELECT FROM {name})" for name in tables)
            cursor.execute(" UNION ALL ".join(asked))
            tables = [name for (name,) in cursor.fetchall()]
            cursor.execute("SET LOCAL session_replication_role = replica")  # checks no foreign keys
        for name in tables:
            cursor.execute(f"DELETE FROM {name}")


def install() -> None:
    """For every test that asks for `transaction=True`."""
    TransactionTestCase._fixture_teardown = empty_tables  # type: ignore[assignment]
