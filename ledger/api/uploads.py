"""/uploads: files for inputs in pieces, which go on after a lost connection where they stood."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from ninja import Router, Status

from ledger import queries, uploads
from ledger.access import SUBMIT
from ledger.api.auth import require_scope
from ledger.api.bodies import Request
from ledger.api.errors import make_problem
from ledger.api.files import UploadOut
from ledger.api.receiving import FIELD, check_length, read_digest, read_piece
from ledger.api.schemas import PageOut
from ledger.errors import UnparsableInput
from ledger.models import Upload
from ledger.uploads import Interrupted, WrongOffset

router = Router(tags=["artifacts"])

OFFSET, LENGTH = "Upload-Offset", "Upload-Length"


class UploadIn(Request):
    """What is to come. With `sha256` the whole is checked at its end."""

    name: str
    size: int
    media_type: str | None = None
    sha256: str = ""


@router.post("", response={201: UploadOut})
def begin_upload(request: HttpRequest, body: UploadIn, response: HttpResponse) -> Status[Any]:
    """Announce a file; its bytes come by PATCH."""
    actor = str(require_scope(request, SUBMIT))
    made = uploads.begin_upload(body.name, body.size, actor, body.media_type, body.sha256)
    response.headers["Location"] = f"{request.path.rstrip('/')}/{made.pk}"
    return Status(201, tell_upload(made, response))


@router.get("", response=PageOut[UploadOut])
def list_uploads(request: HttpRequest) -> dict[str, Any]:
    """The caller's own uploads, newest first."""
    actor = str(require_scope(request, SUBMIT))
    return {"items": [show_upload(one) for one in uploads.list_uploads(actor)], "next_cursor": None}


@router.get("/{upload_id}", response=UploadOut)
def get_upload(request: HttpRequest, upload_id: UUID, response: HttpResponse) -> dict[str, Any]:
    """How far it is: `offset`, also as the header `Upload-Offset` (HEAD is enough)."""
    actor = str(require_scope(request, SUBMIT))
    return tell_upload(uploads.find_upload(upload_id, actor), response)


@router.patch("/{upload_id}", response=UploadOut, openapi_extra={
    "parameters": [{"name": OFFSET, "in": "header", "required": True,
                    "schema": {"type": "integer", "minimum": 0}}],
    "requestBody": {"content": {"application/octet-stream": {
        "schema": {"type": "string", "format": "binary"}}}},
})  # fmt: skip
def append_part(
    request: HttpRequest, upload_id: UUID, response: HttpResponse
) -> dict[str, Any] | HttpResponse:
    """Send the next piece, from `Upload-Offset` on; the last one makes the artifact.

    A piece that is torn counts as far as it came. 409 says where the upload stands. An empty piece
    at the end asks for the artifact again.
    """
    actor = str(require_scope(request, SUBMIT))
    check_length(request)
    upload = uploads.find_upload(upload_id, actor)
    try:
        upload = uploads.append_part(
            upload, _read_offset(request), read_piece(request), read_digest(request)
        )
    except WrongOffset as error:
        told = {OFFSET: str(error.offset)}
        return make_problem(error.status, error.code, str(error), headers=told, offset=error.offset)
    except Interrupted:
        raise UnparsableInput(FIELD, "ended before its length; what came is kept.") from None
    return tell_upload(upload, response)


@router.api_operation(["DELETE"], "/{upload_id}", response={204: None})
def drop_upload(request: HttpRequest, upload_id: UUID) -> Status[None]:
    """End it. The artifact that it became stays."""
    actor = str(require_scope(request, SUBMIT))
    uploads.drop_upload(uploads.find_upload(upload_id, actor))
    return Status(204, None)


def _read_offset(request: HttpRequest) -> int:
    told = request.headers.get(OFFSET, "")
    if not (told.isascii() and told.isdigit() and len(told) < 19):
        raise UnparsableInput(OFFSET, "is a header that takes the number of bytes sent so far.")
    return int(told)


def tell_upload(upload: Upload, response: HttpResponse) -> dict[str, Any]:
    """The Upload JSON, and how far it is in the headers."""
    response.headers[OFFSET], response.headers[LENGTH] = str(upload.offset), str(upload.size)
    return show_upload(upload)


def show_upload(upload: Upload) -> dict[str, Any]:
    """The Upload JSON."""
    names = ("id", "name", "media_type", "size", "sha256", "offset", "created_at", "expires_at")
    made = upload.artifact
    return {name: getattr(upload, name) for name in names} | {
        "artifact": None if made is None else queries.show_artifact(made)
    }
