"""Why a queued task waits for its concurrency key: what is said of it, and who holds it."""

from __future__ import annotations

import dataclasses
from uuid import UUID

from ledger.calls import sees_lane, sees_payload
from ledger.models import Task
from ledger.sql.keys import UNDER_WAY

MOST_HOLDERS = 10_000

type Key = tuple[str, str]
"""(workflow, concurrency key)."""


@dataclasses.dataclass(slots=True)
class Holders:
    """The tasks that hold each key, those that run first, each with its lane."""

    by_key: dict[Key, list[tuple[UUID, str]]]

    def list_seen(self, task: Task) -> list[str]:
        """The tasks that keep a queued one waiting, as far as the caller sees them; at most ten."""
        if not self.find_reason(task):
            return []
        held = self.by_key[task.workflow, task.concurrency_key or ""]
        return [str(key) for key, lane in held if sees_lane(lane)][:10]

    def find_reason(self, task: Task) -> str:
        """Why a queued task does not start for its key's sake; empty when it may."""
        if task.concurrency_key is None or task.held_key is not None:
            return ""
        held = self.by_key.get((task.workflow, task.concurrency_key), [])
        if len(held) < (task.concurrency_limit or 1):
            return ""
        what = f"waits for its concurrency key {task.concurrency_key!r}"
        if not sees_payload():
            what = "waits for its concurrency key"
        elif task.concurrency_key == "":
            what = "waits for other tasks of its workflow"
        seen = [key for key, lane in held if sees_lane(lane)]
        if not seen:
            return f"{what}, held in another lane"
        more = f" and {len(held) - 1} more" if len(held) > 1 else ""
        return f"{what}, held by task {seen[0]}{more}"


def read_holders() -> Holders:
    """As of now: one statement, over an index that has these tasks alone."""
    rows = Task.objects.filter(UNDER_WAY).order_by("-status", "pk")
    by_key: dict[Key, list[tuple[UUID, str]]] = {}
    columns = ("workflow", "held_key", "pk", "lane")
    for workflow, key, task_id, lane in rows.values_list(*columns)[:MOST_HOLDERS]:
        by_key.setdefault((workflow, key or ""), []).append((task_id, lane))
    return Holders(by_key)
