"""SQLite's one write lock is waited for in short looks, so that nobody starves."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.sql import turns
from ledger.sql.turns import begin, end_turn

PATIENCE = 30.0


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that holds the lock, for a thread of its own to let go."""
    made = connect(tmp_path)
    made.execute("PRAGMA journal_mode = WAL")
    made.execute("CREATE TABLE taken (by TEXT)")
    made.execute("BEGIN IMMEDIATE")
    yield made
    made.close()


def connect(folder: Path) -> sqlite3.Connection:
    return sqlite3.connect(
        folder / "lock.sqlite3", isolation_level=None, timeout=PATIENCE, check_same_thread=False
    )


def read_timeout(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA busy_timeout").fetchone()[0])


def test_the_lock_is_taken_once_it_is_free(holder: sqlite3.Connection, tmp_path: Path) -> None:
    waiter = connect(tmp_path)
    threading.Timer(0.2, holder.execute, args=["COMMIT"]).start()
    began = time.monotonic()
    begin(waiter, PATIENCE)
    assert 0.1 < time.monotonic() - began < PATIENCE
    assert waiter.in_transaction
    waiter.execute("COMMIT")
    end_turn(waiter, PATIENCE)
    assert read_timeout(waiter) == PATIENCE * 1000, "Django's own statements wait as they did"
    waiter.close()


def test_patience_ends(holder: sqlite3.Connection, tmp_path: Path) -> None:
    waiter = connect(tmp_path)
    with pytest.raises(sqlite3.OperationalError, match="database is locked"):
        begin(waiter, 0.1)
    assert not waiter.in_transaction
    assert read_timeout(waiter) == 100
    waiter.close()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a cluster, where whoever has the lock says when he lets it go."""
    monkeypatch.setattr(turns, "_freed", None)
    turns.share_turns()


@pytest.mark.usefixtures("told")
def test_within_a_cluster_a_waiter_is_told(
    holder: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "TOLD_LOOK_SECONDS", PATIENCE)
    waiter = connect(tmp_path)
    end_turn(waiter, PATIENCE)  # of long ago: one look more, and no other harm

    def let_go() -> None:
        holder.execute("COMMIT")
        end_turn(holder, PATIENCE)

    threading.Timer(0.2, let_go).start()
    began = time.monotonic()
    begin(waiter, PATIENCE)
    assert 0.1 < time.monotonic() - began < PATIENCE / 2
    waiter.close()


@pytest.mark.usefixtures("told")
def test_who_is_not_told_looks_all_the_same(holder: sqlite3.Connection, tmp_path: Path) -> None:
    """The lock was another program's, or whoever had it was killed before he could say so."""
    test_the_lock_is_taken_once_it_is_free(holder, tmp_path)


@pytest.mark.parametrize("shared", [True, False], ids=["a cluster", "strangers"])
def test_two_busy_writers_share_the_lock(
    holder: sqlite3.Connection, tmp_path: Path, request: pytest.FixtureRequest, shared: bool
) -> None:
    """Each wants it nearly always; by SQLite's own waiting one gets a tenth now and then."""
    if shared:
        request.getfixturevalue("told")
    holder.execute("COMMIT")
    turns_had: list[str] = []

    def write(name: str) -> None:
        own = connect(tmp_path)
        while len(turns_had) < 300:
            begin(own, PATIENCE)
            own.execute("INSERT INTO taken VALUES (?)", [name])
            time.sleep(0.002)
            own.execute("COMMIT")
            end_turn(own, PATIENCE)
            turns_had.append(name)
            time.sleep(0.0003)
        own.close()

    threads = [threading.Thread(target=write, args=[name]) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert min(turns_had.count("a"), turns_had.count("b")) > 75


def test_a_turn_ends_of_a_connection_that_was_closed_meanwhile(tmp_path: Path) -> None:
    """As Django closes one whose rollback fails: no second error hides the first."""
    own = connect(tmp_path)
    begin(own, PATIENCE)
    own.close()
    end_turn(own, PATIENCE)
    with pytest.raises(sqlite3.ProgrammingError):
        read_timeout(own)
