"""Runs the real product's workers in processes of their own, on the test's database."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any, NamedTuple

from ledger.models import StepOutput, Task
from ledger.transitions.submit import submit_task
from ledger.workflows import registered
from tests.crash.cluster_kit import MARK, ToyCluster, wait_for
from tests.crash.flows import paced
from tests.factories import CLIENT


class Noted(NamedTuple):
    """One attempt, as the step itself wrote it down."""

    task: str
    step: str
    turn: int
    pid: int
    at: float


class SiteCluster(ToyCluster):
    """`manage.py qcluster`, two workers, a lease of 3 s. Leaving the block kills what is left."""

    command = ("manage.py", "qcluster", "--workers", "2")

    def __init__(self, folder: Path, environment: dict[str, str], **more: str | float) -> None:
        self.mark = uuid.uuid4().hex
        self.log = folder / f"cluster-{self.mark[:6]}.log"
        self.sink = folder / "sink"
        self.sink.touch()
        self.environment = environment | {
            MARK: self.mark,
            "LONGWATCH_WORKFLOWS": "tests.crash.flows",
            "LONGWATCH_LEASE_SECONDS": "3",
            "LONGWATCH_HEARTBEAT_SECONDS": "1",
            "LONGWATCH_DRAIN_SECONDS": "60",
        }
        self.environment |= {name: str(value) for name, value in more.items()}
        self.database = _NoDatabase()  # type: ignore[assignment]

    def submit(self, **pace: Any) -> Task:
        """A task whose attempts write to this cluster's sink."""
        with registered(paced):
            task, _ = submit_task(
                workflow=paced, input={"sink": str(self.sink), **pace}, actor=CLIENT
            )
        return task

    def prove_it_works_on(self) -> None:
        """Both workers run tasks, as if nothing had been."""
        for task in [self.submit(seconds=0.1, turns=1) for _ in range(4)]:
            wait_for_status(task, "completed")

    def read_sink(self, step: str = "", turn: int | None = None) -> list[Noted]:
        """The attempts so far, of one step and turn if given."""
        noted = []
        for line in self.sink.read_text().splitlines():
            task, name, number, pid, at = line.split()
            noted.append(Noted(task, name, int(number), int(pid), float(at)))
        return [n for n in noted if step in {"", n.step} and turn in {None, n.turn}]

    def wait_for_attempts(self, count: int, step: str, turn: int = 0) -> list[Noted]:
        """Wait until that many attempts at this unit have begun."""
        return wait_for(
            f"{count} attempts at {step}:{turn}",
            lambda: found if len(found := self.read_sink(step, turn)) >= count else [],
        )


class _NoDatabase:
    def close(self) -> None:
        """Django's own connection is the test's."""


def wait_for_status(task: Task, status: str) -> Task:
    """Wait until the task is there; returns it fresh."""

    def look() -> bool:
        task.refresh_from_db()
        return task.status == status

    wait_for(f"the task is {status}", look, 60)
    return task


def assert_whole(task: Task, turns: int) -> None:
    """Every unit has exactly one live output, and the record has no gap."""
    units = list(
        StepOutput.objects.filter(task=task, superseded_in_round__isnull=True)
        .order_by("seq")
        .values_list("step_name", "turn")
    )
    assert units == [("begin", 0), *(("work", n) for n in range(turns)), ("end", 0)]
    seqs = [*task.outputs.values_list("seq", flat=True), *task.events.values_list("seq", flat=True)]
    assert sorted(seqs) == list(range(1, task.event_seq + 1))
