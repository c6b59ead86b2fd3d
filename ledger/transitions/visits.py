"""When people looked last, so that they can be told what happened since."""

from __future__ import annotations

import datetime as dt
from typing import Final, NamedTuple
from uuid import UUID

from django.db.models import F, Q

from ledger import clock, states
from ledger.events import Actor
from ledger.models import ApprovalLook, Task, Visit

AWAY_SECONDS: Final = 1_800.0
"""Who did not look for so long was away."""

NOTE_SECONDS: Final = 60.0
"""A visit is noted no more often than this."""


class Away(NamedTuple):
    """Since when a person has not seen what happened, and how many seconds that is."""

    since: dt.datetime
    seconds: float


def note_visit(actor: Actor) -> Away | None:
    """The person looks now; since when it is news to them what happened, None for nothing new.

    Two tabs at once may both note it; the later one wins, and neither loses what is news.
    """
    mine = Visit.objects.filter(pk=str(actor))
    now, row = clock.read(), mine.first()
    if row is None:
        Visit.objects.bulk_create([Visit(actor=str(actor), seen_at=now)], ignore_conflicts=True)
        return None
    away = (now - row.seen_at).total_seconds()
    if away > AWAY_SECONDS:
        # What was shown and not put away is a visit ago: it begins anew with this absence.
        row.since = row.seen_at
        mine.update(seen_at=now, since=row.since)
    elif away > NOTE_SECONDS:
        mine.update(seen_at=now)
    return Away(row.since, (now - row.since).total_seconds()) if row.since else None


def put_away(actor: Actor) -> None:
    """The person has seen what happened."""
    Visit.objects.filter(pk=str(actor)).update(seen_at=clock.now(), since=None)


def note_look(approval_id: UUID, actor: Actor) -> None:
    """The person is shown a question now."""
    look = ApprovalLook(approval_id=approval_id, by=str(actor), at=clock.now())
    ApprovalLook.objects.bulk_create(
        [look], update_conflicts=True, unique_fields=["approval", "by"], update_fields=["at"]
    )


def note_seen(task: Task) -> None:
    """A person opens the page of a task that gave up: from then on retention may take it. Written
    once for each time that it gives up; no revision, as nothing that is shown changes."""
    seen = task.seen_at is not None and task.finished_at is not None
    if task.status == states.DEAD and not (seen and task.seen_at >= task.finished_at):  # type: ignore[operator]
        unseen = Q(seen_at=None) | Q(seen_at__lt=F("finished_at"))
        Task.objects.filter(unseen, pk=task.pk, status=states.DEAD).update(seen_at=clock.now())
