"""The workers as people look at them: by cluster, by what they do, and those that were."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

from django.db import connection
from django.db.models import Q

from ledger import clock, conf, states
from ledger.models import Task, Worker
from ledger.models.worker import DEADS, DRAINS
from ledger.queries.filters import IsStalled
from ledger.queries.fleet import MISSED_BEATS
from ledger.queries.seen import see_tasks
from ledger.queries.tasks import COUNT_CAP

LIVE, DRAINING, LATE, GONE, STOPPED, DECLARED = (
    "live", "draining", "late", "gone", "stopped", "dead",
)  # fmt: skip
STATES = (LIVE, DRAINING, LATE, GONE, STOPPED, DECLARED)
BEATING = frozenset({LIVE, DRAINING, LATE})
FOLD_SECONDS = 600.0
"""One that is no more is shown for so long, then only to who asks."""


@dataclasses.dataclass(frozen=True, slots=True)
class CrewFilter:
    """Which workers: by state, by workflow known, by a part of host, pid or name; with `old` also
    those that are long gone."""

    state: str = ""
    workflow: str = ""
    q: str = ""
    old: bool = False

    @property
    def narrows(self) -> bool:
        """Whether some are left out that would be shown."""
        return bool(self.state or self.workflow or self.q)


@dataclasses.dataclass(slots=True)
class Crew:
    """Workers of one filter, the first `limit` of them; how many more are folded away."""

    rows: list[dict[str, Any]]
    folded: int
    cut: bool


def load_crew(wanted: CrewFilter, limit: int = 200) -> Crew:
    """Workers, beating ones first, each with the tasks that it holds. Three queries."""
    now = clock.read()
    beat = conf.load().heartbeat_seconds
    live = Q(stopped_at=None, seen_at__gt=now - dt.timedelta(seconds=MISSED_BEATS * beat))
    fresh = live | Q(seen_at__gt=now - dt.timedelta(seconds=FOLD_SECONDS))
    query = Worker.objects.filter(_match_text(wanted.q))
    shows_old = wanted.old or wanted.narrows
    rows = list(query.filter(Q() if shows_old else fresh).order_by("-seen_at", "owner")[:2_000])
    held = _list_held([row.owner for row in rows])
    told = [show_one(row, held.get(row.owner, []), now, beat) for row in rows]
    told = [
        row for row in told
        if wanted.state in {"", row["state"]}
        and (not wanted.workflow or any(name == wanted.workflow for name, _ in row["knows"]))
    ]  # fmt: skip
    told.sort(key=lambda row: STATES.index(row["state"]) if row["state"] not in BEATING else -1)
    folded = 0 if shows_old else min(COUNT_CAP, query.exclude(fresh).count())
    return Crew(told[:limit], folded, len(told) > limit or len(rows) == 2_000)


def find_one(owner: str) -> dict[str, Any] | None:
    """One worker as on the page, with what it holds."""
    row = None if "\0" in owner else Worker.objects.filter(pk=owner).first()
    if row is None:
        return None
    return show_one(row, _list_held([owner]).get(owner, []), clock.read(),
                    conf.load().heartbeat_seconds)  # fmt: skip


def list_cluster(cluster: str) -> list[dict[str, Any]]:
    """The workers of a cluster that have not ended."""
    rows = list(Worker.objects.filter(cluster=cluster, stopped_at=None).order_by("pid")[:500])
    held = _list_held([row.owner for row in rows])
    now, beat = clock.read(), conf.load().heartbeat_seconds
    return [show_one(row, held.get(row.owner, []), now, beat) for row in rows]


def count_lost(seconds: float = 86_400.0) -> dict[str, int]:
    """Leases that each worker lost in the last `seconds`, by its name; of the last COUNT_CAP
    events, which have no index on their kind (see `overview.count_trials`)."""
    worker = "data->>'worker'" if connection.vendor == "postgresql" else "data->>'$.worker'"
    ago = clock.fragment(connection.vendor, "%s")
    text = (
        f"SELECT {worker}, count(*) FROM (SELECT kind, at, data FROM longwatch_event "
        f"ORDER BY id DESC LIMIT {COUNT_CAP}) AS latest "
        f"WHERE kind = 'reclaimed' AND at > {ago} GROUP BY 1"
    )
    if connection.vendor == "sqlite":
        text = text.replace("%", "%%").replace("%%s", "%s")
    with connection.cursor() as cursor:
        cursor.execute(text, [-seconds])
        return dict(cursor.fetchall())


def show_one(row: Worker, tasks: list[Task], now: dt.datetime, beat: float) -> dict[str, Any]:
    """A worker as people look at it; `missed` is how many heartbeats in a row did not come,
    MISSED_BEATS of one that is gone."""
    age = (now - row.seen_at).total_seconds() / beat
    missed = max(0, int(age - 0.5)) if age < MISSED_BEATS else MISSED_BEATS
    return {
        "owner": row.owner, "name": row.owner.rsplit(":", 1)[0], "host": row.host, "pid": row.pid,
        "cluster": row.cluster, "state": find_state(row, missed), "missed": missed,
        "draining": row.draining, "told": row.told, "told_by": row.told_by,
        "told_at": row.told_at, "units": row.units, "tasks": tasks, "memory": row.memory,
        "skew": row.skew, "started_at": row.started_at, "seen_at": row.seen_at,
        "stopped_at": row.stopped_at,
        "knows": sorted((one["workflow"], one["version"]) for one in row.knows),
    }  # fmt: skip


def find_state(row: Worker, missed: int) -> str:
    """One of STATES."""
    if row.told in DEADS:
        return DECLARED
    if row.stopped_at is not None:
        return STOPPED
    if missed >= MISSED_BEATS:
        return GONE
    if missed:
        return LATE
    return DRAINING if row.told in DRAINS or row.draining else LIVE


def _match_text(text: str) -> Q:
    wanted = Q()
    for word in text.split()[:8]:
        wanted &= Q(owner__icontains=word) | Q(cluster__icontains=word)
    return wanted


def _list_held(owners: list[str]) -> dict[str, list[Task]]:
    held: dict[str, list[Task]] = {}
    running = see_tasks().filter(status=states.RUNNING, lease_owner__in=owners)
    columns = ("title", "workflow", "step_name", "turn", "lease_owner", "lease_until", "fence")
    for task in running.annotate(stalled=IsStalled()).only(*columns).order_by("id")[:500]:
        held.setdefault(task.lease_owner, []).append(task)
    return held
