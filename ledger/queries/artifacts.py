"""What tasks produced and clients uploaded: names, sizes, digests. Never the bytes."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from ledger.errors import NotFound
from ledger.models import Artifact
from ledger.queries.paging import DEFAULT_LIMIT, Page, page_newest
from ledger.queries.seen import see_artifacts


def find_artifact(artifact_id: UUID) -> Artifact:
    """The row with its blob. Raises NotFound."""
    row = see_artifacts().select_related("blob").filter(pk=artifact_id).first()
    if row is None:
        raise NotFound("artifact", artifact_id)
    return row


def list_artifacts(
    task_id: UUID, *, limit: int = DEFAULT_LIMIT, cursor: str = ""
) -> Page[dict[str, Any]]:
    """The artifacts of a task, newest first."""
    rows = see_artifacts().select_related("blob").filter(task=task_id)
    return page_newest(rows, "created_at", limit, cursor).convert(show_artifact)


def show_artifact(row: Artifact) -> dict[str, Any]:
    """The Artifact JSON; `row` comes with its blob."""
    return {
        "id": str(row.pk),
        "task": str(row.task_id) if row.task_id else None,
        "name": row.name,
        "step": row.step,
        "media_type": row.media_type,
        "size": row.blob.size,
        "sha256": row.blob_id,
        "created_at": row.created_at,
    }
