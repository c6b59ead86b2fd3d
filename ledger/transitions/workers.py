"""What people do to worker processes: drain, let go on, declare dead. On record, each of them.

A worker serves every lane, so none of it is for who sees only some.
"""

from __future__ import annotations

from django.db import OperationalError
from django.db.models import QuerySet

from ledger import auditing, clock, sql, states
from ledger.calls import read_call
from ledger.errors import InvalidInput, LeaseLocked, NotAllowed, NotFound, WorkerEnded
from ledger.events import Actor
from ledger.models import Task, Worker
from ledger.models.worker import DEAD, DEAD_ALL, DEADS, DRAIN, DRAIN_ALL, DRAINS
from ledger.sql.lanes import await_lock
from ledger.transitions.operators import check_reason
from ledger.transitions.sweeps import end_lease


def name_worker(owner: str) -> str:
    """How people call it: `host:pid`."""
    return owner.rsplit(":", 1)[0]


def drain_worker(owner: str, *, actor: Actor, reason: str = "", cluster: bool = False) -> int:
    """Let it end its unit and claim nothing more; with `cluster` all of its cluster, and whatever
    process comes in their place. How many were told; again is harmless.

    Raises NotFound, and WorkerEnded for one that has ended.
    """
    told = DRAIN_ALL if cluster else DRAIN
    return _tell("drain", owner, told, actor, reason, cluster)


def undrain_worker(owner: str, *, actor: Actor, reason: str = "", cluster: bool = False) -> int:
    """Let it claim again; with `cluster` all of its cluster. How many were told.

    Raises as `drain_worker`.
    """
    return _tell("undrain", owner, "", actor, reason, cluster)


def _tell(action: str, owner: str, told: str, actor: Actor, reason: str, cluster: bool) -> int:
    check_reason(reason)
    _check_reach(action)
    with sql.atomic():
        row = _lock_worker(owner)
        if row.stopped_at is not None:
            raise WorkerEnded(action, name_worker(owner), _say_end(row))
        crew: QuerySet[Worker] = Worker.objects.filter(pk=owner)
        if cluster and row.cluster:
            # A process that is just coming is on record before, or learns of it after.
            await_lock(f"cluster:{row.cluster}")
            # With those that have ended: from them too a new process knows that all drain.
            all_ = Worker.objects.filter(cluster=row.cluster)
            crew = all_.exclude(told__in=DEADS)
            if not told:
                all_.filter(told=DEAD_ALL).update(told=DEAD)
        # Who drains with its cluster is not let out of that by being told again by itself.
        stale = crew.exclude(told=told) if told != DRAIN else crew.exclude(told__in=DRAINS)
        changed = sorted(stale.filter(stopped_at=None).values_list("owner", flat=True))
        now = clock.read()
        stale.update(told=told, told_by=str(actor) if told else "", told_at=now if told else None)
        if changed:
            after = {"workers": changed, "cluster": row.cluster if cluster else ""}
            auditing.write_entry(actor, f"{action}_worker", f"worker:{owner}", at=now,
                                 reason=reason, before={"told": row.told}, after=after)  # fmt: skip
        return len(changed)


def declare_dead(owner: str, *, actor: Actor, reason: str = "", name: str | None = None) -> int:
    """Take every lease of it away, at once and as a reclaim does; how many there were.

    Their fences rise, so if the process lives after all it can write nothing to those tasks. It
    hears of it within a second of going on, interrupts its unit, and ends; the process that its
    cluster starts in its place has another name. Again is harmless, and takes what it claimed in
    that second. With `name` that has to be what people call it. Raises NotFound, InvalidInput, and
    LeaseLocked when PostgreSQL's session of a process that stopped in mid-write holds a row.
    """
    check_reason(reason)
    _check_reach("declare dead")
    if name is not None and name.strip() != name_worker(owner):
        raise InvalidInput("name", f"is not {name_worker(owner)}; type that to go on.")
    try:
        return _end_worker(owner, actor, reason)
    except OperationalError as error:
        if sql.is_locked(error):
            raise LeaseLocked(name_worker(owner)) from error
        raise


def _end_worker(owner: str, actor: Actor, reason: str) -> int:
    with sql.atomic():
        # As elsewhere a child comes before its parent; and no worker's row before a task's.
        held = Task.objects.select_for_update().filter(
            status=states.RUNNING, lease_owner=owner
        ).order_by("-id")  # fmt: skip
        tasks, now = list(held), clock.read()
        for task in tasks:
            watch = auditing.Watch(task, now)
            end_lease(task, now, "a person declared it dead", actor, reason)
            watch.write()
        row = _lock_worker(owner)
        if row.told in DEADS and not tasks:
            return 0
        Worker.objects.filter(pk=owner).update(
            told=DEAD_ALL if row.told in {DRAIN_ALL, DEAD_ALL} else DEAD,
            told_by=str(actor),
            told_at=now,
            stopped_at=row.stopped_at or now,
        )
        auditing.write_entry(actor, "declare_dead", f"worker:{owner}", at=now, reason=reason,
                             before={"told": row.told},
                             after={"fenced": [str(task.pk) for task in tasks]})  # fmt: skip
    return len(tasks)


def _lock_worker(owner: str) -> Worker:
    # PostgreSQL stores no NUL, and takes none to compare with either.
    rows = Worker.objects.select_for_update().filter(pk=owner)
    row = None if "\0" in owner else rows.first()
    if row is None:
        raise NotFound("worker", owner)
    return row


def _say_end(row: Worker) -> str:
    return "was declared dead" if row.told in DEADS else "has ended"


def _check_reach(action: str) -> None:
    if read_call().lanes is not None:
        raise NotAllowed(f"To {action} a worker takes the sight of every lane: it serves them all.")
