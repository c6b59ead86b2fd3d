"""Text that is searched for in tasks: the condition, and the ids that met it.

Title, workflow, id, the error's type; for who sees contents also its message and the input. There
is no index of words: one on the task table would be written anew at each change of status, so with
every unit. What bounds a search instead is how many tasks it looks at (`filters.SEARCHED_TEXT`).
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

from django.db import connection
from django.db.models import QuerySet

from ledger.calls import sees_payload
from ledger.models import Task
from ledger.queries.columns import OnColumns

SHORT_INPUT = 2_000
"""Inputs that take more bytes are not looked through: many of those would be read from disk."""

_HEX = re.compile(r"[0-9a-f-]{6,36}")


class HasText(OnColumns):
    """True when the task has `text` somewhere, in whatever case."""

    names = ("id", "title", "workflow", "error", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.payload = sees_payload()

    def write(self, connection: Any, *columns: str) -> tuple[str, tuple[Any, ...]]:
        """One comparison with all columns as one text: far faster than one for each."""
        postgresql = connection.vendor == "postgresql"
        key, title, workflow, error, data = columns
        if postgresql:
            kind, message = f"{error} ->> 'type'", f"{error} ->> 'message'"
            data = f"CASE WHEN pg_column_size({data}) <= {SHORT_INPUT} THEN {data}::text END"
        else:
            kind, message = (f"json_extract({error}, '$.{one}')" for one in ("type", "message"))
            data = f"CASE WHEN length({data}) <= {SHORT_INPUT} THEN {data} END"
        text = [title, workflow, kind, *([message, data] if self.payload else [])]
        parts, values = [_write_like(postgresql, text)], [_make_pattern(connection, self.text)]
        # As it stands in stored JSON, where that is something else: `"` is `\"`.
        stored = json.dumps(self.text, ensure_ascii=not postgresql)[1:-1]
        if self.payload and stored != self.text:
            parts.append(_write_like(postgresql, [data]))
            values.append(_make_pattern(connection, stored))
        if _HEX.fullmatch(self.text.lower()):
            whole = f"strpos(replace({key}::text, '-', ''), %s)" if postgresql else None
            parts.append(f"{whole or f'instr({key}, %s)'} > 0")
            values.append(self.text.lower().replace("-", ""))
        return " OR ".join(parts), tuple(values)


class IsAmong(OnColumns):
    """True of the tasks with these ids: one parameter, however many they are."""

    names = ("id",)

    def __init__(self, ids: str) -> None:
        super().__init__()
        self.ids = ids

    def write(self, connection: Any, *columns: str) -> tuple[str, tuple[Any, ...]]:
        """By the primary key on both databases."""
        if connection.vendor == "postgresql":
            return f"{columns[0]} = ANY(CAST(%s AS uuid[]))", (f"{{{self.ids}}}",)
        return f"{columns[0]} IN (SELECT value FROM json_each(%s))", (f"[{self.ids}]",)


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """What a search found: the ids as the database wrote them, and how many they are."""

    ids: str
    count: int


def collect_ids(rows: QuerySet[Task]) -> Found:
    """The ids of `rows`, without making objects of them."""
    statement, values = rows.values_list("pk").query.sql_with_params()
    joined = {"postgresql": "string_agg(key::text, ',')", "sqlite": "group_concat(json_quote(key))"}
    with connection.cursor() as cursor:
        cursor.execute(
            f"WITH found(key) AS ({statement}) "
            f"SELECT {joined[connection.vendor]}, count(*) FROM found",
            values,
        )
        [(ids, count)] = cursor.fetchall()
    return Found(ids or "", count)


def _write_like(postgresql: bool, columns: list[str]) -> str:
    if postgresql:
        return f"concat_ws(chr(10), {', '.join(columns)}) ILIKE %s"
    text = " || char(10) || ".join(f"coalesce({one}, '')" for one in columns)
    return f"({text}) LIKE %s ESCAPE '\\'"


def _make_pattern(connection: Any, text: str) -> str:
    return f"%{connection.ops.prep_for_like_query(text)}%"
