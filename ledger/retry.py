"""How long a failed unit waits before it runs again."""

from __future__ import annotations

import random

MAX_BACKOFF_SECONDS = 300.0


def bound_backoff(failures: int) -> float:
    """The longest wait, in seconds, after `failures` failed attempts: min(300, 2^failures)."""
    # The exponent is bounded first: 2.0 ** 1100 overflows.
    return min(MAX_BACKOFF_SECONDS, 2.0 ** min(max(failures, 0), 16))


def draw_backoff(failures: int) -> float:
    """Seconds to wait after `failures` failed attempts, with full jitter.

    Uniform between 0 and the bound: a thousand tasks that failed in the same second come back
    spread over the whole window, not in phase (AWS Architecture Blog, "Exponential Backoff And
    Jitter").
    """
    return random.uniform(0.0, bound_backoff(failures))
