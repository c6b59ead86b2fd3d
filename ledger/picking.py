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
        self._last: list[Group] = []
        self._read_at = 0.0
        self.served = ""
        """The lane of the unit that this worker ran last; the one after it is next."""

    def recall(self) -> list[Group]:
        """A woken worker's first guess, which spares it a statement when it is right: the groups
        that had work last. None of several lanes, whose turns would not count."""
        return self._last if len({group[0] for group in self._last}) == 1 else []

    def choose(self, *, fresh: bool = False) -> list[Group]:
        """Groups for a claim, the lane whose turn it is first. Reads them anew when stale."""
        now = time.monotonic()
        if fresh or now - self._read_at > FRESH_SECONDS:
            known = workflows.known() if self._only is None else self._only
            self._groups = [g for g in sql.list_groups() if (g[1], g[2]) in known]
            self._last = self._groups or self._last
            self._read_at = now
        # After the lane just served, not by counting: a lane's only task is in no list while it
        # runs, so a count would pass it over every other time.
        return sorted(self._groups, key=lambda group: (group[0] <= self.served, group[0]))
