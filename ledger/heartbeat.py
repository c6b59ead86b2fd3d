"""Keeps the lease in hand alive, and tells the running step what befell it."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable

from ledger import sql, states
from ledger.conf import Tunables
from ledger.errors import LedgerError
from ledger.models import Task
from ledger.sql import Claimed, Lease
from ledger.transitions import holder

STATUS_SECONDS = 1.0


@dataclasses.dataclass(slots=True)
class Held:
    """One attempt in hand: its lease, its end on this process's monotonic clock, its signs."""

    lease: Lease
    ends: float
    next_beat: float
    next_look: float
    interrupt: Callable[[str], None] | None = None
    end_overdue: Callable[[], None] | None = None
    """While the step runs: ends the process, for `ends` has passed."""
    cancel: bool = False
    lost: bool = False
    stop: bool = False


class Heart:
    """Beats for the attempt that this process holds. `tick` is called by the guardian thread.

    A beat of a fence that the main thread has left behind meanwhile is refused and means nothing,
    so a refusal counts only while the very attempt that was beaten for is still in hand.
    """

    def __init__(self, owner: str, tunables: Tunables) -> None:
        self.owner = owner
        self.tunables = tunables
        self.held: Held | None = None

    def hold(self, claimed: Claimed, seconds: float) -> Held:
        """Take an attempt in hand for at most `seconds` plus the margin."""
        now = time.monotonic()
        ends = now + seconds + self.tunables.unit_margin_seconds
        beat = now + self.tunables.heartbeat_seconds
        self.held = Held(claimed.lease, ends, beat, now + STATUS_SECONDS)
        return self.held

    def drop(self) -> None:
        """The attempt is settled."""
        self.held = None

    def tick(self) -> float | None:
        """Beat if it is time; returns when to be called again."""
        held, now = self.held, time.monotonic()
        if held is not None and now > held.ends and (end := held.end_overdue):
            end()
        if held is None or held.lost or now > held.ends:
            return None  # stuck beyond its hard stop: let the lease run out
        if now < held.next_beat:
            self._look(held, now)
            return None
        held.next_beat = now + self.tunables.heartbeat_seconds
        try:
            beaten = sql.beat_leases(self.owner, [held.lease], self.tunables.lease_seconds)
        except BaseException as error:
            held.next_beat = now
            if sql.is_locked(error):
                return 0.0  # in line again at once, so that no sweeper is first when it is let go
            raise
        self._take_in(held, [flag.cancel_requested for flag in beaten])
        return None

    def _look(self, held: Held, now: float) -> None:
        """Between beats, once a second: a person who cancels or stops should not wait for one."""
        if now < held.next_look:
            return
        held.next_look = now + STATUS_SECONDS
        flags = Task.objects.filter(
            pk=held.lease.task_id, status=states.RUNNING, fence=held.lease.fence,
            lease_owner=self.owner,
        ).values_list("cancel_requested", flat=True)  # fmt: skip
        self._take_in(held, list(flags))

    def _take_in(self, held: Held, flags: list[bool]) -> None:
        """`flags` is empty when the lease is not ours any more."""
        if flags:
            held.cancel = held.cancel or flags[0]
        elif self.held is held:
            held.lost = True
            if held.interrupt is not None:
                held.interrupt("lease_lost")

    def let_go(self) -> None:
        """Give back what this process holds, uncharged: it is about to end.

        The ledger is asked, since between two attempts nothing is in hand while the lease is held.
        """
        if self.held is not None:
            self.held.stop = True
        for task in Task.objects.filter(status=states.RUNNING, lease_owner=self.owner):
            with contextlib.suppress(LedgerError):
                holder.release_task(sql.read_task(task), why="drain")
