"""What a task would need to finish, judged by tasks that did and by what it has done itself."""

from __future__ import annotations

import datetime as dt
import math
import statistics
from typing import NamedTuple

from ledger import states
from ledger.models import Task
from ledger.queries.seen import see_tasks

LOOKED_AT = 500
"""Of the tasks that finished last, those of the workflow count: a bounded look at any size."""
COMPARED = 20
LEAST_COMPARED = 3


class Forecast(NamedTuple):
    """The whole use of a task at its end, in the unit of its column, and where that comes from."""

    need: int
    basis: str


def measure_use(task: Task, name: str, now: dt.datetime) -> float:
    """What is used of `units`, `tokens`, `cost` (nano) or `wall` (seconds; of a deadline too)."""
    if name in {"wall", "deadline_at"}:
        left = task.wall_left
        if task.wall_until is not None:
            left = (task.wall_until - now).total_seconds()
        return task.limit_wall - (left or 0.0)
    if name == "tokens":
        return task.used_tokens_in + task.used_tokens_out
    return float(task.used_units) if name == "units" else task.used_cost


def forecast_need(task: Task, name: str, steps_done: int, now: dt.datetime) -> Forecast | None:
    """The median of the workflow's tasks that completed last; else in proportion to the steps done.

    None where neither says more than what is used already. Units and tokens are counts, cost is
    nano-units, wall is seconds.
    """
    used = measure_use(task, name, now)
    last = see_tasks().filter(finished_at__isnull=False).order_by("-finished_at")
    recent = list(last.values_list("pk", flat=True)[:LOOKED_AT])
    alike = see_tasks().filter(pk__in=recent, workflow=task.workflow, status=states.COMPLETED)
    found = [measure_use(one, name, now) for one in alike.order_by("-finished_at")[:COMPARED]]
    if len(found) >= LEAST_COMPARED and (typical := math.ceil(statistics.median(found))) > used:
        return Forecast(
            typical, f"the median of the {len(found)} tasks of this workflow that completed last"
        )
    if 0 < steps_done < task.total_steps and used > 0:
        need = math.ceil(used * task.total_steps / steps_done)
        what = f"{steps_done} of {task.total_steps} steps"
        return Forecast(need, f"what {what} have used, in proportion")
    return None
