"""Conditions and values in SQL of our own, on columns of whichever table a query reads them from.

Django renames a table that a query reads twice; a name that is written out would then be taken of
the other one, and the inner query be run anew for each row of the outer.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.db.models import BooleanField, F, Field, Func


class OnColumns(Func):
    """True or false by the columns of `names`; `write` is the SQL."""

    names: ClassVar[tuple[str, ...]] = ()

    def __init__(self, output: Field[Any, Any] | None = None) -> None:
        super().__init__(*map(F, self.names), output_field=output or BooleanField())

    def as_sql(
        self, compiler: Any, connection: Any, *args: Any, **more: Any
    ) -> tuple[str, tuple[Any, ...]]:
        """The SQL of `write`, as a condition that stands for itself."""
        columns = [compiler.compile(one)[0] for one in self.get_source_expressions()]
        statement, values = self.write(connection, *columns)
        return f"({statement})", tuple(values)

    def write(self, connection: Any, *columns: str) -> tuple[str, tuple[Any, ...]]:
        """The SQL and its values, the columns as the query calls them."""
        raise NotImplementedError
