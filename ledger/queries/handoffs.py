"""What the units of a task were told, the latest first."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from ledger.models import Handoff


def list_handoffs(task_id: UUID, *, limit: int = 50) -> list[dict[str, Any]]:
    """The last hand-offs that attempts got, with their text."""
    rows = Handoff.objects.filter(task=task_id).order_by("-id")
    names = ("id", "step", "turn", "round", "fence", "digest", "text", "at")
    return [{name: getattr(row, name) for name in names} for row in rows[:limit]]
