"""What the units of a task were told, the latest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db.models import Case, F, Subquery, When

from ledger.errors import NotFound
from ledger.models import Handoff
from ledger.queries.seen import require_family, require_payload

COLUMNS = ("id", "step", "turn", "round", "fence", "digest", "at")


def list_handoffs(
    task_id: UUID, *, limit: int = 50, before: int | None = None
) -> list[dict[str, Any]]:
    """The last hand-offs that attempts got, without their text.

    With `before`, a key, the last one before it has its text as `shown` (0: the last of all has).
    """
    own = Handoff.objects.filter(task=task_id).order_by("-id")
    rows = own.values(*COLUMNS)
    if before is not None:
        last = (own.filter(id__lt=before) if before else own).values("id")[:1]
        rows = rows.annotate(shown=Case(When(id=Subquery(last), then=F("text"))))
    return [dict(row) for row in rows[:limit]]


def find_handoff(task_id: UUID, key: int) -> dict[str, Any]:
    """One with its text, empty once only the digest is kept. Raises NotFound, NotAllowed."""
    require_payload()
    require_family(task_id)
    found = Handoff.objects.filter(task=task_id, pk=key).values(*COLUMNS, "text").first()
    if found is None:
        raise NotFound("handoff", key)
    return dict(found)


def read_told(task_id: UUID, fences: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Fence -> `{id, digest}` of the hand-off that the attempt was given last, if it was any."""
    told = Handoff.objects.filter(task=task_id, fence__in=fences).order_by("id")
    return {
        row["fence"]: {"id": row["id"], "digest": row["digest"]}
        for row in told.values("fence", "id", "digest")
    }
