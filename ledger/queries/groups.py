"""Tasks that gave up, counted together where they failed alike."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

from django.db.models import Count, F, Max, Min, Q, QuerySet, Sum, Window
from django.db.models.functions import RowNumber

from ledger import clock
from ledger.models import Task
from ledger.queries.alike import FailureKey
from ledger.queries.seen import hide_error, see_tasks
from ledger.queries.tasks import COUNT_CAP, LARGE

MAX_GROUPS = 100
WEEK = 7 * 86_400.0
PLACE = ("status_reason", "workflow", "workflow_version", "step_name", "failure")
"""What tasks of one group have in common; each has a filter of the same meaning."""

FILTERED_BY = ("reason", "workflow", "version", "step", "failure")


@dataclasses.dataclass(slots=True)
class FailureGroup:
    """One of them. `place` is by FILTERED_BY, `nano` the money that all used, `week` and `before`
    how many ended in the last seven days and in the seven before; `rows` are the newest."""

    place: dict[str, str]
    count: int
    first: dt.datetime
    last: dt.datetime
    nano: int
    week: int
    before: int
    rows: list[Task] = dataclasses.field(default_factory=list)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The filter that finds exactly these."""
        return [("status", "dead"), *((name, value) for name, value in self.place.items())]


def group_dead(rows: QuerySet[Task], samples: int) -> list[FailureGroup]:
    """`rows`, of which the newest COUNT_CAP are looked at: most tasks first, of equals the latest;
    each group with so many of its newest."""
    bounded = see_tasks().filter(
        pk__in=rows.order_by("-created_at", "-pk").values("pk")[:COUNT_CAP]
    )
    keyed = bounded.annotate(failure=FailureKey()).order_by()
    since, before = clock.now(-WEEK), clock.now(-2 * WEEK)
    sums = keyed.values(*PLACE).annotate(
        number=Count("pk"), first=Min("finished_at"), last=Max("finished_at"),
        nano=Sum("used_cost"), week=Count("pk", filter=Q(finished_at__gte=since)),
        before=Count("pk", filter=Q(finished_at__gte=before, finished_at__lt=since)),
    )  # fmt: skip
    found = {
        tuple(row[name] for name in PLACE): FailureGroup(
            dict(zip(FILTERED_BY, (row[name] for name in PLACE), strict=True)),
            row["number"], row["first"], row["last"], row["nano"], row["week"], row["before"],
        )
        for row in sums.order_by("-number", "-last")[:MAX_GROUPS]
    }  # fmt: skip
    for task in _list_newest(keyed, samples) if found else ():
        key = (*(getattr(task, name) for name in PLACE),)
        if key in found:
            task.error = hide_error(task.error)
            found[key].rows.append(task)
    return list(found.values())


def _list_newest(keyed: QuerySet[Task], samples: int) -> QuerySet[Task]:
    place = [F(name) for name in PLACE]
    nth = Window(
        RowNumber(), partition_by=place, order_by=[F("finished_at").desc(), F("pk").desc()]
    )
    newest = keyed.annotate(nth=nth).filter(nth__lte=samples).values("pk")
    rows = see_tasks().filter(pk__in=newest).annotate(failure=FailureKey()).defer(*LARGE)
    return rows.order_by("-finished_at", "-pk")


def mark_rows(rows: QuerySet[Task]) -> tuple[Any, ...]:
    """What changes when one of them does, without reading them."""
    some = see_tasks().filter(pk__in=rows.order_by().values("pk")[:COUNT_CAP])
    found = some.aggregate(number=Count("pk"), sum=Sum("revision"), last=Max("finished_at"))
    return tuple(found.values())
