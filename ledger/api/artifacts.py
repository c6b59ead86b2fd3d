"""/artifacts: uploads for inputs, and the bytes that tasks produced. Streamed both ways."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from ninja import Router, Status

from ledger import artifacts, queries
from ledger.access import READ, SUBMIT
from ledger.api.auth import require_scope
from ledger.api.files import ArtifactOut
from ledger.api.receiving import check_length, read_body, read_digest
from ledger.api.serving import serve_artifact
from ledger.errors import InvalidInput
from ledger.models import Artifact

router = Router(tags=["artifacts"])

FIELD = "file"
_BODIES = {
    "requestBody": {
        "required": True,
        "content": {
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": [FIELD],
                    "properties": {FIELD: {"type": "string", "format": "binary"}},
                }
            },
        },
    }
}


@router.post("", response={201: ArtifactOut}, openapi_extra=_BODIES)
def upload(request: HttpRequest, name: str = "") -> Status[dict[str, Any]]:
    """Upload a file for an input: the body itself under `?name=`, or a form's field `file`.

    The media type is the request's (of a form, the file's own). A body with `Repr-Digest` or
    `Content-Digest` (sha-256) is refused if it hashes to something else. What is too large to begin
    again goes to /uploads.
    """
    actor = require_scope(request, SUBMIT)
    check_length(request)
    if request.content_type == "multipart/form-data":
        artifact = _store_form(request, name, str(actor))
    else:
        given = request.headers.get("Content-Type", "")
        # What curl and browsers say when nobody said anything.
        plain = given in {"", "application/x-www-form-urlencoded"}
        artifact = artifacts.store_upload(
            read_body(request), name, None if plain else given, str(actor), read_digest(request)
        )
    return Status(201, queries.show_artifact(artifact))


@router.get("/{artifact_id}", response=ArtifactOut)
def get_artifact(request: HttpRequest, artifact_id: UUID) -> dict[str, Any]:
    """Name, size and digest of an artifact."""
    require_scope(request, READ)
    return queries.show_artifact(queries.find_artifact(artifact_id))


@router.get("/{artifact_id}/content", openapi_extra={
    "responses": {200: {"description": "The bytes", "content": {"*/*": {}}}}
})  # fmt: skip
def get_content(request: HttpRequest, artifact_id: UUID) -> HttpResponseBase:
    """The bytes, always as a download; ranges are honoured, `ETag` is the SHA-256."""
    require_scope(request, READ)
    artifact = queries.find_artifact(artifact_id)
    queries.require_payload()
    return serve_artifact(request, artifact)


def _store_form(request: HttpRequest, name: str, actor: str) -> Artifact:
    files = request.FILES.getlist(FIELD)
    if len(files) != 1:
        raise InvalidInput(FIELD, "is missing; give exactly one file.")
    file = files[0]
    return artifacts.store_upload(file.chunks(), name or str(file.name), file.content_type, actor)
