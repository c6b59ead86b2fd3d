"""An exception as the ledger stores it: whatever it is, it comes out as text that can be kept."""

from __future__ import annotations

import hashlib
import traceback
from typing import TYPE_CHECKING, Any

from ledger import secrets
from ledger.canonical import clean_text, name_type

if TYPE_CHECKING:
    from ledger.sql import Claimed

MAX_FRAMES = 20

LONGEST = {"type": 200, "message": 4_000, "fingerprint": 16, "traceback": 8_000}

OURS = ("/ledger/runner.py", "/ledger/isolated.py")


class RemoteFailure(Exception):
    """An exception of an isolated step's process, as the text that `describe_error` made there."""

    def __init__(self, told: dict[str, Any]) -> None:
        super().__init__(str(told.get("message", "")))
        self.told = told


def describe_failure(error: BaseException, held: Claimed) -> dict[str, Any]:
    """`{type, message, step, turn, attempt, fingerprint, traceback}` of a failed attempt."""
    unit = {"step": held.step_name, "turn": held.turn, "attempt": held.attempts}
    return describe_error(error) | unit


def describe_error(error: BaseException) -> dict[str, Any]:
    """`{type, message, fingerprint, traceback}` of an exception, secrets masked.

    Never raises: `__str__` may raise, hold NULs or be 50 MB long. The fingerprint groups failures
    of one kind: the type and the innermost frames, without the message, which may hold ids.
    """
    if isinstance(error, RemoteFailure):
        return {
            name: secrets.mask_text(clean_text(error.told.get(name, ""), limit))
            for name, limit in LONGEST.items()
        }
    kind = name_type(error)
    frames = _list_frames(error)
    places = [f"{frame.filename.rsplit('/', 1)[-1]}:{frame.name}" for frame in frames[-3:]]
    fingerprint = hashlib.sha256("|".join([kind, *places]).encode("utf-8", "replace")).hexdigest()
    trace = "".join(traceback.format_list(frames))
    return {
        "type": clean_text(kind, LONGEST["type"]),
        "message": secrets.mask_text(clean_text(error, LONGEST["message"])),
        "fingerprint": fingerprint[: LONGEST["fingerprint"]],
        "traceback": secrets.mask_text(clean_text(trace, LONGEST["traceback"])),
    }


def _list_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The innermost frames of the exception itself; its causes may be cyclic or endless."""
    try:
        frames = traceback.extract_tb(error.__traceback__, limit=-MAX_FRAMES)
    except Exception:
        return []
    return [f for f in frames if not f.filename.endswith(OURS)]
