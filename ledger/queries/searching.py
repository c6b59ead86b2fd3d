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
from django.db.models import BooleanField, Expression, QuerySet

from ledger.calls import sees_payload
from ledger.models import Task

SHORT_INPUT = 2_000
"""Inputs that take more bytes are not looked through: many of those would be read from disk."""

_HEX = re.compile(r"[0-9a-f-]{6,36}")
_TYPE = {
    "postgresql": "longwatch_task.error ->> 'type'",
    "sqlite": "json_extract(longwatch_task.error, '$.type')",
}
_MESSAGE = {
    "postgresql": "longwatch_task.error ->> 'message'",
    "sqlite": "json_extract(longwatch_task.error, '$.message')",
}
_INPUT = {
    "postgresql": f"CASE WHEN pg_column_size(longwatch_task.input) <= {SHORT_INPUT} "
    "THEN longwatch_task.input::text END",
    "sqlite": f"CASE WHEN length(longwatch_task.input) <= {SHORT_INPUT} "
    "THEN longwatch_task.input END",
}


class HasText(Expression):
    """True when the task has `text` somewhere, in whatever case."""

    output_field = BooleanField()
    conditional = True

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.payload = sees_payload()

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        """One comparison with all columns as one text: far faster than one for each."""
        vendor = connection.vendor
        columns = ["longwatch_task.title", "longwatch_task.workflow", _TYPE[vendor]]
        columns += [_MESSAGE[vendor], _INPUT[vendor]] if self.payload else []
        parts, values = [_write_like(vendor, columns)], [_make_pattern(connection, self.text)]
        # As it stands in stored JSON, where that is something else: `"` is `\"`.
        stored = json.dumps(self.text, ensure_ascii=vendor == "sqlite")[1:-1]
        if self.payload and stored != self.text:
            parts.append(_write_like(vendor, [_INPUT[vendor]]))
            values.append(_make_pattern(connection, stored))
        if _HEX.fullmatch(self.text.lower()):
            parts.append(
                "strpos(replace(longwatch_task.id::text, '-', ''), %s) > 0"
                if vendor == "postgresql"
                else "instr(longwatch_task.id, %s) > 0"
            )
            values.append(self.text.lower().replace("-", ""))
        return f"({' OR '.join(parts)})", tuple(values)


class IsAmong(Expression):
    """True of the tasks with these ids: one parameter, however many they are."""

    output_field = BooleanField()
    conditional = True

    def __init__(self, ids: str) -> None:
        super().__init__()
        self.ids = ids

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        """By the primary key on both databases."""
        if connection.vendor == "postgresql":
            return "longwatch_task.id = ANY(CAST(%s AS uuid[]))", (f"{{{self.ids}}}",)
        return "longwatch_task.id IN (SELECT value FROM json_each(%s))", (f"[{self.ids}]",)


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


def _write_like(vendor: str, columns: list[str]) -> str:
    if vendor == "postgresql":
        return f"concat_ws(chr(10), {', '.join(columns)}) ILIKE %s"
    text = " || char(10) || ".join(f"coalesce({one}, '')" for one in columns)
    return f"({text}) LIKE %s ESCAPE '\\'"


def _make_pattern(connection: Any, text: str) -> str:
    return f"%{connection.ops.prep_for_like_query(text)}%"
