"""Claims from workflows with a concurrency key: found, counted and claimed under the key's lock.

A task holds its key from its first claim for as long as it is queued or runs, so that no other
begins between two of its units. The lock is only ever tried, in a statement before the count, as
that of a lane (`ledger.sql.lanes`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import Count, Min, Q

from ledger import clock, conf, states
from ledger.models import Task
from ledger.sql import atomic
from ledger.sql.columns import by_partial_index
from ledger.sql.lanes import try_named_lock

type Group = tuple[str, str, str]

HEADS = 64
"""How many of a group are looked at by rank before its keys are."""

FEW, MANY = 8, 100
"""So many of a group are looked at where many groups are at once, and so many groups at most."""

KEYS = 16
"""How many free keys are found by a walk over all of a group's."""

UNDER_WAY = Q(held_key__isnull=False, finished_at__isnull=True)
"""True for a task that holds its key."""

_GROUP = "q.status = 'queued' AND q.lane = %s AND q.workflow = %s AND q.workflow_version = %s"
_COLUMNS = "q.concurrency_key, q.concurrency_limit, q.held_key, q.priority FROM longwatch_task q"
_HEAD = f"SELECT q.id, q.rank, {_COLUMNS}"
_FIRST = "ORDER BY q.rank, q.id LIMIT 1"
_BEGUN = f"{_HEAD} WHERE {_GROUP} AND q.held_key IS NOT NULL {_FIRST}"
_HEADS = f"{_HEAD} WHERE {_GROUP} ORDER BY q.rank, q.id LIMIT {HEADS}"
_HOLDER = f"""SELECT q.lane, q.workflow_version, q.id,
    CASE WHEN q.status = 'queued' THEN q.rank
      ELSE {{micros}} - q.priority * CAST(60000000 AS bigint) END,
    {_COLUMNS}
  WHERE q.workflow = %s AND q.held_key = %s
    AND q.finished_at IS NULL AND (q.status = 'queued' OR q.id = %s) AND q.priority < %s
  ORDER BY q.rank, q.id LIMIT 1"""
_SOME = "q.lane, q.workflow, q.workflow_version, q.concurrency_key, q.concurrency_limit, q.held_key"
_FEW = f"""SELECT * FROM (SELECT {_SOME}, q.priority FROM longwatch_task q
  WHERE {_GROUP} ORDER BY q.rank, q.id LIMIT {FEW}) AS few"""
_FEW_EACH = f"""SELECT few.* FROM unnest(%s::text[], %s::text[], %s::text[])
    AS g(lane, workflow, version)
  CROSS JOIN LATERAL (SELECT {_SOME}, q.priority FROM longwatch_task q
    WHERE q.status = 'queued' AND q.lane = g.lane AND q.workflow = g.workflow
      AND q.workflow_version = g.version
    ORDER BY q.rank, q.id LIMIT {FEW}) few"""
_KEYED = f"{_GROUP} AND q.concurrency_key IS NOT NULL AND q.held_key IS NULL"
_OF_KEY = f"SELECT * FROM ({_HEAD} WHERE {_KEYED} AND q.concurrency_key = %s {_FIRST}) AS head"

# From key to key, each of which costs a look into the index however many tasks have it.
_WALK = f"""
WITH RECURSIVE k(key) AS (
  SELECT * FROM (SELECT q.concurrency_key FROM longwatch_task q
    WHERE {_KEYED} AND q.concurrency_key {{after}} %s ORDER BY q.concurrency_key LIMIT 1) AS first
  UNION ALL
  SELECT (SELECT q.concurrency_key FROM longwatch_task q
    WHERE {_KEYED} AND q.concurrency_key > k.key ORDER BY q.concurrency_key LIMIT 1)
  FROM k WHERE k.key IS NOT NULL)
SELECT k.key FROM k WHERE k.key IS NOT NULL AND
  (SELECT count(*) FROM longwatch_task o WHERE o.workflow = %s AND o.held_key = k.key
    AND o.finished_at IS NULL AND o.id <> %s)
  < (SELECT q.concurrency_limit FROM longwatch_task q
    WHERE {_KEYED} AND q.concurrency_key = k.key {_FIRST})
LIMIT {KEYS}"""


@dataclasses.dataclass(frozen=True, slots=True)
class Head:
    """A queued task that may be claimed as far as its key goes."""

    group: Group
    task_id: UUID
    rank: int
    key: str | None
    limit: int | None
    holds: str | None
    priority: int
    heir: bool = False
    """Its rank is raised, as somebody more urgent waits for its key."""

    @property
    def bound(self) -> bool:
        """True where a claim takes one of the key's places."""
        return self.key is not None and self.holds is None


