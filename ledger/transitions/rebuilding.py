"""Where a task stood when a unit was accepted: what its outputs up to there add up to.

Values may lie in files, so this is read before a transaction; under the lock `check_stand` asks
whether the same outputs are live still. A live output never changes, so nothing else can have.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Q, QuerySet

from ledger import artifacts, conf
from ledger.artifacts import VALUE_TYPE, Spilled
from ledger.errors import StaleRevision
from ledger.events import Actor
from ledger.models import Artifact, StepOutput, Task


class Place(NamedTuple):
    """A live output: its number and its unit."""

    seq: int
    step_index: int
    step_name: str
    turn: int
    round: int

    @property
    def unit(self) -> tuple[int, int, int]:
        """The key of what was stored with it."""
        return self.step_index, self.turn, self.round


@dataclasses.dataclass(frozen=True, slots=True)
class Stand:
    """Progress and workspace after the units at `places`; values that are too large, `spilled`."""

    places: list[Place]
    progress: dict[str, Any]
    workspace: str
    spilled: list[Spilled]


def list_live(task_id: UUID, which: Q) -> QuerySet[StepOutput]:
    """The live outputs of a task that `which` selects, in the order in which they were accepted."""
    live = StepOutput.objects.filter(which, task=task_id, superseded_in_round__isnull=True)
    return live.order_by("seq")


def read_stand(task_id: UUID, which: Q, instead: tuple[int, dict[str, Any]] | None = None) -> Stand:
    """What the live outputs that `which` selects add up to; `instead` replaces one, by its seq."""
    places: list[Place] = []
    progress: dict[str, Any] = {}
    workspace = ""
    rows = list_live(task_id, which).values_list(*Place._fields, "output", "workspace")
    for *place, output, folder in rows.iterator(chunk_size=200):
        places.append(Place(*place))
        if instead is not None and instead[0] == places[-1].seq:
            output = instead[1]
        progress |= artifacts.open_whole(output or {}, task_id)
        workspace = folder or workspace
    most = conf.load().inline_progress_bytes
    progress, spilled = artifacts.fit_loose(progress, most, "progress")
    return Stand(places, progress, workspace, spilled)


def check_stand(task: Task, which: Q, stand: Stand, seen: int) -> None:
    """Raise StaleRevision unless the outputs of the locked task are those that were read."""
    if list(list_live(task.pk, which).values_list("seq", flat=True)) != [
        place.seq for place in stand.places
    ]:
        raise StaleRevision(seen, task.revision)


def record_spilled(stand: Stand, task: Task, unit: Place, actor: Actor, at: Any) -> None:
    """Rows of the values that were too large, under a unit of the task that never runs again."""
    if not stand.spilled:
        return
    artifacts.write_blob_rows(one.stored for one in stand.spilled)
    Artifact.objects.bulk_create(
        Artifact(
            id=one.id, task=task, name=one.name, step=unit.step_name, step_index=unit.step_index,
            turn=unit.turn, round=unit.round, media_type=VALUE_TYPE, blob_id=one.stored.digest,
            created_at=at, created_by=str(actor),
        )
        for one in stand.spilled
    )  # fmt: skip
