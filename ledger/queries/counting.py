"""Rows that another query counts on its way, so that no page asks for a number alone."""

from __future__ import annotations

from typing import Any

from django.db.models import IntegerField, JSONField, Subquery


class CountRows(Subquery):
    """How many rows a query has; of one with a limit, at most so many."""

    template = "(SELECT count(*) FROM (%(subquery)s) AS counted)"
    output_field = IntegerField()


class Tally(Subquery):
    """`{name: number}` of a query that gives these two columns."""

    output_field = JSONField()

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        """A function of SQLite's."""
        return self._write("json_group_object", compiler, connection)

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        """A function of PostgreSQL's."""
        return self._write("jsonb_object_agg", compiler, connection)

    def _write(self, function: str, compiler: Any, connection: Any) -> Any:
        template = f"(SELECT {function}(name, number) FROM (%(subquery)s) AS pairs)"
        return self.as_sql(compiler, connection, template=template)


class Gather(Subquery):
    """The rows of a query whose one column is an object, named `told`, as a list."""

    output_field = JSONField()

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        """A function of SQLite's."""
        template = "(SELECT json_group_array(json(told)) FROM (%(subquery)s) AS gathered)"
        return self.as_sql(compiler, connection, template=template)

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        """A function of PostgreSQL's."""
        template = "(SELECT jsonb_agg(told) FROM (%(subquery)s) AS gathered)"
        return self.as_sql(compiler, connection, template=template)
