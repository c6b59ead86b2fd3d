"""Artifacts: always a download, never shown by the browser on our own origin."""

from __future__ import annotations

from uuid import UUID

from django.http import FileResponse, HttpResponseBase
from django.views.decorators.http import require_safe

from dashboard.access import PageRequest, allow
from ledger import artifacts, queries
from ledger.access import READ


@require_safe
@allow(READ)
def download_artifact(request: PageRequest, artifact_id: UUID) -> HttpResponseBase:
    """The bytes, verified against their digest, as an attachment of an opaque type."""
    row = queries.find_artifact(artifact_id)
    queries.require_payload()
    name = row.name.replace("\\", "/").rsplit("/", 1)[-1] or "artifact"
    response = FileResponse(
        artifacts.open_content(row),
        as_attachment=True,
        filename=name,
        content_type="application/octet-stream",
    )
    response["X-Content-Type-Options"] = "nosniff"
    return response
