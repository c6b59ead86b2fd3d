"""The audit log, newest first: a page of it, or all that matches, for an export."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from ledger.models import AuditEntry
from ledger.queries.paging import DEFAULT_LIMIT, Page, clamp_limit, read_seq

CHUNK = 500
"""Rows of an export that are in memory at once."""

COLUMNS = (
    "seq", "at", "actor", "action", "target", "task", "allowed", "reason", "before", "after",
    "address", "request_id",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class AuditFilter:
    """What the log is narrowed to; an empty field narrows nothing. `actor` is `user:3`."""

    actor: str = ""
    action: str = ""
    task: UUID | None = None
    allowed: bool | None = None
    since: dt.datetime | None = None
    until: dt.datetime | None = None

    def select(self) -> QuerySet[AuditEntry]:
        """The entries, newest first."""
        wanted: dict[str, Any] = {
            "actor": self.actor, "action": self.action, "task": self.task, "at__gte": self.since,
            "at__lt": self.until,
        }  # fmt: skip
        given = {name: value for name, value in wanted.items() if value}
        if self.allowed is not None:
            given["allowed"] = self.allowed
        return AuditEntry.objects.filter(**given).order_by("-pk")


def list_audit(
    wanted: AuditFilter, *, limit: int = DEFAULT_LIMIT, cursor: str = ""
) -> Page[dict[str, Any]]:
    """A page of entries."""
    size = clamp_limit(limit)
    rows = wanted.select()
    if cursor:
        rows = rows.filter(pk__lt=read_seq(cursor))
    shown = [show_entry(row) for row in rows[: size + 1]]
    return Page(shown[:size], str(shown[size - 1]["seq"]) if len(shown) > size else None)


def stream_audit(wanted: AuditFilter) -> Iterator[dict[str, Any]]:
    """Every entry that matches, CHUNK rows in memory at a time; no transaction stays open."""
    cursor = ""
    while True:
        page = list_audit(wanted, limit=CHUNK, cursor=cursor)
        yield from page.items
        if page.next_cursor is None:
            return
        cursor = page.next_cursor


def show_entry(row: AuditEntry) -> dict[str, Any]:
    """The Audit JSON."""
    names = (name for name in COLUMNS if name != "seq")
    shown = {"seq": row.pk, **{name: getattr(row, name) for name in names}}
    return shown | {"task": str(row.task) if row.task else None}
