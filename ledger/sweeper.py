"""What time does to tasks: reclaim, promote, apply, expire, remind, enforce. Any process may sweep.

One cheap look decides what there is to do, so an idle product asks the database one question a
second and writes nothing.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import time
from collections.abc import Callable
from typing import Any

from django.db import connection

from ledger import clock, conf, sql
from ledger.bulk.doing import do_pending
from ledger.conf import Tunables
from ledger.sql.columns import by_partial_index
from ledger.transitions import sweeps

MAX_SECONDS = 1.0
"""Longest time between two looks."""

MIN_SECONDS = 0.005

RECENT_SECONDS = 600

_LOOK = """SELECT {now},
  (SELECT available_at FROM longwatch_task
    WHERE status = 'scheduled' AND available_at <= {soon} ORDER BY available_at LIMIT 1),
  (SELECT available_at FROM longwatch_task
    WHERE status = 'waiting' AND status_reason IN ('decided', 'signal', 'children', 'budget')
      AND available_at <= {soon} ORDER BY available_at LIMIT 1),
  (SELECT expires_at FROM longwatch_approval
    WHERE status = 'open' AND expires_at <= {soon} ORDER BY expires_at LIMIT 1),
  (SELECT remind_at FROM longwatch_approval
    WHERE status = 'open' AND remind_at <= {soon} ORDER BY remind_at LIMIT 1),
  (SELECT wall_until FROM longwatch_task
    WHERE wall_until <= {soon} AND lease_owner = '' ORDER BY wall_until LIMIT 1),
  (SELECT deadline_at FROM longwatch_task
    WHERE deadline_at <= {soon} AND finished_at IS NULL AND status <> 'running'
    ORDER BY deadline_at LIMIT 1),
  leases.earliest, leases.latest,
  (SELECT max(lease_seconds) FROM longwatch_worker WHERE seen_at > {recent}),
  EXISTS (SELECT 1 FROM longwatch_task
    WHERE finished_at IS NOT NULL AND parent_id IS NOT NULL AND NOT parent_told)
  OR EXISTS (SELECT 1 FROM longwatch_task WHERE cascade_upto IS NOT NULL),
  EXISTS (SELECT 1 FROM longwatch_bulk_operation WHERE status IN ('running', 'stopping')),
  (SELECT lane FROM longwatch_task WHERE status = 'queued' ORDER BY lane LIMIT 1) IS NOT NULL,
  (SELECT told FROM longwatch_worker WHERE owner = {owner})
FROM (SELECT min(lease_until) AS earliest, max(lease_until) AS latest
  FROM longwatch_task WHERE status = 'running') AS leases"""
# No min() of the first ones: where the statistics say that there is nothing of the kind, PostgreSQL
# reads all there is to find the least. And no further than the next look: under an old snapshot an
# index still has the rows of all that has ended since.


@dataclasses.dataclass(frozen=True, slots=True)
class Swept:
    """How many tasks each sweep moved."""

    reclaimed: int = 0
    promoted: int = 0
    applied: int = 0
    expired: int = 0
    reminded: int = 0
    enforced: int = 0
    related: int = 0
    """Parents told of ended children, and children ended with their parents."""
    bulk: int = 0
    """Items of bulk operations."""


@dataclasses.dataclass(frozen=True, slots=True)
class Due:
    """The earliest time of each kind that comes before the next look, and the database's now."""

    now: dt.datetime
    longest_lease: float
    """Seconds; of any worker seen of late, which may be set otherwise than this process."""
    families: bool
    """A parent has ended children that it does not know of, or children to be ended."""
    bulk: bool
    """A bulk operation is not done."""
    queued: bool
    """Some task is, whoever may run it."""
    told: str
    """What people want of the worker that looks (`Worker.told`)."""
    scheduled: dt.datetime | None
    wait: dt.datetime | None
    """A decision takes effect, a signal has not come, children are to be looked at again."""
    expiry: dt.datetime | None
    reminder: dt.datetime | None
    wall: dt.datetime | None
    deadline: dt.datetime | None
    lease: dt.datetime | None
    last_lease: dt.datetime | None

    def seconds_left(self) -> float:
        """Until the next of them, at most MAX_SECONDS, by the database's clock."""
        times = (self.scheduled, self.wait, self.expiry, self.reminder, self.wall, self.deadline,
                 self.lease)  # fmt: skip
        left = [(moment - self.now).total_seconds() for moment in times if moment is not None]
        # A lease that is over is no reason to hurry: it waits for contact, or for its sweeper.
        ahead = [seconds for seconds in left if seconds > 0]
        return min([MAX_SECONDS, *ahead])


