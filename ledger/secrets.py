"""Secrets that steps ask for, and the mask over every place where they might show up.

`ctx.secret("NAME")` reads the environment variable LONGWATCH_SECRET_NAME, or the file that
LONGWATCH_SECRET_NAME_FILE points at. The ledger stores none; whatever a step logs, raises or
returns is masked first. The mask covers what this process handed out at any time, because a step
may keep a secret in a global and print it in the next unit.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ledger.errors import LedgerError

MASK = "[secret]"
MIN_LENGTH = 4
_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
_RESERVED = {"KEY"}  # LONGWATCH_SECRET_KEY is the site's own signing key

_forms: set[str] = set()
_pattern: re.Pattern[str] | None = None


class SecretUnavailable(LedgerError):
    """The secret is not set, or is no secret; the message names the cure, never the value."""

    code = "secret_unavailable"

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"secret {name!r}: {why}")


def read_secret(name: str) -> str:
    """The secret of this name, masked from now on. Raises SecretUnavailable."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise SecretUnavailable(name, "a name takes A-Z, 0-9 and _, a letter first")
    if name in _RESERVED or name.endswith("_FILE"):
        raise SecretUnavailable(name, "this name is reserved; choose another")
    variable = f"LONGWATCH_SECRET_{name}"
    value = os.environ.get(variable, "")
    if not value:
        file = os.environ.get(f"{variable}_FILE", "")
        if not file:
            raise SecretUnavailable(name, f"set {variable}, or {variable}_FILE to a file with it")
        try:
            value = Path(file).read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise SecretUnavailable(
                name, f"the file of {variable}_FILE can't be read ({error})"
            ) from None
    if len(value) < MIN_LENGTH:
        raise SecretUnavailable(
            name, f"has fewer than {MIN_LENGTH} characters, too few to be masked in texts"
        )
    hide_value(value)
    return value


def hide_value(value: str) -> None:
    """Mask `value` from now on: as it is, line by line, and as JSON, repr or an address has it."""
    global _pattern
    lines = [line for line in value.splitlines() if len(line) >= 2 * MIN_LENGTH]
    for part in (value, *lines):
        _forms.update({part, json.dumps(part)[1:-1], repr(part)[1:-1], quote(part, safe="")})
    # Longest first, so that a part never leaves the rest of the whole in the clear.
    _pattern = re.compile("|".join(map(re.escape, sorted(_forms, key=len, reverse=True))))


def mask_text(text: str) -> str:
    """`text` without any secret that this process handed out."""
    return _pattern.sub(MASK, text) if _pattern else text


def mask_start(text: str) -> str:
    """The same of the beginning of a longer text: without the end that a secret may go beyond."""
    if _pattern is None:
        return text
    end = max(0, len(text) - max(map(len, _forms)) + 1)
    for found in _pattern.finditer(text):
        if found.start() >= end:
            break
        end = max(end, found.end())
    return mask_text(text[:end])


def mask_json(value: Any) -> Any:
    """`value` with every string in it masked, keys too."""
    if _pattern is None:
        return value
    if isinstance(value, str):
        return mask_text(value)
    if isinstance(value, dict):
        return {mask_json(key): mask_json(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [mask_json(part) for part in value]
    return value
