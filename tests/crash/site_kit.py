"""Runs the real product's workers in processes of their own, on the test's database."""

from __future__ import annotations

import contextlib
import sqlite3
import uuid
from pathlib import Path
from typing import Any, NamedTuple

from django.db import connection

from ledger.models import StepOutput, Task
from ledger.transitions.submit import submit_task
from ledger.workflows import Workflow, registered
from tests.crash.cluster_kit import MARK, SIGCONT, SIGKILL, SIGSTOP, ToyCluster, wait_for
from tests.crash.flows import paced
from tests.durable import bound_leases
from tests.factories import CLIENT


class Noted(NamedTuple):
    """One attempt, as the step itself wrote it down."""

    task: str
    step: str
    turn: int
    pid: int
    at: float


class SiteCluster(ToyCluster):
    """`manage.py qcluster`, two workers, short leases. Leaving the block kills what is left."""

    command = ("manage.py", "qcluster")

    def __init__(self, folder: Path, environment: dict[str, str], **more: str | float) -> None:
        self.mark = uuid.uuid4().hex
        self.log = folder / f"cluster-{self.mark[:6]}.log"
        self.sink = folder / "sink"
        self.sink.touch()
        self.environment = environment | {
            MARK: self.mark,
            "LONGWATCH_WORKFLOWS": "tests.crash.flows",
            "LONGWATCH_WORKERS": "2",
        }
        self.environment |= bound_leases(LONGWATCH_DRAIN_SECONDS="60")
        self.environment |= {name: str(value) for name, value in more.items()}
        self.workers = int(self.environment["LONGWATCH_WORKERS"])
        self.database = _NoDatabase()  # type: ignore[assignment]

    def submit(self, workflow: Workflow = paced, **pace: Any) -> Task:
        """A task whose attempts write to this cluster's sink."""
        with registered(workflow):
            task, _ = submit_task(
                workflow=workflow, input={"sink": str(self.sink), **pace}, actor=CLIENT
            )
        return task

    def kill_owner(self, owner: str) -> bool:
        """SIGKILL to the worker of a lease; False if it was dead already."""
        with contextlib.suppress(ProcessLookupError):
            self.signal(SIGKILL, int(owner.split(":")[1]))
            return True
        return False

    def prove_it_works_on(self) -> None:
        """Both workers run tasks, as if nothing had been."""
        for task in [self.submit(seconds=0.1, turns=1) for _ in range(4)]:
            wait_for_status(task, "completed")

    def let_go(self, attempt: int) -> None:
        """Open the gate of `gated` for that attempt."""
        Path(f"{self.sink}.go-{attempt}").touch()

    def read_bill(self) -> int:
        """What the provider of `gated` charged."""
        return sum(map(int, Path(f"{self.sink}.bill").read_text().split()))

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


def read_kinds(task: Task) -> list[str]:
    """The events of a task, in the order of the record."""
    return list(task.events.values_list("kind", flat=True))


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


def stop_outside_of_a_write(cluster: SiteCluster, pid: int | None = None) -> None:
    """SIGSTOP to one process or to all, but on SQLite not in the instant in which one of them holds
    the file's only lock.

    Then nobody could write until it goes on or dies: the price of a file (docs/reliability.md).
    """

    def send(signum: int) -> None:
        cluster.signal_group(signum) if pid is None else cluster.signal(signum, pid)

    for _ in range(50):
        send(SIGSTOP)
        if connection.vendor != "sqlite" or can_write(within=0.2):
            return
        send(SIGCONT)
        assert can_write(within=30)
    raise AssertionError("it holds the lock each time")


def can_write(within: float) -> bool:
    """Whether another process gets the write lock of the SQLite file in so many seconds."""
    name = connection.settings_dict["NAME"]
    with contextlib.closing(sqlite3.connect(name, timeout=within)) as other:
        try:
            other.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        return True
