"""What the site keeps of artifacts, and for how long: the bytes go, proof of what they were stays.

An artifact expires when its task, and every copy of that, has been over for so many days; an upload
when it is that old and nothing that still counts names it. Outputs, results and progress that stand
in artifacts are the ledger's own and stay. The bytes go by the collector, after its grace.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple
from uuid import UUID

from django.db.models import Model, Q, QuerySet, TextField
from django.db.models.functions import Cast

from ledger import clock, sql, states
from ledger.artifacts import VALUE_TYPE
from ledger.auditing import write_entry
from ledger.errors import TaskNotFound
from ledger.events import Actor
from ledger.models import Approval, Artifact, Signal, Task
from ledger.transitions.moves import lock_task
from ledger.uploads import NAME

BATCH: Final = 100
"""Artifacts of one transaction."""

LOOK: Final = 10_000
"""Uploads of one look at all that may name them."""

NAMED_IN: Final[tuple[tuple[type[Model], str], ...]] = (
    (Task, "input"), (Task, "progress"), (Task, "answer"), (Task, "feedback"),
    (Signal, "data"), (Approval, "attached"), (Approval, "values"),
)  # fmt: skip
"""Where an upload may be named."""


class Expired(NamedTuple):
    """How many artifacts were dropped."""

    of_tasks: int
    uploads: int


def expire_artifacts(days: float, actor: Actor) -> Expired:
    """Drop what has been over for `days`, in short transactions, on the audit log."""
    cutoff = clock.read() - dt.timedelta(days=days)
    of_tasks = sum(_expire_task(key, cutoff, actor) for key in _list_tasks(cutoff))
    return Expired(of_tasks, _expire_uploads(cutoff, actor))


def _select_kept() -> QuerySet[Artifact]:
    return Artifact.objects.filter(expired_at=None).exclude(media_type=VALUE_TYPE)


def _is_over(cutoff: dt.datetime, prefix: str = "") -> Q:
    return Q(**{f"{prefix}status__in": list(states.FINISHED), f"{prefix}finished_at__lt": cutoff})


def _list_tasks(cutoff: dt.datetime) -> Iterator[UUID]:
    """Tasks that are over and have artifacts, by id; those that copies need, too."""
    last: UUID | None = None
    while True:
        found = _select_kept().filter(_is_over(cutoff, "task__"))
        if last is not None:
            found = found.filter(task__gt=last)
        keys = found.order_by("task").values_list("task", flat=True).distinct()[:BATCH]
        for last in list(keys):
            yield last
        if not keys:
            return


def _expire_task(task_id: UUID, cutoff: dt.datetime, actor: Actor) -> int:
    """A copy is made, and a task tried again, under the lock that is held here."""
    dropped = 0
    while True:
        try:
            with lock_task(task_id) as (task, now):
                over = task.status in states.FINISHED and task.finished_at
                if not over or over >= cutoff or _is_needed(task, cutoff):
                    return dropped
                rows = list(_select_kept().filter(task=task).select_related("blob")[:BATCH])
                if not rows:
                    return dropped
                _drop(rows, f"task:{task_id}", now, actor, task_id)
                dropped += len(rows)
        except TaskNotFound:
            return dropped


def _is_needed(task: Task, cutoff: dt.datetime) -> bool:
    """Whether its parent, or a copy of it or of its copies, is not over as long."""
    if task.parent_id and not Task.objects.filter(_is_over(cutoff), pk=task.parent_id).exists():
        return True
    keys = [task.pk]
    while keys:
        copies = Task.objects.filter(copied_from__in=keys)
        if copies.exclude(_is_over(cutoff)).exists():
            return True
        keys = list(copies.values_list("pk", flat=True))
    return False


def _expire_uploads(cutoff: dt.datetime, actor: Actor) -> int:
    dropped = 0
    last: UUID | None = None
    while True:
        old = _select_old(cutoff)
        some = (old.filter(pk__gt=last) if last else old).order_by("pk")[:LOOK]
        keys = list(some.values_list("pk", flat=True))
        if not keys:
            return dropped
        last = keys[-1]
        named = _find_named({str(key) for key in keys}, cutoff)
        free = [key for key in keys if str(key) not in named]
        for n in range(0, len(free), BATCH):
            with sql.atomic():
                # Who hands one of them to a task has noted that by now, or comes too late.
                rows = _select_old(cutoff).filter(pk__in=free[n : n + BATCH]).order_by("pk")
                held = list(rows.select_for_update(of=("self",)))
                if held:
                    _drop(held, "uploads", clock.read(), actor)
            dropped += len(held)


def _select_old(cutoff: dt.datetime) -> QuerySet[Artifact]:
    """Uploads that came, and were last handed to a task, before that."""
    unnamed = Q(named_at=None) | Q(named_at__lt=cutoff)
    return _select_kept().filter(unnamed, task=None, created_at__lt=cutoff).select_related("blob")


def _find_named(keys: set[str], cutoff: dt.datetime) -> set[str]:
    """Those of `keys` that a task names and that is not over for long, as its text says. Each text
    is read once, whatever the number of keys, and only if it names anything."""
    found: set[str] = set()
    for table, column in NAMED_IN:
        rows = table._default_manager.exclude(
            _is_over(cutoff, "" if table is Task else "task__")
        ).annotate(text=Cast(column, TextField()))
        naming = rows.filter(text__regex=NAME.pattern).order_by().values_list("text", flat=True)
        for text in naming.iterator():
            found |= keys.intersection(NAME.findall(text))
    return found


def _drop(
    rows: Iterable[Artifact],
    target: str,
    now: dt.datetime,
    actor: Actor,
    task: UUID | None = None,
) -> None:
    count = size = 0
    for row in rows:
        assert row.blob is not None
        proof = {"sha256": row.blob.digest, "size": row.blob.size}
        Artifact.objects.filter(pk=row.pk).update(blob=None, expired_at=now, proof=proof)
        count, size = count + 1, size + row.blob.size
    told = {"artifacts": count, "size": size}
    write_entry(actor, "artifacts_expired", target, at=now, task=task, after=told)
