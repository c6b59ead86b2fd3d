"""Prepared statements on PostgreSQL with as little of the driver in between as there can be.

A cursor of psycopg looks for parameters in the text, gives every number the smallest type that
holds it, so that a plan is prepared anew when a fence grows, and costs as much again as the
statement's own round trip. Here the server says what types it wants, once for each connection.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import generators, pq
from psycopg.abc import PyFormat
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result

_open: weakref.WeakKeyDictionary[psycopg.Connection[Any], Prepared] = weakref.WeakKeyDictionary()


def find_prepared(raw: psycopg.Connection[Any], *, make: bool) -> Prepared | None:
    """What is prepared on this connection; None where nothing may be: it may be a pooler's, and
    `make` says that it is not. Nor at the beginning of a transaction, which psycopg begins."""
    found = _open.get(raw)
    if found is None and make:
        found = _open[raw] = Prepared(raw)
    if found is None or not (raw.autocommit or raw.pgconn.transaction_status):
        return None
    return found


class Prepared:
    """The statements that a connection has prepared, by their texts ($1, $2 … for parameters)."""

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self._raw = weakref.ref(raw)
        self._names: dict[str, bytes] = {}
        self._values = Transformer(raw)
        self.is_warm = False
        """What a worker runs is planned."""

    def run(self, text: str, params: Sequence[Any]) -> list[tuple[Any, ...]]:
        """The rows of the statement. Raises psycopg.Error."""
        raw = self._raw()
        assert raw is not None
        name = self._names.get(text)
        if name is None:
            name = b"longwatch_%d" % len(self._names)
            raw.pgconn.send_prepare(name, text.encode())
            self._wait(raw, pq.ExecStatus.COMMAND_OK)
            self._names[text] = name
        values = self._values.dump_sequence(params, [PyFormat.TEXT] * len(params))
        raw.pgconn.send_query_prepared(name, values)
        result = self._wait(raw, pq.ExecStatus.TUPLES_OK)
        self._values.set_pgresult(result)
        return self._values.load_rows(0, result.ntuples, tuple)

    def _wait(self, raw: psycopg.Connection[Any], expected: pq.ExecStatus) -> Any:
        (result,) = raw.wait(generators.execute(raw.pgconn))
        if result.status != expected:
            raise error_from_result(result, raw.info.encoding)
        return result


def number_names(text: str) -> tuple[str, list[str]]:
    """The text with $1, $2 … for its %(name)s, and the names in that order."""
    names: dict[str, int] = {}

    def number_name(match: re.Match[str]) -> str:
        return f"${names.setdefault(match[1], len(names) + 1)}"

    return re.sub(r"%\((\w+)\)s", number_name, text), list(names)