def find_head(
    group: Group, after: str, own: UUID | None, *, ends: bool = False
) -> tuple[Head | None, str]:
    """The task of the group that ranks first among those whose key has room, and where the next
    walk over its keys begins, which was `after` here.

    `own` is the task whose settle claims, and which is about to end or not. Where the 64 that rank
    first all wait for their keys, the keys take turns: 10,000 tasks of one hide none of another.
    A holder (that may be `own`) has the priority of the most urgent that waits for its key, lest a
    humble one keep an urgent one waiting for all that ranks between them.
    """
    leaving = own if ends else None
    begun = _read(group, _BEGUN, group)
    fresh = [head for head in _read(group, _HEADS, group) if head.holds is None]
    full = find_full(group[1], fresh, leaving)
    free = [head for head in fresh if head.key not in full]
    if not free and len(fresh) + len(begun) >= HEADS:
        free, after = _walk(group, after, leaving)
    best = min(begun + free, key=lambda head: (head.rank, head.task_id), default=None)
    waiting = [head for head in fresh if head.key in full]
    if waiting:
        best = _find_heir(max(waiting, key=lambda head: head.priority), own, best) or best
    return best, after


def _find_heir(urgent: Head, own: UUID | None, best: Head | None) -> Head | None:
    """Who holds the key that it waits for, if that ranks before `best` with its priority. Of
    another lane or version it is no choice of this group's: it comes before `urgent` there."""
    text = _HOLDER.format(micros=clock.micros_fragment(connection.vendor).replace("%", "%%"))
    with connection.cursor() as cursor:
        params = [urgent.group[1], urgent.key, _store(own or UUID(int=0)), urgent.priority]
        cursor.execute(text, params)
        row = cursor.fetchone()
    if row is None:
        return None
    head = _make_head((row[0], urgent.group[1], row[1]), row[2:])
    if head.group == urgent.group or head.task_id == own:
        raised = head.rank - (urgent.priority - head.priority) * conf.RANK_PER_PRIORITY
        heir = dataclasses.replace(head, rank=raised, heir=True)
        return heir if best is None or raised < best.rank else None
    if head.rank > urgent.rank:
        with atomic():
            _raise_heir(dataclasses.replace(head, rank=urgent.rank - 1))
    return None


def _walk(group: Group, after: str, own: UUID | None) -> tuple[list[Head], str]:
    skipped = _store(own or UUID(int=0))
    for how, start in ((">", after), (">=", "")):
        with connection.cursor() as cursor:
            # The places of the parameters: the start, the step, the holders, the head.
            params = [*group, start, *group, group[1], skipped, *group]
            cursor.execute(_fit(_WALK.format(after=how)), params)
            keys = [key for (key,) in cursor.fetchall()]
        if keys:
            text = " UNION ALL ".join([_OF_KEY] * len(keys))
            return _read(group, text, [one for key in keys for one in (*group, key)]), max(keys)
    return [], ""


def find_blocked(groups: Sequence[Group], own: UUID | None) -> set[Group]:
    """Those of the first MANY groups of which each task waits for its key, and none is more urgent
    than who holds it; as far as FEW tasks of each say so. Three statements, however many wait."""
    found: dict[Group, list[tuple[Any, ...]]] = {group: [] for group in groups[:MANY]}
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(_fit(_FEW_EACH), [list(column) for column in zip(*found, strict=True)])
        else:
            text = " UNION ALL ".join([_FEW] * len(found))
            cursor.execute(text, [value for group in found for value in group])
        for lane, workflow, version, *row in cursor.fetchall():
            found[lane, workflow, version].append(tuple(row))
    keys: dict[str, set[str]] = {}
    for (_, workflow, _), rows in found.items():
        keys.setdefault(workflow, set()).update(row[0] for row in rows if row[0] is not None)
    holding = {workflow: read_holding(workflow, some, own) for workflow, some in keys.items()}

    def waits(workflow: str, row: tuple[Any, ...]) -> bool:
        key, limit, held, urgency = row
        count, least = holding[workflow].get(key, (0, 0))
        return key is not None and held is None and count >= (limit or 1) and urgency <= least

    return {
        group for group, rows in found.items()
        if len(rows) < FEW and all(waits(group[1], row) for row in rows)
    }  # fmt: skip


def find_full(workflow: str, heads: Iterable[Head], own: UUID | None) -> set[str | None]:
    """Those of the heads' keys that have no room."""
    limits = {head.key: head.limit or 1 for head in heads if head.key is not None}
    if not limits:
        return set()
    begun = count_begun(workflow, limits, own)
    return {key for key, limit in limits.items() if begun.get(key, 0) >= limit}


