"""On SQLite the ledger's transactions wait for the one lock as its hot statements do.

By SQLite's own waiting a click beside two busy workers took 1.4 s at the median and 3.4 s at times.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator

import pytest
from django.db import OperationalError, connection

from ledger import sql
from ledger.models import Blob

PATIENCE = 30.0


@pytest.fixture
def outside(transactional_db: None) -> Iterator[sqlite3.Connection]:
    """Somebody else's connection to the ledger's file; it holds the lock."""
    name = connection.settings_dict["NAME"]
    made = sqlite3.connect(name, isolation_level=None, check_same_thread=False)
    made.execute("BEGIN IMMEDIATE")
    yield made
    made.close()


def read_timeout() -> int:
    return int(connection.connection.execute("PRAGMA busy_timeout").fetchone()[0])


def test_it_begins_once_the_lock_is_free(outside: sqlite3.Connection) -> None:
    threading.Timer(0.2, outside.execute, args=["COMMIT"]).start()
    began = time.monotonic()
    with sql.atomic():
        assert 0.1 < time.monotonic() - began < PATIENCE
        assert connection.in_atomic_block
        with sql.atomic():
            assert len(connection.savepoint_ids) == 1
    assert not connection.in_atomic_block
    assert read_timeout() == PATIENCE * 1000, "statements outside of it wait as they did"


def test_it_gives_up_after_its_patience_and_leaves_the_connection_usable(
    outside: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "timeout", 0.1)
    block = sql.atomic()
    with pytest.raises(OperationalError, match="locked"):
        block.__enter__()
    assert not connection.in_atomic_block
    assert Blob.objects.count() == 0
    outside.execute("ROLLBACK")
    with sql.atomic():
        assert connection.in_atomic_block
