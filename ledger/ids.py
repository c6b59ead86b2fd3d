"""Ids: UUIDv7 (RFC 9562) from one monotonic generator per process, so that they sort by time.

Python has `uuid.uuid7` from 3.14 on; our floor is 3.12. The 12 bits of `rand_a` count within a
millisecond (RFC 9562, method 1), which keeps a batch of one process in the order it was made.
"""

from __future__ import annotations

import os
import threading
import time
import uuid

_lock = threading.Lock()
_last_ms = 0
_count = 0


def _renew_lock() -> None:
    # A fork while another thread holds the lock would leave it locked for ever in the child.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def make_id() -> uuid.UUID:
    """A new UUIDv7, greater than every one made before in this process."""
    global _last_ms, _count
    with _lock:
        now_ms = time.time_ns() // 1_000_000
        if now_ms > _last_ms:
            _last_ms, _count = now_ms, int.from_bytes(os.urandom(1)) << 2
        else:
            # Same millisecond, or the clock stepped back: count on, borrow from the future.
            _count += 1
            if _count > 0xFFF:
                _last_ms, _count = _last_ms + 1, 0
        stamp, count = _last_ms, _count
    tail = int.from_bytes(os.urandom(8)) & ((1 << 62) - 1)
    return uuid.UUID(int=(stamp << 80) | (0x7 << 76) | (count << 64) | (0b10 << 62) | tail)


def read_id(text: object) -> uuid.UUID | None:
    """The id that a text of somebody's holds, or None."""
    try:
        return uuid.UUID(str(text))
    except ValueError:
        return None
