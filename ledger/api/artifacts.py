"""/artifacts: uploads for inputs, and the bytes that tasks produced. Streamed both ways."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Any, BinaryIO
from uuid import UUID

from django.http import FileResponse, HttpRequest, HttpResponse, HttpResponseNotModified
from django.http.response import HttpResponseBase
from ninja import Router, Status

from ledger import artifacts, conf, queries
from ledger.access import READ, SUBMIT
from ledger.api.auth import require_scope
from ledger.api.errors import make_problem
from ledger.api.parsing import UnsupportedEncoding
from ledger.api.schemas import ArtifactOut
from ledger.errors import InvalidInput, PayloadTooLarge, UnparsableInput
from ledger.models import Artifact

router = Router(tags=["artifacts"])

CHUNK = 1 << 20
FIELD = "file"
SANDBOX = "default-src 'none'; sandbox"
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)
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

    The media type is the request's (of a form, the file's own).
    """
    actor = require_scope(request, SUBMIT)
    _check_length(request)
    if request.content_type == "multipart/form-data":
        artifact = _store_form(request, name, str(actor))
    else:
        given = request.headers.get("Content-Type", "")
        # What curl and browsers say when nobody said anything.
        plain = given in {"", "application/x-www-form-urlencoded"}
        artifact = artifacts.store_upload(
            _read_body(request), name, None if plain else given, str(actor)
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
    """The bytes, always as a download; one `Range` is honoured, `ETag` is the SHA-256."""
    require_scope(request, READ)
    artifact = queries.find_artifact(artifact_id)
    queries.require_payload()
    etag = f'"{artifact.blob_id}"'
    if etag in request.headers.get("If-None-Match", ""):
        response: HttpResponse | FileResponse = HttpResponseNotModified()
    else:
        span = _read_range(request, etag, artifact.blob.size)
        if span is None:
            return make_problem(
                416,
                "range_not_satisfiable",
                f"The artifact has {artifact.blob.size} bytes.",
                headers={"Content-Range": f"bytes */{artifact.blob.size}"},
            )
        response = _send(artifact, *span)
    digest = base64.b64encode(bytes.fromhex(artifact.blob_id)).decode()
    response.headers["ETag"] = etag
    response.headers["Repr-Digest"] = f"sha-256=:{digest}:"
    # What a task produced is not ours: it must not run in this site's name in anybody's browser.
    response.headers["Content-Security-Policy"] = SANDBOX
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Cache-Control"] = "private, no-cache"
    return response


def _check_length(request: HttpRequest) -> None:
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise UnsupportedEncoding("content", "is encoded; send it plain.")
    bound = conf.load().upload_bytes
    length = request.headers.get("Content-Length", "")
    if length.isdigit() and int(length[:20]) > bound:
        raise PayloadTooLarge("content", f"is {length[:20]} bytes, the bound is {bound}.")


def _store_form(request: HttpRequest, name: str, actor: str) -> Artifact:
    files = request.FILES.getlist(FIELD)
    if len(files) != 1:
        raise InvalidInput(FIELD, "is missing; give exactly one file.")
    file = files[0]
    return artifacts.store_upload(file.chunks(), name or str(file.name), file.content_type, actor)


def _read_body(request: HttpRequest) -> Iterator[bytes]:
    """The body in chunks. Raises UnparsableInput when it ends before the length it announced."""
    length = request.headers.get("Content-Length", "")
    stream: Any = request
    if not length and request.META.get("wsgi.input_terminated"):
        stream = request.META["wsgi.input"]  # chunked: Django would read nothing without a length
    count = 0
    while chunk := stream.read(CHUNK):
        count += len(chunk)
        yield chunk
    if length.isdigit() and count < int(length):
        raise UnparsableInput("content", f"ended after {count} of {length} bytes.")


def _read_range(request: HttpRequest, etag: str, size: int) -> tuple[int, int] | None:
    """The (first, end) asked for: all of it without one usable range; None when out of bounds.

    Several ranges, or those of another version of the bytes, may be answered with the whole.
    """
    match = _RANGE.fullmatch(request.headers.get("Range", "").strip())
    if match is None or not any(match.groups()) or request.headers.get("If-Range", etag) != etag:
        return 0, size
    first, last = match.groups()
    if not first:
        return (max(0, size - int(last)), size) if int(last) and size else None
    end = min(int(last) + 1, size) if last else size
    return (int(first), end) if int(first) < end else None


def _send(artifact: Artifact, first: int, end: int) -> FileResponse:
    size = artifact.blob.size
    file = artifacts.open_content(artifact)
    whole = (first, end) == (0, size)
    response = FileResponse(
        file if whole else _Part(file, first, end),
        as_attachment=True,
        filename=re.sub(r"[\x00-\x1f\x7f]", "_", artifact.name),
        content_type=artifact.media_type,
        status=200 if whole else 206,
    )
    response.headers["Accept-Ranges"] = "bytes"
    response.headers["Content-Length"] = str(end - first)
    if not whole:
        response.headers["Content-Range"] = f"bytes {first}-{end - 1}/{size}"
    return response


class _Part:
    """The bytes `first` to `end` of an open file, as a file that can only be read on."""

    def __init__(self, file: BinaryIO, first: int, end: int) -> None:
        file.seek(first)
        self._file, self._left = file, end - first

    def read(self, size: int = -1) -> bytes:
        """The next bytes, at most `size`."""
        wanted = self._left if size < 0 else min(size, self._left)
        chunk = self._file.read(wanted)
        self._left -= len(chunk)
        return chunk

    def close(self) -> None:
        """Close the file."""
        self._file.close()
