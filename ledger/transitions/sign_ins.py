"""Tries to sign in, counted in the audit log: so many for one name from one address, then a wait.

Counted by name and address together, so that nobody can lock somebody else out. What is kept is a
digest of both: people type passwords into the field for names.
"""

from __future__ import annotations

import hashlib

from ledger import clock
from ledger.auditing import write_entry
from ledger.errors import LedgerError
from ledger.events import Actor
from ledger.models import AuditEntry

MAX_TRIES = 5
WINDOW_SECONDS = 600
TRY, DONE = "sign_in_try", "sign_in"
NOBODY = "anonymous"


class TooManyTries(LedgerError):
    """Every try of the window is used up, right password or not."""

    code = "too_many_tries"
    status = 429

    def __init__(self, wait: float) -> None:
        self.wait = max(1, round(wait))
        minutes = -(-self.wait // 60)
        span = f"{minutes} minute{'s' if minutes > 1 else ''}" if self.wait >= 60 else "a minute"
        super().__init__(f"Too many tries with this name. Wait {span}, then try again.")


def begin_try(name: str, address: str) -> int:
    """Count a try before the password is looked at, and return how many are left after it.

    The try is on record before it is counted, so that tries sent at once don't overlook each
    other. Raises TooManyTries; a refused try is not counted, the wait doesn't grow.
    """
    key = _digest(name, address)
    _check_tries(key, MAX_TRIES - 1)
    write_entry(NOBODY, TRY, key, at=clock.read(), allowed=False, address=address)
    return MAX_TRIES - _check_tries(key, MAX_TRIES)


def end_tries(name: str, address: str, actor: Actor) -> None:
    """The password was right: the tries before count no more."""
    write_entry(actor, DONE, _digest(name, address), at=clock.read(), address=address)


def _check_tries(key: str, most: int) -> int:
    """How many tries count now. Raises TooManyTries for more than `most`."""
    entries = AuditEntry.objects.filter(target=key, at__gt=clock.now(-WINDOW_SECONDS))
    done = entries.filter(action=DONE).order_by("-id").values_list("id", flat=True).first() or 0
    times = list(
        entries.filter(action=TRY, id__gt=done).order_by("-id").values_list("at", flat=True)
    )
    if len(times) > most:
        # Free again when the try that used up the last place leaves the window.
        oldest = times[MAX_TRIES - 1] if len(times) >= MAX_TRIES else times[-1]
        raise TooManyTries(WINDOW_SECONDS - (clock.read() - oldest).total_seconds())
    return len(times)


def _digest(name: str, address: str) -> str:
    return hashlib.sha256(f"{name.strip().casefold()}\0{address}".encode()).hexdigest()
