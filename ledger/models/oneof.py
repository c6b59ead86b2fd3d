"""`IN` in a check, as PostgreSQL is quickest with it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db.models import BooleanField, Func, Q


class OneOf(Func):
    """Whether a column holds one of these texts or, where `when` does not hold, one of the others.

    On PostgreSQL each list is one constant. Of Django's `IN` it keeps an array that is put together
    from a constant for each text, with a cast, and prepares that in each statement that writes.
    """

    output_field = BooleanField()

    def __init__(
        self, column: str, texts: Iterable[str], when: Q | None = None, others: Iterable[str] = ()
    ) -> None:
        super().__init__(column, *([] if when is None else [when]))
        self.lists = [list(texts)] if when is None else [list(texts), list(others)]

    def as_sql(
        self, compiler: Any, connection: Any, *_: Any, **__: Any
    ) -> tuple[str, tuple[Any, ...]]:
        """The column is IN a list, the one of the case."""
        (column, given), *when = map(compiler.compile, self.get_source_expressions())
        fits = [f"{column} IN ({', '.join(['%s'] * len(some))})" for some in self.lists]
        params = [one for some in self.lists for one in (*given, *some)]
        if not when:
            return f"({fits[0]})", tuple(params)
        [(condition, held)] = when
        return f"(CASE WHEN {condition} THEN {fits[0]} ELSE {fits[1]} END)", (*held, *params)

    def as_postgresql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        """The column is any of an array, the one of the case."""
        (column, given), *when = map(compiler.compile, self.get_source_expressions())
        if not when:
            return f"({column} = ANY(%s::text[]))", (*given, *self.lists)
        [(condition, held)] = when
        sql = f"({column} = ANY(CASE WHEN {condition} THEN %s::text[] ELSE %s::text[] END))"
        return sql, (*given, *held, *self.lists)
