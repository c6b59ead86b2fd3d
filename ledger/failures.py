"""An exception as the ledger stores it: whatever it is, it comes out as text that can be kept."""

from __future__ import annotations

import hashlib
import traceback
from typing import Any

from ledger import secrets
from ledger.canonical import clean_text, name_type
from ledger.sql import Claimed

MAX_FRAMES = 20


def describe_failure(error: BaseException, held: Claimed) -> dict[str, Any]:
    """`{type, message, step, turn, attempt, fingerprint, traceback}` of a failed attempt.

    Never raises: `__str__` may raise, hold NULs or be 50 MB long. The fingerprint groups failures
    of one kind: the type and the innermost frames, without the message, which may hold ids.
    """
    kind = name_type(error)
    frames = _list_frames(error)
    places = [f"{frame.filename.rsplit('/', 1)[-1]}:{frame.name}" for frame in frames[-3:]]
    fingerprint = hashlib.sha256("|".join([kind, *places]).encode("utf-8", "replace")).hexdigest()
    trace = "".join(traceback.format_list(frames))
    return {
        "type": clean_text(kind, 200),
        "message": secrets.mask_text(clean_text(error, 4_000)),
        "step": held.step_name,
        "turn": held.turn,
        "attempt": held.attempts,
        "fingerprint": fingerprint[:16],
        "traceback": secrets.mask_text(clean_text(trace, 8_000)),
    }


def _list_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The innermost frames of the exception itself; its causes may be cyclic or endless."""
    try:
        frames = traceback.extract_tb(error.__traceback__, limit=-MAX_FRAMES)
    except Exception:
        return []
    return [f for f in frames if "/ledger/runner.py" not in f.filename]
