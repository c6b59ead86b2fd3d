"""How long past runs of a version took, in all and step by step."""

from __future__ import annotations

import collections
import functools
import operator
import statistics
from collections.abc import Iterable
from typing import NamedTuple

from django.db.models import F, FilteredRelation, Q, Sum

from ledger import states
from ledger.queries.seen import see_tasks

COMPARED, LEAST = 20, 5
"""So many past runs are looked at; fewer say nothing of a step."""

MAX_UNITS = 200
"""Of a run with more units no step is added up: what is read stays small."""

RUNS_READ = 2_000
"""Of the tasks that ended last: a rare workflow is not worth a scan of all."""


class PastRuns(NamedTuple):
    """Working seconds of each run, the last one first, and the median of each step."""

    runs: list[float]
    steps: dict[str, float]


def read_runs(versions: Iterable[tuple[str, str]]) -> dict[tuple[str, str], list[float]]:
    """Working seconds of the last completed runs of each (workflow, version), in one query."""
    wanted = sorted(set(versions))
    if not wanted:
        return {}
    latest = see_tasks().filter(finished_at__isnull=False).order_by("-finished_at")
    either = functools.reduce(
        operator.or_, (Q(workflow=name, workflow_version=version) for name, version in wanted)
    )
    rows = see_tasks().filter(
        either, pk__in=latest.values("pk")[:RUNS_READ], status=states.COMPLETED,
        wall_left__isnull=False, copied_from__isnull=True,
    )  # fmt: skip
    columns = ("workflow", "workflow_version", F("limit_wall") - F("wall_left"))
    found: dict[tuple[str, str], list[float]] = {version: [] for version in wanted}
    for name, version, wall in rows.order_by("-finished_at").values_list(*columns):
        runs = found[name, version]
        if len(runs) < COMPARED:
            runs.append(max(0.0, wall))
    return found


def read_past_runs(workflow: str, version: str) -> PastRuns:
    """Of the last completed runs of a version, waiting and pauses not counted."""
    latest = see_tasks().filter(finished_at__isnull=False).order_by("-finished_at")
    alike = see_tasks().filter(
        pk__in=latest.values("pk")[:RUNS_READ], status=states.COMPLETED, workflow=workflow,
        workflow_version=version, wall_left__isnull=False, copied_from__isnull=True,
    )  # fmt: skip
    own = Q(outputs__superseded_in_round__isnull=True, used_units__lte=MAX_UNITS)
    rows = see_tasks().filter(pk__in=alike.order_by("-finished_at").values("pk")[:COMPARED])
    sums = (
        rows.annotate(
            unit=FilteredRelation("outputs", condition=own), wall=F("limit_wall") - F("wall_left")
        )
        .order_by("-finished_at", "pk")
        .values_list("pk", "wall", "unit__step_name")
        .annotate(worked=Sum(F("unit__finished_at") - F("unit__started_at")))
    )
    runs: dict[object, float] = {}
    steps: collections.defaultdict[str, list[float]] = collections.defaultdict(list)
    for key, wall, name, worked in sums:
        runs[key] = max(0.0, wall)
        if name is not None:
            steps[name].append(max(0.0, worked.total_seconds()))
    medians = {name: statistics.median(took) for name, took in steps.items() if len(took) >= LEAST}
    return PastRuns(list(runs.values()), medians)
