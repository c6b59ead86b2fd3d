"""Which queues a worker looks at, in which order: fairness between lanes without a shared row."""

from __future__ import annotations

import time

from ledger import sql, workflows
from ledger.sql import Group

FRESH_SECONDS = 0.05
"""How long a list of groups serves: it bounds how late a busy worker sees a new lane."""


class Picker:
    """The (lane, workflow, version) groups that have work this process can run, lanes in turn."""

    def __init__(self, only: frozenset[tuple[str, str]] | None = None) -> None:
        self._only = only
        self._groups: list[Group] = []
        self._read_at = 0.0
        self._turn = 0

    def choose(self, *, fresh: bool = False) -> list[Group]:
        """Groups for a claim, the lane whose turn it is first. Reads them anew when stale."""
        now = time.monotonic()
        if fresh or now - self._read_at > FRESH_SECONDS:
            known = workflows.known() if self._only is None else self._only
            self._groups = [g for g in sql.list_groups() if (g[1], g[2]) in known]
            self._read_at = now
        lanes = sorted({group[0] for group in self._groups})
        if len(lanes) < 2:
            return self._groups
        self._turn += 1
        first = self._turn % len(lanes)
        place = {lane: (at - first) % len(lanes) for at, lane in enumerate(lanes)}
        return sorted(self._groups, key=lambda group: place[group[0]])
