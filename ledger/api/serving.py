"""An artifact as an answer: whole, in part or in several parts, and never as a page of ours.

What a task produced or a client uploaded is nobody's word: it goes out as a download of an inert
type, which no browser may guess about or run in this site's name.
"""

from __future__ import annotations

import base64
import re
import secrets
import unicodedata
from collections.abc import Iterator
from typing import BinaryIO, Final

from django.http import (
    FileResponse,
    HttpRequest,
    HttpResponseNotModified,
    StreamingHttpResponse,
)
from django.http.response import HttpResponseBase
from django.utils.http import content_disposition_header

from ledger import artifacts
from ledger.api.errors import make_problem
from ledger.artifacts import ANY_TYPE
from ledger.models import Artifact

CHUNK: Final = 1 << 20
SANDBOX: Final = "default-src 'none'; sandbox"
MAX_RANGES: Final = 20

IMAGES: Final = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/webp": re.compile(rb"RIFF....WEBP", re.DOTALL),
}
"""What pages show as a picture, by its first bytes."""

INERT: Final = frozenset(
    {ANY_TYPE, "application/gzip", "application/json", "application/x-ndjson", "application/zip"}
    | {"text/csv", "text/markdown", "text/plain", "text/x-diff", artifacts.VALUE_TYPE}
) | IMAGES.keys()  # fmt: skip
"""Types that are sent as declared. All others go out as ANY_TYPE: what a producer says is a claim,
and some browser runs or opens them. (The Artifact JSON has the claim.)"""

_SPEC: Final = re.compile(r"(\d{0,18})-(\d{0,18})", re.ASCII)
_UNSEEN: Final = {"Cc", "Cf", "Cs", "Zl", "Zp"}

type Span = tuple[int, int]
"""First byte, and the one after the last."""


def serve_artifact(
    request: HttpRequest, artifact: Artifact, media_type: str = "", *, picture: bool = False
) -> HttpResponseBase:
    """Its bytes for GET, their headers for HEAD; `artifact` comes with its blob.

    As its own type, if that is inert, or as `media_type`; with `picture` as the image that its
    first bytes make it. `ETag` is the SHA-256. Raises CorruptArtifact, ArtifactExpired.
    """
    blob = artifacts.require_blob(artifact)
    etag = f'"{blob.digest}"'
    response: HttpResponseBase
    spans = _find_spans(request, etag, blob.size)
    if _matches(request.headers.get("If-None-Match", ""), etag):
        response = HttpResponseNotModified()
    elif spans is None:
        return make_problem(
            416,
            "range_not_satisfiable",
            f"The artifact has {blob.size} bytes.",
            headers={"Content-Range": f"bytes */{blob.size}"},
        )
    else:
        kind = media_type or choose_type(artifact.media_type)
        response = _send(request, artifact, blob.size, spans, kind, picture)
        response.headers["Accept-Ranges"] = "bytes"
        response.headers["Content-Disposition"] = (
            content_disposition_header(True, name_download(artifact.name)) or "attachment"
        )
    digest = base64.b64encode(bytes.fromhex(blob.digest)).decode()
    response.headers["ETag"] = etag
    response.headers["Repr-Digest"] = f"sha-256=:{digest}:"
    response.headers["Content-Security-Policy"] = SANDBOX
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Cache-Control"] = "private, no-cache"
    return response


def choose_type(declared: str) -> str:
    """The type to send for a declared one."""
    bare = declared.partition(";")[0].strip().lower()
    if bare not in INERT:
        return ANY_TYPE
    return f"{bare}; charset=utf-8" if bare.startswith("text/") else bare


def name_picture(head: bytes) -> str:
    """The type of an image that begins with these bytes; "" for anything else."""
    return next((kind for kind, start in IMAGES.items() if start.match(head)), "")


def name_download(name: str) -> str:
    """A name that a browser can save under: the last part of a path, with all of it visible."""
    last = name.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]
    shown = "".join("_" if unicodedata.category(one) in _UNSEEN else one for one in last)
    return "artifact" if shown.strip(" .") == "" else shown


def _is_head(request: HttpRequest) -> bool:
    """Whether only the headers are asked for; the API's own views are told GET (`wrap_view`)."""
    return request.META.get("REQUEST_METHOD") == "HEAD"


def _matches(header: str, etag: str) -> bool:
    tags = {tag.strip().removeprefix("W/") for tag in header.split(",")}
    return bool(tags & {"*", etag})


def _find_spans(request: HttpRequest, etag: str, size: int) -> list[Span] | None:
    """The parts that are asked for; none for the whole; None where none of them is there."""
    asked = request.headers.get("Range", "").strip()
    if _is_head(request) or request.headers.get("If-Range", etag).strip() != etag:
        return []
    return read_ranges(asked, size)


def read_ranges(asked: str, size: int) -> list[Span] | None:
    """A `Range` header of something with `size` bytes, as `_find_spans` has it.

    What is no range of bytes asks for the whole; so do too many of them, and what adds up to more.
    """
    unit, _, specs = asked.partition("=")
    matches = [_SPEC.fullmatch(spec.strip()) for spec in specs.split(",")]
    if unit.lower() != "bytes" or len(matches) > MAX_RANGES:
        return []
    found = []
    for match in matches:
        if match is None or not any(match.groups()):
            return []
        first, last = match.groups()
        begin = int(first) if first else max(0, size - int(last))
        end = min(int(last) + 1, size) if first and last else size
        if begin < end:
            found.append((begin, end))
    if sum(end - begin for begin, end in found) >= size > 0:
        return []
    return found or None


def _send(
    request: HttpRequest,
    artifact: Artifact,
    size: int,
    spans: list[Span],
    kind: str,
    picture: bool,
) -> HttpResponseBase:
    if _is_head(request):
        told = {"Content-Type": kind, "Content-Length": str(size)}
        return StreamingHttpResponse((), headers=told)
    file = artifacts.open_content(artifact)
    if picture:
        kind = name_picture(file.read(16)) or kind
        file.seek(0)
    if not spans:
        response = FileResponse(file, content_type=kind)
        response.headers["Content-Length"] = str(size)
        return response
    heads, mark = [b""], ""
    if len(spans) > 1:
        mark = secrets.token_hex(16)
        heads = [
            f"\r\n--{mark}\r\nContent-Type: {kind}\r\nContent-Range: {_say(span, size)}\r\n\r\n"
            .encode()
            for span in spans
        ] + [f"\r\n--{mark}--\r\n".encode()]  # fmt: skip
    part = StreamingHttpResponse(_Parts(file, spans, heads), status=206)
    part.headers["Content-Type"] = f"multipart/byteranges; boundary={mark}" if mark else kind
    part.headers["Content-Length"] = str(
        sum(end - first for first, end in spans) + sum(map(len, heads))
    )
    if not mark:
        part.headers["Content-Range"] = _say(spans[0], size)
    return part


def _say(span: Span, size: int) -> str:
    return f"bytes {span[0]}-{span[1] - 1}/{size}"


class _Parts:
    """Parts of an open file, each after its head; what is left of the heads comes last."""

    def __init__(self, file: BinaryIO, spans: list[Span], heads: list[bytes]) -> None:
        self._file, self._spans, self._heads = file, spans, heads

    def __iter__(self) -> Iterator[bytes]:
        for (first, end), head in zip(self._spans, self._heads, strict=False):
            yield head
            self._file.seek(first)
            left = end - first
            while left and (chunk := self._file.read(min(CHUNK, left))):
                left -= len(chunk)
                yield chunk
        yield from self._heads[len(self._spans) :]

    def close(self) -> None:
        """Close the file."""
        self._file.close()
