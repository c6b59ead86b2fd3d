"""Claims from lanes with a cap or a rate: counted and claimed under the lane's own lock.

The lock is only ever tried. It comes in a statement before the count, since a statement sees
nothing that was committed after it began: counted in the same one, two workers that follow each
other closely would both take the last place. SQLite's write lock is all that it needs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.db import connection

from ledger import clock, states
from ledger.models import Lane

LOCK_SEED = 7077
"""Of the hash that makes a lock of a lane's name; on one number two lanes wait for each other."""

BUSY_SECONDS = 0.01
"""When to look again at a lane that another worker was just claiming from."""


@dataclasses.dataclass(frozen=True, slots=True)
class Gate:
    """What bounds the claims from a lane: running tasks, and microseconds between two units."""

    lane: str
    cap: int | None
    interval: int = 0
    burst: int = 1

    def wait(self, paced: int, now: int) -> int:
        """Microseconds until the next unit may start; 0 for now."""
        return max(0, self.bound(paced, now) - (self.burst - 1) * self.interval - now)

    def bound(self, paced: int, now: int) -> int:
        """`paced`, unless it is later than can come of claims: a clock or a rate was changed, which
        must not close the lane, so one unit may start now and the others follow at the rate."""
        latest = now + self.burst * self.interval
        return paced if paced <= latest else latest - self.interval


@dataclasses.dataclass(slots=True)
class Room:
    """A lane's state at one moment: tasks that run, and the pace of its units, in microseconds."""

    running: int = 0
    paced: int = 0
    now: int = 0

    def find_wait(self, gate: Gate) -> float | None:
        """Seconds until the gate lets a unit through; None while the cap is reached."""
        if gate.cap is not None and self.running >= gate.cap:
            return None
        return gate.wait(self.paced, self.now) / 1_000_000 if gate.interval else 0.0


def read_rooms(lanes: Iterable[str], own: UUID | None = None) -> dict[str, Room]:
    """The rooms of `lanes`, not counting the task `own`, which its worker is about to let go.

    The tasks that run are no more than there are workers, and have an index of their own.
    """
    rooms = {lane: Room() for lane in lanes}
    marks = ", ".join(["%s"] * len(rooms))
    now = clock.micros_fragment(connection.vendor).replace("%", "%%")
    text = f"""SELECT lane, count(*), 0, 0 FROM longwatch_task
      WHERE status = '{states.RUNNING}' AND lane IN ({marks}) AND id <> %s GROUP BY lane
      UNION ALL SELECT name, 0, paced_until, {now} FROM longwatch_lane WHERE name IN ({marks})"""
    skipped: Any = own or UUID(int=0)
    skipped = skipped if connection.vendor == "postgresql" else skipped.hex
    with connection.cursor() as cursor:
        cursor.execute(text, [*rooms, skipped, *rooms])
        for lane, running, paced, at in cursor.fetchall():
            rooms[lane].running += running
            rooms[lane].paced += paced
            rooms[lane].now += at
    return rooms


def try_lock(lane: str) -> bool:
    """The lane's lock until the transaction ends; False if another claims from it just now."""
    return connection.vendor != "postgresql" or _call("pg_try_advisory_xact_lock", lane)


def try_named_lock(name: str) -> bool:
    """The same of anything else that is claimed from; its name is no lane's."""
    return connection.vendor != "postgresql" or _call(
        "pg_try_advisory_xact_lock", name, LOCK_SEED + 1
    )


def await_lock(lane: str) -> None:
    """The same for who may wait: a person who changes the lane's row."""
    if connection.vendor == "postgresql":
        _call("pg_advisory_xact_lock", lane)


def _call(function: str, name: str, seed: int = LOCK_SEED) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {function}(hashtextextended(%s, {seed}))", [name])
        return bool(cursor.fetchone()[0])


def pace_lane(gate: Gate, room: Room) -> None:
    """One unit was taken; under the lane's lock."""
    paced = max(gate.bound(room.paced, room.now), room.now) + gate.interval
    Lane.objects.filter(pk=gate.lane).update(paced_until=paced)
