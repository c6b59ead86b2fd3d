"""A request to a service that knows idempotency keys."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.error import URLError

from ledger import canonical
from ledger.errors import Unserialisable

MAX_ANSWER = 4 * 1024**2
"""Bytes of an answer that `post_json` reads."""


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows nothing: urllib would send the key, and an Authorization header, to any other host,
    and take the answer to a GET there for that of the action."""

    def redirect_request(self, *given: Any) -> None:
        """None says that nobody follows, so that the redirect is an HTTPError."""


_opener = urllib.request.build_opener(_Stay)


def post_json(
    url: str,
    body: Any,
    *,
    key: str,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
    timeout: float = 30.0,
) -> Any:
    """Send `body` as JSON with `Idempotency-Key: key`; the answer's JSON, or else its text, as it
    can be stored.

    Raises urllib.error.HTTPError for a redirect, which is not followed, and a status from 400 on,
    URLError and TimeoutError for no answer or half of one, ValueError for one above 4 MiB or an
    address that is not of the web.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"post_json(): {url!r} is no http address")
    sent = {"Content-Type": "application/json", **(headers or {}), "Idempotency-Key": key}
    request = urllib.request.Request(url, json.dumps(body).encode(), sent, method=method)
    try:
        with _opener.open(request, timeout=timeout) as answer:
            raw = _read_answer(url, answer)
            charset = answer.headers.get_content_charset("utf-8")
    except HTTPException as error:
        raise URLError(error) from error
    try:
        text = raw.decode(charset, "replace")
    except (LookupError, UnicodeError):  # no charset that we know
        text = raw.decode(errors="replace")
    try:
        found = json.loads(text)
        canonical.check_json(found)
    except (ValueError, RecursionError, Unserialisable):
        return canonical.clean_text(text, MAX_ANSWER)
    return found


def _read_answer(url: str, answer: HTTPResponse) -> bytes:
    raw = answer.read(MAX_ANSWER + 1)
    if len(raw) > MAX_ANSWER:
        raise ValueError(f"{url} answered with more than {MAX_ANSWER >> 20} MiB")
    if answer.length:  # what is left of the length that it announced
        raise URLError(f"{url} answered with {answer.length} bytes less than it announced")
    return raw
