"""Where the log of an attempt goes: its end beside its output or failure, all of it to the artifact
store where a row does not hold it, and while the unit runs into a row that others follow.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from django.db import DatabaseError, InterfaceError

from ledger import artifacts, clock, sql
from ledger.errors import LeaseLost
from ledger.models import Event, LiveLog, StepOutput
from ledger.unitlog import LOG_TYPE

if TYPE_CHECKING:
    from ledger.sql import Claimed
    from ledger.steplog import Running
    from ledger.unitlog import UnitLog

log = logging.getLogger(__name__)

QUIET_SECONDS = 1.0
"""A unit that ends sooner is followed by nobody; and the time between two writes."""

MAX_KEPT = 20
"""Rows of a task: of what runs, and of the latest attempts that were lost or given back."""

TRIES = 30
"""Looks whether an attempt that was followed is settled, until its row is left where it is."""


def store_whole(claimed: Claimed, unit: UnitLog, *, insist: bool) -> str:
    """The id of the artifact with the whole log; "" where a row holds it.

    A store that does not take it costs the log, never the unit. With `insist` it raises what an
    outage of the database raises, and may be repeated.
    """
    if not unit.is_long():
        return ""
    name = f"{artifacts.OWN}log-{claimed.step_name}-{claimed.turn}-f{claimed.fence}.txt"
    try:
        return str(artifacts.save_artifact(claimed, name, unit.read_whole(), LOG_TYPE).pk)
    except Exception as error:
        if insist and isinstance(error, DatabaseError | InterfaceError) and sql.is_outage(error):
            raise
        log.warning("task %s: of its log only the end is kept: %s", claimed.task_id, error)
        return ""


def write_row(running: Running) -> None:
    """Show the log as it is now to who follows it. Raises LeaseLost."""
    text, size = running.log.read_ring()
    task, fence = running.lease.task_id, running.lease.fence
    facts = {"at": clock.now(), "size": size, "text": text}
    with sql.hold_task(running.lease, "log"):
        rows = LiveLog.objects.filter(task=task)
        if not rows.filter(fence=fence).update(**facts):
            row = LiveLog(task_id=task, fence=fence, step=running.step, turn=running.turn, **facts)
            LiveLog.objects.bulk_create([row])
            old = list(rows.order_by("-fence").values_list("pk", flat=True)[MAX_KEPT:])
            rows.filter(pk__in=old).delete()
    running.log.followed = size


def keep_rest(running: Running) -> None:
    """What an attempt that was followed said since the last write: where it is given back, nothing
    else will tell."""
    if 0 < running.log.followed < running.log.size:
        try:
            write_row(running)
        except (LeaseLost, DatabaseError, InterfaceError) as error:
            log.info("task %s: the end of its log is lost: %s", running.lease.task_id, error)


def drop_row(running: Running) -> bool:
    """Remove the row of an attempt whose log is kept with its output or failure; False while there
    is none."""
    own = {"task": running.lease.task_id, "fence": running.lease.fence}
    units = StepOutput.objects.filter(**own, step_index=running.step_index, turn=running.turn)
    if not (units.exists() or Event.objects.filter(**own, kind="attempt_failed").exists()):
        return False
    LiveLog.objects.filter(**own).delete()
    return True


class Follower:
    """Called by the guardian thread: writes down what the running unit said, once a second."""

    def __init__(self, find: Callable[[], Running | None]) -> None:
        self._find = find
        self._due = 0.0
        self._written: dict[int, tuple[Running, int]] = {}
        """By fence, those that have a row, and how often their end was looked for."""
        self._refused: Running | None = None

    def tick(self) -> float | None:
        """No statement for a unit that ends within a second, or says nothing new."""
        now = time.monotonic()
        if now < self._due:
            return None
        try:
            self._follow(now)
        except DatabaseError as error:  # a lock that others hold is no outage
            if not sql.is_locked(error):
                raise
        return None

    def _follow(self, now: float) -> None:
        running = self._find()
        self._drop_rows(running)
        if (
            running is None
            or running is self._refused
            or now < running.began + QUIET_SECONDS
            or running.log.size == running.log.followed
        ):
            return
        self._due = now + QUIET_SECONDS
        try:
            write_row(running)
            self._written[running.lease.fence] = (running, 0)
        except LeaseLost:  # the heart tells the step
            self._refused = running

    def _drop_rows(self, running: Running | None) -> None:
        over = [(one, tries) for one, tries in self._written.values() if one is not running]
        for one, tries in over:
            self._due = time.monotonic() + QUIET_SECONDS / 2
            if drop_row(one) or tries >= TRIES:
                del self._written[one.lease.fence]
            else:
                self._written[one.lease.fence] = (one, tries + 1)