@functools.lru_cache(maxsize=4)
def _write_look(vendor: str, offset: float) -> str:
    """The statement; `offset` keys the cache because tests move the clock."""
    text = _LOOK.format(
        now=clock.fragment(vendor),
        soon=clock.fragment(vendor, f"{2 * MAX_SECONDS}"),
        recent=clock.fragment(vendor, f"-{RECENT_SECONDS}"),
        owner="$1" if vendor == "postgresql" else "?",
    )
    return by_partial_index(text) if vendor == "postgresql" else text


def look_ahead(owner: str = "", *, prepare: bool = False) -> Due:
    """When there is something to sweep, and what the worker `owner` is told: one statement over
    partial indexes. `prepare` is for workers: it is what an idle one does each second."""
    text = _write_look(connection.vendor, clock.offset)
    *row, longest_lease, families, bulk, queued, told = sql.fetch_row(text, owner, prepare=prepare)
    read_at, *times = [None if value is None else clock.parse(value) for value in row]
    assert read_at is not None
    flags = (bool(families), bool(bulk), bool(queued))
    return Due(read_at, longest_lease or 0.0, *flags, told or "", *times)


def sweep(
    limit: int = 100,
    *,
    reclaim: bool = True,
    due: Due | None = None,
    explain: sweeps.Explain = lambda owner: "",
) -> Swept:
    """Move what is due, at most `limit` tasks of each kind. Safe from any number of processes."""
    due = due or look_ahead()
    lease_seconds = max(conf.load().lease_seconds, due.longest_lease)

    def is_over(moment: dt.datetime | None) -> bool:
        return moment is not None and moment <= due.now

    horizon = due.now + dt.timedelta(seconds=2 * lease_seconds)
    stepped_back = due.last_lease is not None and due.last_lease > horizon
    reclaimed = 0
    if reclaim and (is_over(due.lease) or stepped_back):
        reclaimed = sweeps.reclaim_expired(lease_seconds, limit, explain)
    return Swept(
        reclaimed=reclaimed,
        promoted=sweeps.promote_due(limit) if is_over(due.scheduled) else 0,
        applied=sweeps.apply_decisions(limit) if is_over(due.wait) else 0,
        expired=(
            (sweeps.expire_approvals(limit) if is_over(due.expiry) else 0)
            + (sweeps.expire_signals(limit) if is_over(due.wait) else 0)
        ),
        reminded=sweeps.remind_approvals(limit) if is_over(due.reminder) else 0,
        related=(
            (sweeps.tell_parents(limit) + sweeps.end_orphans(limit) if due.families else 0)
            + (
                sweeps.join_parents(limit) + sweeps.look_at_budgets(limit)
                if is_over(due.wait)
                else 0
            )
        ),
        enforced=(
            sweeps.enforce_limits(limit) if is_over(due.wall) or is_over(due.deadline) else 0
        ),
        bulk=do_pending(limit) if due.bulk else 0,
    )


class Sweeper:
    """A process's sweeping, called by its guardian thread.

    It reclaims only after two heartbeat intervals of unbroken contact with the database, at its
    own start as well: after an outage every holder has had the time to beat again. Likewise after
    a sleep of this process or this machine, or a jump of the database's clock.
    """

    def __init__(self, tunables: Tunables, explain: sweeps.Explain = lambda owner: "") -> None:
        self.explain = explain
        self.owner = ""
        self.hear: Callable[[Due, float], None] = lambda due, at: None
        """Given each look, with what `owner` is told, and when (monotonic) it was begun."""
        self.patience = 2 * tunables.heartbeat_seconds
        self.longest_gap = tunables.heartbeat_seconds + MAX_SECONDS
        self._contact_since: float | None = None
        self._looked = (0.0, dt.datetime.min.replace(tzinfo=dt.UTC))
        self._next_due = 0.0

    def tick(self) -> float:
        """Sweep; returns in how many seconds to be called again. Raises what the database does."""
        now = time.monotonic()
        if now < self._next_due:
            return self._next_due - now
        since, self._contact_since = self._contact_since, None
        due = look_ahead(self.owner, prepare=True)
        self.hear(due, now)
        away = self._was_away(now, due.now)
        if since is None or away:
            since = now
        swept: Any = sweep(due=due, reclaim=now - since >= self.patience, explain=self.explain)
        self._contact_since = since
        # A full batch leaves more to do at once; so does one of bulk operations that time ended.
        full = max(dataclasses.astuple(swept)) >= 100 or swept.bulk > 0
        wait = MIN_SECONDS if full else due.seconds_left()
        wait = max(MIN_SECONDS, wait)
        self._next_due = time.monotonic() + wait
        return wait

    def hurry(self) -> None:
        """Look at the next tick, from any thread."""
        self._next_due = 0.0

    def _was_away(self, now: float, database_now: dt.datetime) -> bool:
        """True when either clock says that the last look was not just now."""
        (looked, database_looked), self._looked = self._looked, (now, database_now)
        passed = (database_now - database_looked).total_seconds()
        return now - looked > self.longest_gap or not 0 <= passed <= self.longest_gap
