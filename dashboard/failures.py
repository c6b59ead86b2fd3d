"""Failures that are alike, counted together."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from collections.abc import Iterable
from typing import Any

from dashboard import words
from ledger.canonical import clean_text
from ledger.models import Task

CHANGING = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|0x[0-9a-f]+|\d+", re.IGNORECASE)
"""Ids, addresses and numbers: what differs between two messages of one failure."""

MAX_MESSAGE = 300


@dataclasses.dataclass(slots=True)
class FailureGroup:
    """Tasks that ended for one reason, at one step, by one failure; the newest first."""

    status: str
    reason: str
    workflow: str
    version: str
    step: str
    message: str
    rows: list[Task]
    look: words.Look = dataclasses.field(init=False)
    heading: str = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.look = words.LOOKS[self.status]
        self.heading = words.REASONS.get(self.reason, self.reason or self.look.label)

    @property
    def count(self) -> int:
        """How many tasks."""
        return len(self.rows)

    @property
    def first(self) -> dt.datetime | None:
        """When the first of them ended."""
        return self.rows[-1].finished_at

    @property
    def last(self) -> dt.datetime | None:
        """When the last of them ended."""
        return self.rows[0].finished_at

    @property
    def cost(self) -> str:
        """The money that all of them used."""
        return words.say_money(sum(row.used_cost for row in self.rows))


def group_failures(rows: Iterable[Task]) -> list[FailureGroup]:
    """Ended tasks, the newest first, as groups: most tasks first, of equals the latest."""
    groups: dict[tuple[str, ...], FailureGroup] = {}
    for row in rows:
        error: dict[str, Any] = row.error or {}
        message = clean_text(str(error.get("message") or ""), MAX_MESSAGE)
        text = ": ".join(part for part in (str(error.get("type") or ""), message) if part)
        alike = str(error.get("fingerprint") or "") or CHANGING.sub("#", text)
        place = (row.status, row.status_reason, row.workflow, row.workflow_version, row.step_name)
        group = groups.setdefault((*place, alike), FailureGroup(*place, text, []))
        group.rows.append(row)
    return sorted(groups.values(), key=lambda group: -group.count)
