"""Bytes that come in: read in chunks, within their bound, and what the client says they hash to."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from typing import Any, Final

from django.http import HttpRequest

from ledger import conf
from ledger.api.parsing import UnsupportedEncoding
from ledger.errors import PayloadTooLarge, UnparsableInput
from ledger.uploads import Interrupted

CHUNK: Final = 1 << 20
FIELD: Final = "content"
_SHA256: Final = re.compile(r"(?:^|,)\s*sha-256=:([A-Za-z0-9+/=]*):", re.ASCII)


def check_length(request: HttpRequest) -> None:
    """Refuse what is encoded, or larger than an artifact by its own account."""
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise UnsupportedEncoding(FIELD, "is encoded; send it plain.")
    bound = conf.load().upload_bytes
    length = request.headers.get("Content-Length", "")
    if length.isdigit() and int(length[:20]) > bound:
        raise PayloadTooLarge(FIELD, f"is {length[:20]} bytes, the bound is {bound}.")


def read_body(request: HttpRequest) -> Iterator[bytes]:
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
        raise UnparsableInput(FIELD, f"ended after {count} of {length} bytes.")


def read_piece(request: HttpRequest) -> Iterator[bytes]:
    """The same of a piece that may be torn. Raises Interrupted."""
    try:
        yield from read_body(request)
    except (UnparsableInput, OSError) as error:
        raise Interrupted from error


def read_digest(request: HttpRequest) -> str | None:
    """SHA-256 (hex) of the body by `Repr-Digest` or `Content-Digest` (RFC 9530), if told.

    Raises UnparsableInput. Other algorithms say nothing here.
    """
    for name in ("Repr-Digest", "Content-Digest"):
        found = _SHA256.search(request.headers.get(name, ""))
        if found is None:
            continue
        try:
            digest = base64.b64decode(found[1], validate=True)
        except binascii.Error:
            digest = b""
        if len(digest) != 32:
            raise UnparsableInput(name, "has a sha-256 that is none.")
        return digest.hex()
    return None
