"""Claims from workflows with a concurrency key: found, counted and claimed under the key's lock.

A task holds its key from its first claim for as long as it is queued or runs, so that no other
begins between two of its units. The lock is only ever tried, in a statement before the count, as
that of a lane (`ledger.sql.lanes`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import Count, Q

from ledger import states
from ledger.models import Task
from ledger.sql.lanes import try_named_lock

type Group = tuple[str, str, str]

HEADS = 64
"""How many of a group are looked at by rank before its keys are."""

KEYS = 16
"""How many free keys are found by a walk over all of a group's."""

UNDER_WAY = Q(holds_key=True, status__in=(states.QUEUED, states.RUNNING))

_GROUP = "q.status = 'queued' AND q.lane = %s AND q.workflow = %s AND q.workflow_version = %s"
_HEAD = "SELECT q.id, q.rank, q.concurrency_key, q.concurrency_limit, {held} FROM longwatch_task q"
_BEGUN = f"""{_HEAD.format(held="TRUE")} WHERE {_GROUP} AND q.holds_key
  ORDER BY q.rank, q.id LIMIT 1"""
_FRESH = (
    f"""{_HEAD.format(held="q.holds_key")} WHERE {_GROUP} ORDER BY q.rank, q.id LIMIT {HEADS}"""
)
_KEYED = f"{_GROUP} AND q.concurrency_key IS NOT NULL AND NOT q.holds_key"

# From key to key, each of which costs a look into the index however many tasks have it.
_WALK = f"""
WITH RECURSIVE k(key) AS (
  SELECT * FROM (SELECT q.concurrency_key FROM longwatch_task q
    WHERE {_KEYED} AND q.concurrency_key {{after}} %s ORDER BY q.concurrency_key LIMIT 1) AS first
  UNION ALL
  SELECT (SELECT q.concurrency_key FROM longwatch_task q
    WHERE {_KEYED} AND q.concurrency_key > k.key ORDER BY q.concurrency_key LIMIT 1)
  FROM k WHERE k.key IS NOT NULL)
{_HEAD.format(held="FALSE").replace("_task q", "_task h").replace("q.", "h.")}
  JOIN k ON h.id = (SELECT q.id FROM longwatch_task q
    WHERE {_KEYED} AND q.concurrency_key = k.key ORDER BY q.rank, q.id LIMIT 1)
WHERE (SELECT count(*) FROM longwatch_task o WHERE o.workflow = %s AND o.concurrency_key = k.key
    AND o.holds_key AND o.status IN ('queued', 'running') AND o.id <> %s) < h.concurrency_limit
LIMIT {KEYS}"""


@dataclasses.dataclass(frozen=True, slots=True)
class Head:
    """A queued task that may be claimed as far as its key goes."""

    group: Group
    task_id: UUID
    rank: int
    key: str | None
    limit: int | None
    held: bool

    @property
    def bound(self) -> bool:
        """True where a claim takes one of the key's places."""
        return self.key is not None and not self.held


def find_head(group: Group, after: str, own: UUID | None) -> tuple[Head | None, str]:
    """The task of the group that ranks first among those whose key has room, and where the next
    walk over its keys begins, which was `after` here.

    `own` is a task that is about to end. Where the 64 that rank first all wait for their keys, the
    keys take turns: 10,000 tasks of one hide none of another.
    """
    begun = _read(group, _BEGUN, group)
    fresh = [head for head in _read(group, _FRESH, group) if not head.held]
    full = find_full(group[1], fresh, own)
    free = [head for head in fresh if head.key not in full]
    if not free and len(fresh) + len(begun) >= HEADS:
        free, after = _walk(group, after, own)
    return min(begun + free, key=lambda head: (head.rank, head.task_id), default=None), after


def _walk(group: Group, after: str, own: UUID | None) -> tuple[list[Head], str]:
    skipped = _store(own or UUID(int=0))
    for how, start in ((">", after), (">=", "")):
        params = [*group, start, *group, *group, group[1], skipped]
        if found := _read(group, _WALK.format(after=how), params):
            return found, max(head.key or "" for head in found)
    return [], ""


def find_full(workflow: str, heads: Iterable[Head], own: UUID | None) -> set[str | None]:
    """Those of the heads' keys that have no room."""
    limits = {head.key: head.limit or 1 for head in heads if head.key is not None}
    if not limits:
        return set()
    begun = count_begun(workflow, limits, own)
    return {key for key, limit in limits.items() if begun.get(key, 0) >= limit}


def count_begun(workflow: str, keys: Iterable[str], own: UUID | None = None) -> dict[str, int]:
    """Key -> how many tasks hold it, but for `own`."""
    rows = Task.objects.filter(UNDER_WAY, workflow=workflow, concurrency_key__in=list(keys))
    rows = rows.exclude(pk=own) if own else rows
    counted = rows.order_by().values_list("concurrency_key").annotate(Count("pk"))
    return {key or "": number for key, number in counted}


def read_head(task_id: UUID) -> Head | None:
    """One task, if it is queued."""
    row = (
        Task.objects.filter(pk=task_id, status=states.QUEUED)
        .values_list("lane", "workflow", "workflow_version", "rank", "concurrency_key",
                     "concurrency_limit", "holds_key")
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
            cursor.execute(" UNION ALL ".join([one] * len(some)), [v for g in some for v in g])
            ranks += [row[0] for row in cursor.fetchall()]
    return min(ranks, default=None)


def has_room(head: Head, own: UUID | None) -> bool:
    """Under the key's lock until the transaction ends: whether the task may take a place. False
    too where another claims with the key just now."""
    if not head.bound:
        return True
    workflow, key = head.group[1], head.key or ""
    if not try_named_lock(f"{workflow}\n{key}"):
        return False
    return count_begun(workflow, [key], own).get(key, 0) < (head.limit or 1)


def take_place(head: Head) -> None:
    """The task that was just claimed holds its key from here on."""
    if head.bound:
        Task.objects.filter(pk=head.task_id).update(holds_key=True)


def _read(group: Group, text: str, params: Sequence[Any]) -> list[Head]:
    with connection.cursor() as cursor:
        cursor.execute(text, list(params))
        return [
            Head(group, key if isinstance(key, UUID) else UUID(key), rank, value, limit, bool(held))
            for key, rank, value, limit, held in cursor.fetchall()
        ]


def _store(task_id: UUID) -> Any:
    return task_id if connection.vendor == "postgresql" else task_id.hex
