"""What makes two failures alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import CharField

from ledger.queries.columns import OnColumns

NONE = "none"
"""The kind of what says nothing of itself."""


class FailureKey(OnColumns):
    """What kind of failure ended a task: its fingerprint, without one the type of its error."""

    names = ("error",)

    def __init__(self) -> None:
        super().__init__(CharField())

    def write(self, connection: Any, *columns: str) -> tuple[str, tuple[Any, ...]]:
        """Text, never empty: an empty filter is none."""
        return _write_key(connection, *columns), ()


class IsAlike(OnColumns):
    """True when a failure is of one of these kinds."""

    names = ("error",)

    def __init__(self, kinds: Sequence[str]) -> None:
        super().__init__()
        self.kinds = tuple(kinds)

    def write(self, connection: Any, *columns: str) -> tuple[str, tuple[Any, ...]]:
        """The key among the kinds."""
        marks = ", ".join(["%s"] * len(self.kinds))
        return f"{_write_key(connection, *columns)} IN ({marks})", self.kinds


def _write_key(connection: Any, error: str) -> str:
    parts = [
        f"{error} ->> '{name}'"
        if connection.vendor == "postgresql"
        else f"json_extract({error}, '$.{name}')"
        for name in ("fingerprint", "type")
    ]
    return f"coalesce(nullif({parts[0]}, ''), nullif({parts[1]}, ''), '{NONE}')"
