"""What makes two failures alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import BooleanField, CharField, Expression

NONE = "none"
"""The kind of what says nothing of itself."""


class FailureKey(Expression):
    """What kind of failure ended a task: its fingerprint, without one the type of its error."""

    output_field = CharField()

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        """Text, never empty: an empty filter is none."""
        names = ("fingerprint", "type")
        parts = (
            [f"longwatch_task.error ->> '{name}'" for name in names]
            if connection.vendor == "postgresql"
            else [f"json_extract(longwatch_task.error, '$.{name}')" for name in names]
        )
        return f"coalesce(nullif({parts[0]}, ''), nullif({parts[1]}, ''), '{NONE}')", ()


class IsAlike(Expression):
    """True when a failure is of one of these kinds."""

    output_field = BooleanField()
    conditional = True

    def __init__(self, kinds: Sequence[str]) -> None:
        super().__init__()
        self.kinds = tuple(kinds)

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        """The key among the kinds."""
        key, _ = FailureKey().as_sql(compiler, connection)
        return f"{key} IN ({', '.join(['%s'] * len(self.kinds))})", self.kinds
