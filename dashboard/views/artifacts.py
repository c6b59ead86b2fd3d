"""Artifacts: always a download, never shown by the browser on our own origin."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpResponseBase
from django.views.decorators.http import require_safe

from dashboard.access import PageRequest, allow
from ledger import queries
from ledger.access import READ
from ledger.api.serving import serve_artifact
from ledger.artifacts import ANY_TYPE


@require_safe
@allow(READ)
def download_artifact(request: PageRequest, artifact_id: UUID) -> HttpResponseBase:
    """The bytes, verified against their digest, as an attachment of an opaque type."""
    row = queries.find_artifact(artifact_id)
    queries.require_payload()
    return serve_artifact(request, row, ANY_TYPE)
