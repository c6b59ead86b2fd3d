"""How a workflow version does: figures of its last runs, whatever number of tasks there is."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any
from uuid import UUID

from django.db.models import Count

from ledger.models import Approval, Event, StepOutput
from ledger.queries.estimates import RUNS_READ
from ledger.queries.seen import see_tasks

SAMPLE = 200
"""Runs that figures are taken of: the last of the version among the RUNS_READ that ended last."""
UNITS_READ = 20_000


@dataclasses.dataclass(slots=True)
class StepRuns:
    """One step in the sample. Seconds of each unit; money in nano-units, with what was redone."""

    units: int = 0
    seconds: list[float] = dataclasses.field(default_factory=list)
    nano: int = 0
    failed: int = 0
    lost: int = 0
    repairs: int = 0
    """Restarts that were asked for at this step, by a check or a person."""


@dataclasses.dataclass(slots=True)
class Runs:
    """The sample: how many runs, of each step what it did, and the questions that were asked."""

    count: int
    whole: bool
    """False when the runs had more units than are read: then of the last ones."""
    steps: dict[str, StepRuns]
    asked: int
    waits: list[float]
    """Seconds from asking to the answer, of those that people answered."""


def sample_runs(workflow: str, version: str) -> Runs:
    """Of the tasks that the caller sees. Four queries, each bounded."""
    latest = see_tasks().filter(finished_at__isnull=False).order_by("-finished_at")
    rows = see_tasks().filter(
        pk__in=latest.values("pk")[:RUNS_READ], workflow=workflow, workflow_version=version
    )
    keys: list[UUID] = list(rows.order_by("-finished_at").values_list("pk", flat=True)[:SAMPLE])
    steps: dict[str, StepRuns] = collections.defaultdict(StepRuns)
    columns = ("step_name", "started_at", "finished_at", "cost")
    units = StepOutput.objects.filter(task__in=keys, fence__gt=0).order_by("-task_id", "-seq")
    read = list(units.values_list(*columns)[:UNITS_READ])
    for name, started, finished, cost in read:
        step = steps[name]
        step.units += 1
        step.seconds.append(max(0.0, (finished - started).total_seconds()))
        step.nano += cost
    kinds = {"attempt_failed": "failed", "reclaimed": "lost", "repaired": "repairs"}
    told = Event.objects.filter(task__in=keys, kind__in=kinds).order_by()
    for name, kind, count in told.values_list("step", "kind").annotate(n=Count("pk")):
        setattr(steps[name], kinds[kind], count)
    asked: list[Any] = list(
        Approval.objects.filter(task__in=keys).order_by()
        .values_list("requested_at", "decided_at", "decision")[:UNITS_READ]
    )  # fmt: skip
    waits = [(end - start).total_seconds() for start, end, decision in asked if decision and end]
    return Runs(len(keys), len(read) < UNITS_READ, dict(steps), len(asked), waits)
