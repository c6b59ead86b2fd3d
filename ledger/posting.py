"""A request to a service that knows idempotency keys."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from typing import Any

MAX_ANSWER = 4 * 1024**2
"""Bytes of an answer that `post_json` reads."""


def post_json(
    url: str,
    body: Any,
    *,
    key: str,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
    timeout: float = 30.0,
) -> Any:
    """Send `body` as JSON with `Idempotency-Key: key`; the answer's JSON, or else its text.

    Raises urllib.error.HTTPError for a status from 400 on, URLError and TimeoutError for no answer,
    ValueError for one above 4 MiB or an address that is not of the web.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"post_json(): {url!r} is no http address")
    sent = {"Content-Type": "application/json", **(headers or {}), "Idempotency-Key": key}
    request = urllib.request.Request(url, json.dumps(body).encode(), sent, method=method)
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        raw = answer.read(MAX_ANSWER + 1)
        charset = answer.headers.get_content_charset("utf-8")
    if len(raw) > MAX_ANSWER:
        raise ValueError(f"{url} answered with more than {MAX_ANSWER >> 20} MiB")
    text = raw.decode(charset, "replace")
    try:
        return json.loads(text)
    except ValueError:
        return text
