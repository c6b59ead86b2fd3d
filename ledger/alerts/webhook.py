"""One signed POST: https://www.standardwebhooks.com in headers and signature.

By hand because no client that we pin connects to an address that was checked beforehand, bounds
the whole exchange and not each read, and stops reading an answer. Every read and write here ends
at one deadline, so an endpoint that sends a byte a second is no different from a silent one.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import socket
import ssl
import time
from typing import Final
from urllib.parse import SplitResult, urlsplit

from ledger.alerts import addresses

PREFIX: Final = "whsec_"
MAX_ANSWER: Final = 65_536
"""Bytes that are read of an answer, then the line is closed."""

_STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d{3})\b[^\r\n]*\r?\n")


class Refused(Exception):
    """The endpoint answered, and won't take this one (a status of 400 to 499)."""


class Unreachable(Exception):
    """No good answer: the endpoint is away, slow or broken."""


def make_secret() -> str:
    """A new secret of 32 random bytes."""
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def sign_body(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """`v1,` and the base64 of the HMAC-SHA256 over `id.timestamp.body`."""
    key = base64.b64decode(secret.removeprefix(PREFIX))
    signed = hmac.new(key, f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256)
    return f"v1,{base64.b64encode(signed.digest()).decode()}"


def split_url(url: str) -> SplitResult:
    """The parts of an address that can be posted to. Raises ValueError with what is wrong."""
    if not url.isascii() or any(ord(char) <= 32 or ord(char) == 127 for char in url):
        raise ValueError("write it without spaces, control or non-ASCII characters")
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"}:
        raise ValueError("it takes an address that begins with http:// or https://")
    if not parts.hostname or parts.port == 0:
        raise ValueError("it names no host")
    if parts.username or parts.password:
        raise ValueError("name and password in an address end up in logs; the signature is enough")
    return parts


def post_signed(
    url: str, body: bytes, *, message_id: str, timestamp: int, keys: list[str], seconds: float
) -> int:
    """Send `body`; the status of the answer, 200 to 299. No redirect is followed.

    Raises Refused, Unreachable, addresses.AddressRefused.
    """
    until = time.monotonic() + seconds
    parts = split_url(url)
    signatures = " ".join(sign_body(key, message_id, timestamp, body) for key in keys)
    head = (
        f"POST {parts.path or '/'}{'?' + parts.query if parts.query else ''} HTTP/1.1\r\n"
        f"Host: {parts.netloc}\r\nConnection: close\r\nUser-Agent: Longwatch\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"webhook-id: {message_id}\r\nwebhook-timestamp: {timestamp}\r\n"
        f"webhook-signature: {signatures}\r\n\r\n"
    )
    try:
        with _connect(parts, until) as line:
            line.settimeout(_left(until))
            line.sendall(head.encode() + body)  # this timeout is for all of it
            status = _read_status(line, until)
    except TimeoutError:
        raise Unreachable(f"no answer within {seconds:g} s") from None
    except (OSError, ValueError) as error:
        raise Unreachable(str(error)) from None
    if 400 <= status < 500 and status not in {408, 425, 429}:
        raise Refused(f"answered {status}")
    if not 200 <= status < 300:
        note = "; redirects are not followed" if 300 <= status < 400 else ""
        raise Unreachable(f"answered {status}{note}")
    return status


def _connect(parts: SplitResult, until: float) -> socket.socket:
    host = str(parts.hostname)
    wrong: OSError = TimeoutError()
    for family, kind, protocol, _, address in addresses.find_addresses(
        host, parts.port or (443 if parts.scheme == "https" else 80)
    ):
        line = socket.socket(family, kind, protocol)
        try:
            line.settimeout(_left(until))
            line.connect(address)
            if parts.scheme == "https":
                line.settimeout(_left(until))
                return ssl.create_default_context().wrap_socket(line, server_hostname=host)
            return line
        except OSError as error:
            line.close()
            wrong = error
    raise wrong


def _read_status(line: socket.socket, until: float) -> int:
    """The status; what follows it is taken in for an instant, as who closes a line with bytes
    unread resets it, and a receiver that still writes would take that for a failure."""
    read, status = b"", None
    while len(read) < MAX_ANSWER:
        try:
            line.settimeout(_left(until))
            part = line.recv(MAX_ANSWER - len(read))
        except OSError:
            if status is None:
                raise
            break  # it said what counts
        if not part:
            break
        read += part
        while (found := _STATUS.match(read)) and found[1].startswith(b"1") and b"\r\n\r\n" in read:
            read = read.partition(b"\r\n\r\n")[2]  # 100 Continue and its like
        if status is None and found:
            status, until = int(found[1]), min(until, time.monotonic() + 0.2)
    if status is None or status < 200:
        raise Unreachable("closed the line without an HTTP answer")
    return status


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
