"""Which tasks an operation is for: ids, or whatever a list's filter matches at one moment."""

from __future__ import annotations

import base64
import dataclasses
import functools
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from django.db.models import F, QuerySet, Sum

from ledger.bulk.actions import BulkAction
from ledger.errors import InvalidInput
from ledger.models import Task
from ledger.queries import DEFAULT_LIMIT, Fleet, Page, TaskFilter, filters, task_json
from ledger.queries.filters import IsStalled
from ledger.queries.paging import page_newest
from ledger.queries.seen import see_tasks
from ledger.queries.tasks import LARGE

MAX_ITEMS = 10_000
"""Tasks of one operation."""


NARROW = "; narrow the filter (by lane, workflow or created) and do it in parts"


@dataclasses.dataclass(frozen=True)
class Selection:
    """Either `ids`, or the `pairs` of a filter as of TaskFilter (no pair at all: every task)."""

    ids: tuple[UUID, ...] | None = None
    pairs: tuple[tuple[str, str], ...] = ()

    @functools.cached_property
    def _filter(self) -> TaskFilter:
        """Text is searched for once, however often the tasks are asked for."""
        return TaskFilter(self.pairs).bound_search()

    def select(self) -> QuerySet[Task]:
        """The tasks, of those that the caller sees. Raises InvalidInput for a filter."""
        if self.ids is not None:
            return see_tasks().filter(pk__in=self.ids)
        found = self._filter.found
        if found is not None and found.count >= filters.MOST_FOUND:
            raise InvalidInput(
                "tasks",
                f"{filters.MOST_FOUND:,} or more have this text in "
                "whatever status, and no more are looked at" + NARROW,
            )
        return self._filter.apply(see_tasks())

    def describe(self) -> dict[str, Any]:
        """As an operation keeps it."""
        if self.ids is not None:
            return {"ids": len(self.ids)}
        return {"filter": [list(pair) for pair in self.pairs]}


class Seen:
    """Which tasks a person was shown, four bytes of each: small enough for a form to carry, and a
    task that was not shown passes for one of them once in 400,000 times, of the largest.
    """

    def __init__(self, keys: Iterable[UUID]) -> None:
        self._marks = frozenset(zlib.crc32(key.bytes) for key in keys)

    def __len__(self) -> int:
        return len(self._marks)

    def count_others(self, keys: Iterable[UUID]) -> int:
        """How many of the tasks were not shown."""
        return sum(zlib.crc32(key.bytes) not in self._marks for key in keys)

    def pack(self) -> str:
        """As a form carries it."""
        packed = struct.pack(f">{len(self._marks)}I", *sorted(self._marks))
        return base64.b64encode(packed).decode()

    @classmethod
    def unpack(cls, text: str) -> Seen:
        """The same from a form. Raises InvalidInput."""
        try:
            packed = base64.b64decode(text, validate=True)
            marks = struct.unpack(f">{len(packed) // 4}I", packed)
        except (ValueError, struct.error):
            raise InvalidInput("seen", "is not what the page sent") from None
        found = cls(())
        found._marks = frozenset(marks)
        return found


@dataclasses.dataclass(frozen=True, slots=True)
class Preview:
    """What an action would be done to now: numbers by (status, why it is left out; "" if not),
    and which tasks it would be done to."""

    counts: dict[tuple[str, str], int]
    seen: Seen

    @property
    def total(self) -> int:
        """All that were chosen."""
        return sum(self.counts.values())

    @property
    def applies(self) -> int:
        """Those that are not left out."""
        return sum(number for (_, why), number in self.counts.items() if not why)

    def count_statuses(self) -> dict[str, int]:
        """Status -> number of those that are not left out."""
        return {status: number for (status, why), number in self.counts.items() if not why}

    def count_reasons(self) -> dict[str, int]:
        """Why -> number of those that are left out."""
        found: dict[str, int] = {}
        for (_, why), number in self.counts.items():
            if why:
                found[why] = found.get(why, 0) + number
        return found


def read_ids(given: Sequence[Any]) -> tuple[UUID, ...]:
    """Ids, each once, in order. Raises InvalidInput."""
    if len(given) > MAX_ITEMS:
        raise InvalidInput("tasks", say_bound(len(given)))
    try:
        return tuple(dict.fromkeys(UUID(str(one)) for one in given))
    except ValueError:
        raise InvalidInput("tasks", "takes ids of tasks") from None


def say_bound(number: int | str) -> str:
    """The bound, and what to do about it."""
    return f"{number} tasks are chosen, and one operation takes {MAX_ITEMS:,}{NARROW}"


def preview(action: BulkAction, selection: Selection) -> Preview:
    """What it would be done to. Raises InvalidInput for a filter, and beyond MAX_ITEMS."""
    rows = _select_rows(action, selection).values_list("pk", "status", "why")
    counts: Counter[tuple[str, str]] = Counter()
    keys = []
    for key, status, why in rows:
        counts[status, why] += 1
        if not why:
            keys.append(key)
    if counts.total() > MAX_ITEMS:
        raise InvalidInput("tasks", say_bound(f"More than {MAX_ITEMS:,}"))
    return Preview(dict(counts), Seen(keys))


def _select_rows(action: BulkAction, selection: Selection) -> Any:
    rows = selection.select().order_by("created_at", "pk").annotate(why=action.explain())
    return rows[: MAX_ITEMS + 1]


def compile_rows(action: BulkAction, selection: Selection) -> tuple[str, Sequence[Any]]:
    """The statement that selects (id, revision, status, why), one row more than there may be."""
    some = _select_rows(action, selection).values_list("pk", "revision", "status", "why")
    compiled: tuple[str, Sequence[Any]] = some.query.sql_with_params()
    return compiled


def select_for(action: BulkAction, selection: Selection) -> QuerySet[Task]:
    """Those of the chosen tasks that are not left out."""
    return selection.select().annotate(why=action.explain()).filter(why="")


def list_chosen(
    action: BulkAction, selection: Selection, fleet: Fleet, *, cursor: str = ""
) -> Page[dict[str, Any]]:
    """The same as brief Task JSON, newest first. Raises InvalidInput for the cursor."""
    rows = select_for(action, selection).annotate(stalled=IsStalled()).defer(*LARGE)
    page = page_newest(rows, "created_at", DEFAULT_LIMIT, cursor)
    return page.convert(lambda row: task_json(row, fleet, brief=True))


def sum_used(action: BulkAction, selection: Selection) -> tuple[int, int]:
    """(tokens, money in nano-units) that they have used so far."""
    tokens = Sum(F("used_tokens_in") + F("used_tokens_out"))
    found = select_for(action, selection).aggregate(tokens=tokens, cost=Sum("used_cost"))
    return int(found["tokens"] or 0), int(found["cost"] or 0)


def list_versions(action: BulkAction, selection: Selection) -> list[tuple[str, str]]:
    """(workflow, version) of them, at most 20."""
    rows = select_for(action, selection).order_by("workflow", "workflow_version")
    return list(rows.values_list("workflow", "workflow_version").distinct()[:20])


def list_keys(selection: Selection) -> list[UUID]:
    """The ids of the chosen tasks, oldest first. Raises InvalidInput beyond MAX_ITEMS."""
    rows = selection.select().order_by("created_at", "pk").values_list("pk", flat=True)
    keys = list(rows[: MAX_ITEMS + 1])
    if len(keys) > MAX_ITEMS:
        raise InvalidInput("tasks", say_bound(f"More than {MAX_ITEMS:,}"))
    return keys
