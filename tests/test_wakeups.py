"""An idle worker is woken by what concerns it, and only waits as long as it may."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import wait as wait_readable
from pathlib import Path

import psycopg
import pytest
from django.db import connection

from ledger import sql, wakeups
from ledger.cluster.pipes import Flag
from ledger.models import Task
from ledger.wakeups import Waiter
from ledger.workflows import registered
from tests.factories import LEASE, claim, make_unit, make_workflow, submit

LONG = 60.0


def idle_in_time(waiter: Waiter) -> bool:
    """Wait up to LONG; whether something ended it sooner."""
    begun = time.monotonic()
    woken = waiter.idle(LONG)
    in_time = time.monotonic() - begun < LONG / 2
    assert woken or waiter._stop() or not in_time
    return in_time


@pytest.fixture
def waiter(transactional_db: None) -> Iterator[Waiter]:
    """One that has nothing left to look for. Its cluster's socket is bound on SQLite."""
    wakeups.open_channel()
    waiter = Waiter(stop=lambda: False)
    waiter.idle(LONG)  # SQLite: the first look; PostgreSQL: after LISTEN look once more
    yield waiter
    waiter.close()
    wakeups.close_channel()


@pytest.mark.both_databases
def test_the_first_wait_ends_at_once(waiter: Waiter) -> None:
    """What came before we listened has to be looked for."""
    another = Waiter(stop=lambda: False)
    assert idle_in_time(another)
    another.close()


@pytest.mark.postgresql
def test_who_has_turned_away_hears_nothing_and_then_looks_for_what_it_missed(
    waiter: Waiter,
) -> None:
    """A listening session runs a transaction for each notification."""

    def list_channels() -> list[str]:
        assert waiter._listener is not None
        with waiter._listener.cursor() as cursor:
            cursor.execute("SELECT pg_listening_channels()")
            return [name for (name,) in cursor.fetchall()]

    assert list_channels() == [wakeups.CHANNEL]
    waiter.turn_away()
    assert list_channels() == []
    sql.wake_workers()
    assert idle_in_time(waiter)
    assert list_channels() == [wakeups.CHANNEL]
    assert not waiter.idle(0.3)
    sql.wake_workers()
    assert idle_in_time(waiter)


@pytest.mark.both_databases
def test_a_wait_without_news_lasts_as_long_as_asked(waiter: Waiter) -> None:
    begun = time.monotonic()
    assert not waiter.idle(0.6)
    assert 0.6 <= time.monotonic() - begun < LONG


@pytest.mark.both_databases
def test_a_stop_ends_the_wait(transactional_db: None) -> None:
    stop = threading.Event()
    waiter = Waiter(stop=stop.is_set)
    waiter.idle(LONG)
    threading.Timer(0.2, stop.set).start()
    assert idle_in_time(waiter)
    waiter.close()


@pytest.mark.both_databases
def test_a_file_tells_of_a_stop(transactional_db: None) -> None:
    """At once on PostgreSQL, where nothing else has to be looked at meanwhile."""
    flag = Flag()
    waiter = Waiter(flag.is_set, [flag.fileno()])
    waiter.idle(LONG)
    threading.Timer(0.2, flag.set).start()
    begun = time.monotonic()
    assert not waiter.idle(LONG)
    assert time.monotonic() - begun < LONG / 2
    waiter.close()


def test_a_nudge_wakes_it(waiter: Waiter) -> None:
    wakeups.nudge()
    assert idle_in_time(waiter)


def test_a_nudge_while_it_works_is_kept_for_it(waiter: Waiter) -> None:
    for _ in range(1000):  # more than any queue holds: it must not block
        wakeups.nudge()
    assert idle_in_time(waiter)


def test_a_nudge_wakes_one_worker_of_each_cluster(waiter: Waiter) -> None:
    first, wakeups._channel = wakeups._channel, None
    wakeups.open_channel()
    second, wakeups._channel = wakeups._channel, first
    assert first is not None
    assert second is not None
    with second:
        wakeups.nudge()
        assert first.recv(1) == second.recv(1) == b"!"
        with pytest.raises(BlockingIOError):
            first.recv(1)


def test_nobody_listens_and_nobody_minds(transactional_db: None) -> None:
    wakeups.nudge()


def test_databases_do_not_meet(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a")
    one = wakeups.derive_addresses(str(tmp_path / "a"))
    assert len(set(one)) == wakeups.SLOTS
    assert set(one).isdisjoint(wakeups.derive_addresses(str(tmp_path / "b")))
    assert wakeups.derive_addresses(str(tmp_path / "link")) == one
    assert wakeups.derive_addresses("file:x?mode=memory&cache=shared") == ()


def test_a_write_without_a_nudge_is_seen(waiter: Waiter) -> None:
    """By another program, in another container: no datagram comes from there."""
    other = sqlite3.connect(connection.settings_dict["NAME"], autocommit=True)
    other.execute("CREATE TABLE elsewhere (id INTEGER)")
    other.execute("DROP TABLE elsewhere")
    other.close()
    assert idle_in_time(waiter)


@pytest.mark.postgresql
def test_a_notification_wakes_it(waiter: Waiter) -> None:
    with connection.cursor() as cursor:
        cursor.execute("NOTIFY longwatch")
    assert idle_in_time(waiter)
    begun = time.monotonic()
    waiter.idle(0.3)
    assert time.monotonic() - begun >= 0.3  # once


@pytest.mark.postgresql
def test_a_broken_connection_is_replaced(waiter: Waiter) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
        )
        assert cursor.rowcount == 1
    assert waiter._listener is not None
    assert wait_readable([waiter._listener.connection.fileno()], LONG)
    waiter.idle(0.3)  # logged and waited out, not raised
    assert idle_in_time(waiter)  # listens again, so look once more
    with connection.cursor() as cursor:
        cursor.execute("NOTIFY longwatch")
    assert idle_in_time(waiter)


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_a_task_that_stays_with_its_worker_wakes_nobody(database_url: str) -> None:
    """PostgreSQL commits one transaction with a NOTIFY at a time: a unit has none."""
    flow = make_workflow()
    with registered(flow), psycopg.connect(database_url, autocommit=True) as outside:
        outside.execute("LISTEN longwatch")

        def count_news() -> int:
            return len(list(outside.notifies(timeout=0.1)))

        submit(flow)
        assert count_news() == 1
        held = claim(flow)
        for groups in (None, []):  # within its slice, and after a look at who else waits
            settled = sql.checkpoint_unit(
                held, make_unit(held, flow), lease_seconds=LEASE, groups=groups
            )
            assert settled is not None
            assert settled.kept_fence == held.fence + 1
            held = sql.read_task(Task.objects.get())
        assert count_news() == 0