def count_begun(workflow: str, keys: Iterable[str], own: UUID | None = None) -> dict[str, int]:
    """Key -> how many tasks hold it, but for `own`."""
    return {key: number for key, (number, _) in read_holding(workflow, keys, own).items()}


def read_holding(
    workflow: str, keys: Iterable[str], own: UUID | None = None
) -> dict[str, tuple[int, int]]:
    """Key -> how many tasks hold it, but for `own`, and the least of their priorities."""
    rows = Task.objects.filter(UNDER_WAY, workflow=workflow, held_key__in=list(keys))
    rows = rows.exclude(pk=own) if own else rows
    counted = rows.order_by().values_list("held_key").annotate(Count("pk"), Min("priority"))
    return {key or "": (number, least) for key, number, least in counted}


def list_kept(closed: Mapping[str, UUID | None]) -> list[UUID]:
    """What is queued in these lanes and holds a key, but for one task each that may run all the
    same; the first 1,000."""
    rows = Task.objects.filter(UNDER_WAY, status=states.QUEUED, lane__in=list(closed))
    through = [task for task in closed.values() if task is not None]
    return list(rows.exclude(pk__in=through).order_by("pk").values_list("pk", flat=True)[:1_000])


def free_keys(closed: Mapping[str, UUID | None]) -> None:
    """Take the keys from those: nothing starts there, and other lanes would wait for as long."""
    rows = Task.objects.filter(UNDER_WAY, status=states.QUEUED, pk__in=list_kept(closed))
    rows.update(held_key=None)


def read_head(task_id: UUID) -> Head | None:
    """One task, if it is queued."""
    row = (
        Task.objects.filter(pk=task_id, status=states.QUEUED)
        .values_list("lane", "workflow", "workflow_version", "rank", "concurrency_key",
                     "concurrency_limit", "held_key", "priority")
        .first()
    )  # fmt: skip
    return None if row is None else Head(row[:3], task_id, *row[3:])


def read_best_rank(groups: Sequence[Group]) -> int | None:
    """The rank of what is first in these groups, whatever its key."""
    one = (
        f"SELECT * FROM (SELECT q.rank FROM longwatch_task q WHERE {_GROUP} "
        "ORDER BY q.rank, q.id LIMIT 1) AS head"
    )
    ranks: list[int] = []
    with connection.cursor() as cursor:
        for at in range(0, len(groups), 100):
            some = groups[at : at + 100]
            text = _fit(" UNION ALL ".join([one] * len(some)))
            cursor.execute(text, [v for g in some for v in g])
            ranks += [row[0] for row in cursor.fetchall()]
    return min(ranks, default=None)


def has_room(head: Head, own: UUID | None) -> bool:
    """Under the key's lock until the transaction ends: whether the task may take a place, or still
    has its own. False too where another claims with the key just now."""
    if head.heir:
        return _raise_heir(head)
    if head.holds is not None:
        return _lock_holder(head)
    if not head.bound:
        return True
    workflow, key = head.group[1], head.key or ""
    if not try_named_lock(f"{workflow}\n{key}"):
        return False
    return count_begun(workflow, [key], own).get(key, 0) < (head.limit or 1)


def _raise_heir(head: Head) -> bool:
    """Give it the rank that it takes the place of, unless somebody else has its row."""
    return _lock_holder(head) and (
        Task.objects.filter(pk=head.task_id).update(rank=head.rank) == 1
    )  # fmt: skip


def _lock_holder(head: Head) -> bool:
    """False if somebody else has its row, or it has lost its place meanwhile (`free_keys`)."""
    rows = Task.objects.filter(pk=head.task_id, status=states.QUEUED, held_key=head.holds)
    if connection.features.has_select_for_update_skip_locked:
        rows = rows.select_for_update(skip_locked=True)
    return rows.values_list("pk").first() is not None


def take_place(head: Head) -> None:
    """The task that was just claimed holds its key from here on."""
    if head.bound:
        Task.objects.filter(pk=head.task_id).update(held_key=head.key)


def _read(group: Group, text: str, params: Sequence[Any]) -> list[Head]:
    with connection.cursor() as cursor:
        cursor.execute(_fit(text), list(params))
        return [_make_head(group, row) for row in cursor.fetchall()]


def _make_head(group: Group, row: Sequence[Any]) -> Head:
    task_id, *rest = row
    return Head(group, task_id if isinstance(task_id, UUID) else UUID(task_id), *rest)


def _fit(text: str) -> str:
    return by_partial_index(text) if connection.vendor == "postgresql" else text


def _store(task_id: UUID) -> Any:
    return task_id if connection.vendor == "postgresql" else task_id.hex
