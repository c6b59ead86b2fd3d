"""One JSON for both databases: what may be stored, its canonical bytes and its digest.

PostgreSQL refuses NUL, NaN and lone surrogates where SQLite stores them, so the stricter rule
holds everywhere and a value that one database takes is taken by the other.
"""

from __future__ import annotations

import hashlib
import json
import json.encoder
import math
from collections.abc import Callable
from typing import Any

from ledger.errors import Unserialisable

MAX_DEPTH = 64
"""Levels of nesting. Python's own limit moves with its version, ours does not."""

MAX_TEXT = 16_384
"""Characters of a text that a person did not write (errors, log tails, notes)."""


_encoder = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def _make_writer() -> Callable[[Any], str]:
    """What `encode` does, which makes its encoder in C anew for each value: half of the time that
    one of 200 bytes takes. What cycles, as a JSON value never does, is refused before."""
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return _encoder.encode
    quote = json.encoder.encode_basestring_ascii
    write = make(None, _encoder.default, quote, None, ":", ",", True, False, False)
    return lambda value: "".join(write(value, 0))


_encode = _make_writer()


def check_json(value: Any, path: str = "value") -> None:
    """Raise Unserialisable, naming the path, unless every part of `value` can be stored."""
    if not _is_plain(value, MAX_DEPTH):
        _check_part(value, path, 0)


def _is_plain(value: Any, depth: int) -> bool:
    """True for what surely can be stored, which is nearly everything, at an eighth of the cost of
    `_check_part`: two values are checked in every unit."""
    kind = type(value)
    if kind is str:
        return bool(value.isascii() and "\0" not in value)
    if kind is bool or value is None:
        return True
    if kind is int:
        return bool(-(2**63) <= value < 2**63)
    if kind is float:
        return math.isfinite(value)
    if depth < 1:
        return False
    if kind is dict:
        for key, part in value.items():  # a generator costs twice as much
            if type(key) is not str or not key.isascii() or "\0" in key:
                return False
            if not _is_plain(part, depth - 1):
                return False
        return True
    return kind is list and all(_is_plain(part, depth - 1) for part in value)


def _check_part(value: Any, path: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise Unserialisable(path, f"is nested deeper than {MAX_DEPTH} levels")
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        _check_text(value, path)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise Unserialisable(path, f"{value} is not a JSON number")
    elif isinstance(value, int):
        if abs(value) >= 10**1000:
            raise Unserialisable(path, "has more than 1,000 digits")
    elif isinstance(value, dict):
        for key, part in value.items():
            if not isinstance(key, str):
                raise Unserialisable(path, f"the key {key!r:.50} is not a string")
            _check_text(key, f"{path} (a key)")
            _check_part(part, f"{path}.{key[:50]}", depth + 1)
    elif isinstance(value, (list, tuple)):
        for position, part in enumerate(value):
            _check_part(part, f"{path}[{position}]", depth + 1)
    else:
        raise Unserialisable(path, f"a {type(value).__name__} is not JSON")


def _check_text(text: str, path: str) -> None:
    if "\x00" in text:
        raise Unserialisable(path, "contains a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Unserialisable(path, "contains a lone surrogate") from None


def copy_json(value: Any) -> Any:
    """A copy of a JSON value that shares nothing with it: a fifth of what `deepcopy` costs."""
    if isinstance(value, dict):
        return {key: copy_json(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [copy_json(part) for part in value]
    return value


def clean_json(value: Any, depth: int = MAX_DEPTH) -> Any:
    """`value`, which is JSON but for what a stranger put in it, as both databases store it: U+FFFD
    for NUL and lone surrogates, null for NaN, and a note in the place of what is nested deeper."""
    if _is_plain(value, depth):
        return value
    if isinstance(value, str):
        return (
            value.replace("\0", "\ufffd")
            .encode("utf-16", "surrogatepass")
            .decode("utf-16", "replace")
        )
    if isinstance(value, float):
        return None  # the finite ones are plain
    if isinstance(value, int):
        return value if abs(value) < 10**1000 else "[more than 1,000 digits]"
    if depth < 1:
        return "[nested too deep]"
    if isinstance(value, dict):
        return {clean_json(key): clean_json(part, depth - 1) for key, part in value.items()}
    return [clean_json(part, depth - 1) for part in value]


def dump_json(value: Any, path: str = "value") -> str:
    """The canonical text of `value`: keys sorted, no spaces, ASCII. Raises Unserialisable."""
    check_json(value, path)
    return _encode(value)


def write_checked(value: Any) -> str:
    """The same of a value whose parts were all checked, or come from the ledger."""
    return _encode(value)


def digest_json(value: Any) -> str:
    """SHA-256 (hex) of the canonical text: the same body gives the same digest."""
    return hashlib.sha256(dump_json(value).encode()).hexdigest()


def clean_text(value: object, limit: int = MAX_TEXT) -> str:
    """`value` as text that both databases store and a terminal survives, at most `limit` long.

    Never raises, whatever `__str__` does: this is the path on which errors are recorded.
    """
    try:
        text = value if isinstance(value, str) else str(value)
    except BaseException as error:
        text = f"<{name_type(value)} that can't be printed: {name_type(error)}>"
    if len(text) > limit:
        half = limit // 2 - 20
        text = f"{text[:half]} … {len(text) - 2 * half} characters … {text[-half:]}"
    text = text.replace("\x00", "\\x00")
    return text.encode("utf-8", "backslashreplace").decode()


def name_type(value: object) -> str:
    """The name of a value's type, past a metaclass that says otherwise, or raises."""
    return str(vars(type)["__name__"].__get__(type(value)))
