"""The bench of `ledger_check`: tasks that only it claims, on the configured database.

Its workflow is known to no worker, so none runs its tasks; their sweeps may reclaim them though,
which is a rule holding and not a rule broken.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

from django.db import DatabaseError, IntegrityError, connection, transaction

from ledger import clock, conf, sql
from ledger.errors import LedgerError
from ledger.events import Actor
from ledger.models import (
    Approval,
    ApprovalLook,
    ApprovalVote,
    Artifact,
    Effect,
    Event,
    Handoff,
    Reservation,
    Spend,
    StepOutput,
    Task,
)
from ledger.sql import Claimed, Unit
from ledger.transitions.submit import submit_task
from ledger.transitions.sweeps import reclaim_task
from ledger.workflows import Workflow

RESERVED = "longwatch.check"
PATIENCE = 20.0
"""Seconds in which something that must happen has to happen, on the slowest machine."""

LONGEST_LEASE = 5.0
"""Short, so that workers with a shorter lease than ours don't take one for a clock gone wrong."""

STALE_SECONDS = 3_600.0
"""What an earlier run that was killed left behind is swept up after this time."""

check = Workflow(RESERVED)
for _name in ("one", "two", "three"):
    check.step(lambda ctx: None, name=_name)

ACTOR = Actor("cli", RESERVED)


class Broken(Exception):
    """A rule does not hold; the message says what was seen."""


class Bench:
    """A lane of tasks for one rule."""

    def __init__(self) -> None:
        self.lane = f"{RESERVED}.{uuid4().hex}"
        self.lease_seconds = min(LONGEST_LEASE, conf.load().lease_seconds)

    @property
    def group(self) -> sql.Group:
        """Where its tasks queue."""
        return (self.lane, check.name, check.version)

    def submit(self, **options: Any) -> Task:
        """A queued task."""
        return submit_task(workflow=check, input={}, actor=ACTOR, lane=self.lane, **options)[0]

    def claim(self, owner: str, lease_seconds: float | None = None) -> Claimed | None:
        """What `owner` gets of the lane's queue."""
        return sql.claim_task(owner, [self.group], lease_seconds or self.lease_seconds)

    def take(self, owner: str = "check:1:a", lease_seconds: float | None = None) -> Claimed:
        """The same where there is something to get."""
        held = self.claim(owner, lease_seconds)
        expect(held is not None, "a queued task was not claimed")
        assert held is not None
        return held

    def checkpoint(self, held: Claimed, unit: Unit, *, look: bool = False) -> sql.Settled | None:
        """Store the unit; with `look` give way to what queues before it."""
        return sql.checkpoint_unit(
            held,
            unit,
            lease_seconds=self.lease_seconds,
            groups=[self.group] if look else None,
        )

    def lose(self, task_id: UUID) -> None:
        """Wait until the lease is over and the task is taken from its holder, by whoever sweeps."""

        def is_reclaimed() -> bool:
            if Task.objects.filter(pk=task_id, lease_until__lte=clock.now()).exists():
                reclaim_task(task_id, conf.load().lease_seconds)
            return not Task.objects.filter(pk=task_id, status="running").exists()

        wait_for(is_reclaimed, "an expired lease was not reclaimed")

    def was_swept(self) -> bool:
        """True when a sweep took a task of the lane from its holder."""
        return Event.objects.filter(task__lane=self.lane, kind="reclaimed").exists()


def make_unit(index: int, result: str | None = None, **data: Any) -> Unit:
    """A unit with output `data` that leads to step `index`, or with `result` to the end."""
    text = json.dumps(data)
    return Unit(text, text, index, check.steps[index].name, 0, result=result)


def read_row(task: Task | UUID) -> Task:
    """The task as it is stored now."""
    return Task.objects.get(pk=task.pk if isinstance(task, Task) else task)


def expect(holds: bool, otherwise: str) -> None:
    """Raise Broken unless `holds`."""
    if not holds:
        raise Broken(otherwise)


def expect_refusal(error: type[LedgerError], what: str, call: Callable[[], object]) -> None:
    """Raise Broken unless `call` raises `error`."""
    try:
        call()
    except error:
        return
    raise Broken(f"{what} was not refused")


def expect_constraint(what: str, call: Callable[[], object]) -> None:
    """Raise Broken unless the database itself refuses `call`; what it wrote is rolled back."""
    try:
        with transaction.atomic():
            call()
            transaction.set_rollback(True)
    except IntegrityError:
        return
    raise Broken(f"the database took {what}")


def wait_for(condition: Callable[[], bool], otherwise: str) -> None:
    """Raise Broken unless `condition` comes true in time."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise Broken(otherwise)
        time.sleep(0.02)


def read_elsewhere[T](read: Callable[[], T]) -> T:
    """What another session of the database sees."""
    seen: list[T] = []

    def run() -> None:
        try:
            seen.append(read())
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    expect(bool(seen), "a second session could not read")
    return seen[0]


def delete_rows() -> None:
    """Delete what this run and killed earlier ones left: the one place that deletes of a task.

    Rows of a check that runs beside this one are younger and stay.
    """
    old = Task.objects.filter(workflow=RESERVED)
    mine = old.filter(lane__in=_lanes) | old.filter(created_at__lt=clock.now(-STALE_SECONDS))
    ids = list(mine.values_list("pk", flat=True))
    with transaction.atomic():
        for of_approval in (ApprovalLook, ApprovalVote):
            of_approval.objects.filter(approval__task__in=ids).delete()
        for table in (Approval, Artifact, Effect, Handoff, Reservation, Spend, Event,
                      StepOutput):  # fmt: skip
            table.objects.filter(task__in=ids).delete()
        Task.objects.filter(pk__in=ids).delete()


_lanes: set[str] = set()


def run_rule(rule: Callable[[Bench], None]) -> str:
    """Why the rule is broken; empty when it holds.

    A worker that was stopped, or whose lease is very short, may sweep a task away from under a
    rule: then the rule is tried again.
    """
    for _ in range(3):
        bench = Bench()
        _lanes.add(bench.lane)
        try:
            rule(bench)
            return ""
        except Broken as broken:
            why = str(broken)
        except (LedgerError, DatabaseError) as error:
            why = f"{type(error).__name__}: {error}"
        if not bench.was_swept():
            break
    return why
