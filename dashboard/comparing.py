"""Two versions of an artifact as one unified diff, within bounds."""

from __future__ import annotations

import difflib
import functools
from typing import Any

from ledger import corruption
from ledger.blobs import CorruptArtifact
from ledger.errors import StoreUnavailable

MAX_BYTES = 512 * 1024

MAX_LINES = 2_000
"""Of each version. Lines that repeat are cubic to compare: 0.3 s at this length, 6 s at 5,000."""

LOST = "its bytes can't be read"
ENDLESS = "\n\\ No newline at end of file\n"


def compare(old: dict[str, Any], new: dict[str, Any]) -> tuple[str, str]:
    """The diff of two artifacts `{sha256, size, …}`, and why there is none (LOST, or a reason)."""
    if max(old["size"], new["size"]) > MAX_BYTES:
        return "", "they are too large"
    try:
        return _compare_bytes(old["sha256"], new["sha256"])
    except (CorruptArtifact, StoreUnavailable):
        return "", LOST


@functools.lru_cache(maxsize=64)
def _compare_bytes(old: str, new: str) -> tuple[str, str]:
    """By digest, so what is kept can't be of other bytes."""
    try:
        before, after = _read_lines(old), _read_lines(new)
    except UnicodeDecodeError:
        return "", "they are no text"
    if max(len(before), len(after)) > MAX_LINES:
        return "", "they are too long"
    lines = difflib.unified_diff(before, after, "before", "after")
    diff = "".join(line if line.endswith("\n") else line + ENDLESS for line in lines)
    return diff, "" if diff else "their bytes are the same"


def _read_lines(digest: str) -> list[str]:
    """Lines that end in a line feed alone: what else looks like an end is a part of the line."""
    with corruption.open_stored(digest) as file:
        text = file.read().decode()
    if "\0" in text:
        raise UnicodeDecodeError("utf-8", b"\0", 0, 1, "NUL")
    *lines, last = text.split("\n")
    return [line + "\n" for line in lines] + ([last] if last else [])
