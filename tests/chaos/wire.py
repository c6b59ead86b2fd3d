"""As much of PostgreSQL's protocol (version 3) as is needed to know what is being committed.

https://www.postgresql.org/docs/current/protocol-message-formats.html: after the start-up packet a
message is a type byte, a length that counts itself, and a body.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

HOT = {
    "settle": r"settled AS \(",
    "keep": r"FROM me RETURNING fence",
    "claim": r"^\s*WITH pick AS MATERIALIZED",
    "beat": r"beat = t\.beat \+ 1\s+FROM unnest",
    "submit": r"INSERT INTO longwatch_task ",
    "write": r"\b(INSERT|UPDATE)\b",
}
"""Autocommitted statements, the first that fits; `write` is any other."""

COMMIT = "commit"
LABELS = (COMMIT, *HOT)


def split_messages(buffer: bytearray, typed: bool = True) -> Iterator[bytes]:
    """Take every whole message off the front of `buffer`; the start-up packet has no type byte."""
    skip = 1 if typed else 0
    while len(buffer) >= skip + 4:
        length = skip + int.from_bytes(buffer[skip : skip + 4])
        if len(buffer) < length:
            return
        message = bytes(buffer[:length])
        del buffer[:length]
        yield message
        if not typed:
            return


class Conversation:
    """What one session has said: the prepared texts, and whether a transaction is open."""

    def __init__(self) -> None:
        self.in_transaction = False
        self._texts: dict[bytes, str] = {}
        self._bound = ""

    def read_request(self, message: bytes) -> str | None:
        """A label when the server, once it has this message, will commit something."""
        kind, body = message[:1], message[5:]
        if kind == b"Q":
            return self._label(body.rstrip(b"\0").decode(errors="replace"))
        if kind == b"P":
            name, text, *_ = body.split(b"\0", 2)
            self._texts[name] = text.decode(errors="replace")
        elif kind == b"B":
            _, name, *_ = body.split(b"\0", 2)
            self._bound = self._texts.get(name, "")
        elif kind == b"S":
            text, self._bound = self._bound, ""
            return self._label(text)
        return None

    def read_reply(self, message: bytes) -> bool:
        """True for ReadyForQuery: the server has done all that it was asked for."""
        if message[:1] != b"Z":
            return False
        self.in_transaction = message[5:6] != b"I"
        return True

    def _label(self, text: str) -> str | None:
        if text.lstrip().upper().startswith("COMMIT"):
            return COMMIT
        if self.in_transaction:
            return None
        return next((name for name, form in HOT.items() if re.search(form, text, re.DOTALL)), None)


def has_row(messages: list[bytes]) -> bool:
    """Whether a reply holds a row; a claim or a beat without one has changed nothing."""
    return any(message[:1] == b"D" for message in messages)


def is_refused(messages: list[bytes]) -> bool:
    """Whether the reply is an error."""
    return any(message[:1] == b"E" for message in messages)
