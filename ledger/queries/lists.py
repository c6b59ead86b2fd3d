"""The task list as a page that stays open: orders, rows that stand still, words to filter by."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from django.db.models import Max, Q, QuerySet, Subquery, Sum

from ledger import registry, states
from ledger.models import Task
from ledger.queries.filters import IsStalled, TaskFilter
from ledger.queries.fleet import Fleet, list_live_workers, load_fleet
from ledger.queries.pages import MAX_FRESH
from ledger.queries.paging import DEFAULT_LIMIT, find_row, read_key
from ledger.queries.seen import hide_text, see_tasks
from ledger.queries.tasks import LARGE, task_json

NEWEST, OLDEST, ENDED = "newest", "oldest", "ended"
SORTS = {NEWEST: ("created_at", True), OLDEST: ("created_at", False), ENDED: ("finished_at", True)}
"""Orders that an index serves: (column, whether the last comes first)."""

MAX_STANDING = 100
READ_FOR_WORDS = 5_000
"""The newest tasks whose lanes and tags are known to the filter: a list of all would be a scan."""

MAX_WORDS = 100

_MARKING = (
    "revision", "status", "lane", "lease_until", "workflow", "workflow_version", "progress_done",
    "progress_total", "progress_note", "concurrency_key", "concurrency_limit", "held_key",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Standing:
    """Rows of a page as they are now: `tasks` in order, `left` those that no longer match, `marks`
    whatever changes when they would look otherwise, `next_cursor` of the page that follows."""

    tasks: list[Task]
    left: frozenset[UUID]
    marks: list[Any]
    next_cursor: str | None = None
    fleet: Fleet | None = None

    def show(self) -> list[dict[str, Any]]:
        """The Task JSON of each, without input, progress and result."""
        if not self.tasks:
            return []
        fleet = self.fleet or load_fleet()
        return [task_json(row, fleet, brief=True) for row in self.tasks]


def sort_tasks(rows: QuerySet[Task], sort: str) -> QuerySet[Task]:
    """`rows` in one of SORTS; by their end only those that ended."""
    column, falling = SORTS[sort]
    if column == "finished_at":
        rows = rows.filter(finished_at__isnull=False)
    sign = "-" if falling else ""
    return rows.order_by(f"{sign}{column}", f"{sign}pk")


def open_page(
    wanted: TaskFilter, sort: str, now: dt.datetime, *, cursor: str = "", beats: bool = False
) -> Standing:
    """A page of the list as it would be found now. Raises InvalidInput for the cursor.

    `beats` for marks that change with every heartbeat.
    """
    rows = wanted.apply(see_tasks().annotate(stalled=IsStalled()).defer(*LARGE))
    column, falling = SORTS[sort]
    if cursor:
        rows = rows.filter(_lie_behind(column, falling, cursor))
    found = list(sort_tasks(rows, sort)[: DEFAULT_LIMIT + 1])
    if cursor and not found:
        find_row(Task, read_key(cursor))
    more = len(found) > DEFAULT_LIMIT
    shown = found[:DEFAULT_LIMIT]
    return _stand(shown, frozenset(), now, str(shown[-1].pk) if more else None, beats)


def keep_page(
    wanted: TaskFilter, ids: Sequence[UUID], now: dt.datetime, *, beats: bool = False
) -> Standing:
    """The rows with these ids, in this order, as they are now: none comes, none moves.

    What no longer matches stays, named in `left`; what was deleted, or is in no lane of the
    caller's, is gone. Of each only what `marks` says is read; see `read_page`.
    """
    rows = see_tasks().filter(pk__in=ids)
    found = rows.annotate(stalled=IsStalled()).only(*_MARKING).in_bulk()
    left = frozenset[UUID]()
    if wanted.pairs:
        left = frozenset(found) - frozenset(wanted.apply(rows).values_list("pk", flat=True))
    return _stand([found[one] for one in ids if one in found], left, now, None, beats)


def read_page(kept: Standing) -> Standing:
    """The rows of `keep_page`, whole."""
    ids = [row.pk for row in kept.tasks]
    found = see_tasks().annotate(stalled=IsStalled()).defer(*LARGE).in_bulk(ids)
    return dataclasses.replace(kept, tasks=[found[one] for one in ids if one in found])


def count_fresh(wanted: TaskFilter, sort: str, first: UUID) -> int:
    """How many stand above the row `first` by now, up to MAX_FRESH; below it nobody is pushed."""
    column, falling = SORTS[sort]
    if not falling:
        return 0
    when = Subquery(see_tasks().filter(pk=first).values(column)[:1])
    above = Q(**{f"{column}__gt": when}) | Q(**{column: when}, pk__gt=first)
    return wanted.apply(see_tasks().filter(above)).order_by()[:MAX_FRESH].count()


def list_words() -> dict[str, list[str]]:
    """What the caller may filter by: workflows, lanes, tags and workers that there are."""
    newest = see_tasks().order_by("-created_at", "-pk")
    seen = newest.values_list("workflow", "lane", "tags")[:READ_FOR_WORDS]
    workflows, lanes, tags = set[str](), set[str](), set[str]()
    for workflow, lane, some in seen:
        workflows.add(workflow)
        lanes.add(lane)
        tags.update(one for one in some if isinstance(one, str))
    workflows |= {one.name for one in registry.all_workflows()}
    workers = set(list_live_workers().values_list("owner", flat=True)[:MAX_WORDS])
    words = {"workflow": workflows, "lane": lanes, "tag": tags, "worker": workers}
    return {key: sorted(found)[:MAX_WORDS] for key, found in words.items()}


def _lie_behind(column: str, falling: bool, cursor: str) -> Q:
    last = read_key(cursor)
    when = Subquery(see_tasks().filter(pk=last).order_by().values(column))
    less = "lt" if falling else "gt"
    # The first condition is the one that an index on (column, id) can begin at.
    behind = Q(**{f"{column}__{less}": when}) | Q(**{f"pk__{less}": last})
    return Q(**{f"{column}__{less}e": when}) & behind


def _stand(
    rows: list[Task],
    left: frozenset[UUID],
    now: dt.datetime,
    next_cursor: str | None,
    beats: bool,
) -> Standing:
    queued = any(row.status == states.QUEUED for row in rows)
    fleet = load_fleet() if queued else None
    marks: list[Any] = [_mark_row(row, row.pk in left, now, fleet) for row in rows]
    if beats:
        running = see_tasks().filter(status=states.RUNNING)
        marks += running.aggregate(Sum("beat"), Max("lease_until")).values()
    return Standing(rows, left, marks, next_cursor, fleet)


def _mark_row(row: Task, left: bool, now: dt.datetime, fleet: Fleet | None) -> tuple[Any, ...]:
    """What every change of a row raises, what it reports between changes, and what time or the
    fleet alone makes of it."""
    obstacle = lost = None
    if fleet and row.status == states.QUEUED:
        obstacle = fleet.find_reason(row)
    if row.lease_until is not None:
        lost = row.lease_until < now
    said: Iterable[Any] = (row.progress_done, row.progress_total, hide_text(row.progress_note))
    return str(row.pk), row.revision, getattr(row, "stalled", False), lost, obstacle, left, *said
