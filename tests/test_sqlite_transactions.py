"""On SQLite the ledger's transactions wait for the one lock as its hot statements do.

By SQLite's own waiting a click beside two busy workers took 1.4 s at the median and 3.4 s at times.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from threading import Timer
from typing import Any

import pytest
from django.db import OperationalError, connection

from ledger import conf, sql
from ledger.models import Blob
from ledger.sweeper import Sweeper
from ledger.transitions import sweeps
from tests.crash.cluster_kit import wait_for
from tests.factories import OWNER, make_workflow, submit

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
    Timer(0.2, outside.execute, args=["COMMIT"]).start()
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


@pytest.mark.case(34)
def test_a_lease_that_ended_while_the_lock_was_held_is_its_holders(
    outside: sqlite3.Connection, settings: Any
) -> None:
    """Who waited for the lock as the holder did knows nothing of the holder."""
    outside.execute("ROLLBACK")
    settings.LONGWATCH_HEARTBEAT_SECONDS = 0.1
    settings.LONGWATCH_LEASE_SECONDS = 0.6
    flow = make_workflow()
    task = submit(flow)
    held = sql.claim_task(OWNER, [("default", flow.name, flow.version)], 0.6)
    assert held is not None
    sweeper = Sweeper(conf.load())
    sweeper.tick()
    outside.execute("BEGIN IMMEDIATE")
    Timer(1.2, outside.execute, args=["COMMIT"]).start()
    wait_for("the lease is over", lambda: sweeps.find_expired(0.6))
    sweeper._contact_since, sweeper._next_due = -1000.0, 0.0
    with pytest.raises(OperationalError, match="late"):
        sweeper.tick()
    assert sweeper._contact_since is None, "it waits for two heartbeats from now"
    assert sql.beat_leases(OWNER, [held.lease], 60), "the holder is faster"
    task.refresh_from_db()
    assert (task.status, task.reclaims) == ("running", 0)
