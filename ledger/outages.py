"""What keeps the database from its work, in words of our own, and a look whether anything does.

The driver's own words tell strangers host and user names; a person at a red light wants the cause.
"""

from __future__ import annotations

import logging
import random

from django.db import DatabaseError, InterfaceError, connection

from ledger.canonical import clean_text
from ledger.sql import turns

LOCK_SECONDS = 1.0
"""How long a look waits for SQLite's lock; workers hold it for milliseconds."""

SILENT = "the database does not answer"
LOCKED = "the database is locked by another program"
READ_ONLY = "the database is read-only"

_NAMES = (
    (("53300", "too many", "remaining connection slots"), "database connections exhausted"),
    (("25006", "readonly database", "read-only transaction"), READ_ONLY),
    (("55P03", "database is locked", "table is locked", "lock timeout"), LOCKED),
    (("57014", "statement timeout"), "the database is too slow"),
    (("53100", "disk is full", "no space left"), "the disk of the database is full"),
    (("57P03", "starting up", "shutting down", "in recovery"), "the database is starting"),
    (("28P01", "28000", "authentication failed"), "the database refuses the product's user"),
    (("42P01", "no such table", "does not exist"),
     "the database has no ledger; run manage.py migrate"),
    (("unable to open", "disk i/o", "malformed", "not a database"),
     "the database file can't be read"),
)  # fmt: skip
"""SQLSTATEs and words of the drivers, and what they mean. The first that fits counts."""

log = logging.getLogger(__name__)


def name_trouble(error: BaseException) -> str:
    """The cause that a driver's error stands for."""
    state = getattr(error.__cause__, "sqlstate", None)
    text = str(error).lower()
    for signs, name in _NAMES:
        if any(sign == state or sign in text for sign in signs):
            return name
    return SILENT


def find_troubles(*, writes: bool) -> list[str]:
    """Why the ledger can't be read, or with `writes` can't be written; empty when it can."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM longwatch_task LIMIT 1")
        if writes and not _can_write():
            return [READ_ONLY]
        return []
    except (DatabaseError, InterfaceError) as error:
        log.warning("the database does not serve us: %s", clean_text(error, 500))
        if not connection.in_atomic_block:
            connection.close()
        return [name_trouble(error)]


def draw_retry_after() -> str:
    """Seconds after which a client may ask again; not the same for all of them."""
    return str(random.randint(2, 6))


def _can_write() -> bool:
    """False for a server that takes reads only. Raises what keeps a file from being written."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SHOW transaction_read_only")
            return bool(cursor.fetchone()[0] == "off")
    if not connection.in_atomic_block:
        turns.probe_lock(LOCK_SECONDS)
    return True
