"""A workflow that keeps its own list of what ran, and a worker for it in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from django.db import OperationalError

from ledger import clock, runner, settling, states
from ledger.guardian import Guardian
from ledger.models import Event, Task
from ledger.transitions import sweeps
from ledger.workflows import Workflow
from tests.factories import OWNER
from tests.ledger.replay import check_columns

PATIENCE = 60.0


class Journal:
    """A workflow whose first step ends as a test says; `runs` is what ran, in order."""

    def __init__(self, outcome: Callable[[Any], Any], **options: Any) -> None:
        self.runs: list[tuple[Any, str, int]] = []
        self.flow = Workflow("journal", self_approval=True)
        self.flow.step(lambda ctx: self.note(ctx, outcome), name="first", **options)
        self.flow.step(lambda ctx: self.note(ctx, lambda ctx: {"second": True}), name="second")

    def note(self, ctx: Any, outcome: Callable[[Any], Any]) -> Any:
        """One run of a step."""
        self.runs.append((ctx.task_id, ctx.step, ctx.turn))
        return outcome(ctx)


def check_uncharged() -> None:
    """No lost worker, no repair, no gap; every accepted unit once."""
    for task in Task.objects.all():
        check_columns(task)
        assert (task.reclaims, task.repair_count, task.releases) == (0, 0, 0)
        numbers = sorted([e.seq for e in task.events.all()] + [o.seq for o in task.outputs.all()])
        assert numbers == list(range(1, task.event_seq + 1))
    assert not Event.objects.filter(kind__in=["stale_write_refused", "reclaimed"]).exists()


def run_until_rest(*keys: Any) -> None:
    """A worker, ticket after ticket, until none of the tasks can go on by itself.

    Nobody beats, sweeps or looks in between: the guardian is not started.
    """
    until = time.monotonic() + PATIENCE
    guardian = Guardian()
    while not not_ready(keys):
        assert time.monotonic() < until, list(Task.objects.values("status", "step_name"))
        try:
            runner.run_resident(
                owner=OWNER, stop=lambda: not_ready(keys), until=until, guardian=guardian,
                idle=lambda seconds: move_on(),
            )  # fmt: skip
        except OperationalError:
            settling.forget_connections()  # as the ticket does


def not_ready(keys: Any) -> bool:
    """True when none of the tasks can go on by itself."""
    return not Task.objects.filter(pk__in=keys, status__in=states.WALL_RUNS).exists()


def move_on() -> None:
    """Timers run out while the worker idles."""
    clock.offset += 400
    sweeps.promote_due()
