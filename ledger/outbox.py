"""What may be told to people, put down in the transaction in which it happens."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

from ledger import canonical, secrets
from ledger.models import AlertRule, Outbox, Task

LOST_TWICE: Final = "lost_twice"
PASSED_ON: Final = {
    kind: kind
    for kind in ("approval_requested", "approval_reminded", "dead", "failed", "cancelled")
} | {"reclaimed": LOST_TWICE, "approval_escalated": "approval_requested"}
"""Kind of an event -> kind of its alert. A claim or a checkpoint is none, and costs nothing."""

SHORT: Final = 500
"""Characters of any text."""

_KEPT: Final = ("reason", "approval", "subject", "risk", "expires_at", "worker", "reclaims")


def note_event(task: Task, kind: str, at: dt.datetime, data: dict[str, Any]) -> None:
    """Put down an event of a task, if it is of a kind that people are told of."""
    alert = PASSED_ON.get(kind)
    # Losses count per step and start at 1 again, so the second one comes once.
    if alert is None or (alert == LOST_TWICE and data.get("reclaims") != 2):
        return
    said = {name: data[name] for name in _KEPT if data.get(name) is not None}
    if isinstance(error := data.get("error"), dict):
        said["error"] = {name: error.get(name, "") for name in ("type", "message")}
    post_alert(alert, at, said, task)


def post_alert(
    kind: str,
    at: dt.datetime,
    data: dict[str, Any],
    task: Task | None = None,
    *,
    only: AlertRule | None = None,
    **place: str,
) -> Outbox:
    """Put an alert down, for all rules or for `only` one; `place` is workflow and lane where it
    is of no task. What was said is cut and masked."""
    if task is not None:
        place = {"workflow": task.workflow, "lane": task.lane}
        data = data | {"title": task.title, "step": task.step_name}
        data |= {"workflow_version": task.workflow_version}
    return Outbox.objects.create(
        at=at, kind=kind, task=task.pk if task else None, tags=task.tags if task else [], only=only,
        data=_shorten(secrets.mask_json(data)), **place,
    )  # fmt: skip


def _shorten(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _shorten(part) for name, part in value.items()}
    return canonical.clean_text(value, SHORT) if isinstance(value, str) else value
