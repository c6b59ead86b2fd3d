"""What keeps the database from its work is named in words that tell strangers nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from django.db import OperationalError, connection
from django.test import Client

from harness_site import env
from ledger import outages
from tests.dashboard.conftest import PART, PASSWORD, make_user


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ('connection failed: FATAL: sorry, too many clients already, host "db.secret"',
         "database connections exhausted"),
        ("FATAL: remaining connection slots are reserved", "database connections exhausted"),
        ("no such table: longwatch_task", "the database has no ledger; run manage.py migrate"),
        ("could not translate host name", "the database does not answer"),
        ("cannot execute INSERT in a read-only transaction", "the database is read-only"),
        ("attempt to write a readonly database", "the database is read-only"),
        ("database or disk is full", "the disk of the database is full"),
        ("FATAL: the database system is starting up", "the database is starting"),
        ('FATAL: password authentication failed for user "root"',
         "the database refuses the product's user"),
        ("database is locked", "the database is locked by another program"),
        ("canceling statement due to lock timeout", "the database is locked by another program"),
        ("canceling statement due to statement timeout", "the database is too slow"),
        ("unable to open database file", "the database file can't be read"),
    ],
)  # fmt: skip
def test_the_drivers_words_stay_inside(message: str, reason: str) -> None:
    assert outages.name_trouble(OperationalError(message)) == reason


@pytest.fixture
def locker(transactional_db: None) -> Iterator[sqlite3.Connection]:
    """Another program that holds the write lock of the file."""
    made = sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None)
    made.execute("BEGIN IMMEDIATE")
    yield made
    made.close()


def read_timeout() -> int:
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA busy_timeout")
        return int(cursor.fetchone()[0])


@pytest.mark.case(34)
def test_health_is_red_while_another_program_holds_the_lock(
    locker: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outages, "LOCK_SECONDS", 0.2)
    before = read_timeout()
    assert Client().get("/readyz").status_code == 200, "it can be read"
    answer = Client().get("/healthz")
    assert answer.status_code == 503
    assert answer.json()["reasons"] == ["the database is locked by another program"]
    locker.execute("ROLLBACK")
    assert Client().get("/healthz").json()["reasons"] == ["no worker beats"]
    assert read_timeout() == before, "others on this connection are as patient as ever"


def test_a_file_that_takes_no_writes_is_named(transactional_db: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA query_only = 1")
    try:
        assert outages.find_troubles(writes=True) == ["the database is read-only"]
    finally:
        connection.close()


@pytest.mark.case(34)
def test_a_page_that_meets_the_lock_is_a_503_in_words(
    locker: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patience has an end; then the page says what is wrong, and a part of a page stays."""
    locker.execute("ROLLBACK")
    browser = Client(raise_request_exception=False)
    browser.force_login(make_user("operator"))
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "timeout", 0.1)
    connection.close()
    locker.execute("BEGIN IMMEDIATE")
    for path, headers in (("/login/", {}), ("/logout/", {}), ("/logout/", PART)):
        answer = browser.post(path, {"username": "somebody", "password": PASSWORD}, headers=headers)
        assert answer.status_code == 503, (path, answer.content[:300])
        assert int(answer["Retry-After"])
        text = answer.content.decode()
        if headers:
            assert (text, answer["HX-Reswap"]) == ("", "none")
        else:
            assert "locked by another program" in text
            assert "Traceback" not in text
    connection.close()


@pytest.mark.case(28)
def test_every_wait_for_the_server_has_an_end() -> None:
    """A peer that is gone without a word, a lock that is kept, a statement that does not end."""
    place = env.parse_database("postgresql://longwatch@db.example/longwatch", Path("/"))
    bounds = place["OPTIONS"]
    silent = bounds["keepalives_idle"] + bounds["keepalives_interval"] * bounds["keepalives_count"]
    assert bounds["keepalives"] == 1
    assert max(silent, bounds["tcp_user_timeout"] / 1000, bounds["connect_timeout"]) <= 30
    assert "lock_timeout=" in bounds["options"]
    assert "statement_timeout=" in bounds["options"]


@pytest.mark.case(28)
def test_the_address_may_set_other_bounds() -> None:
    url = "postgresql://longwatch@db.example/longwatch?tcp_user_timeout=3000&options=-c%20a=b"
    bounds = env.parse_database(url, Path("/"))["OPTIONS"]
    assert (bounds["tcp_user_timeout"], bounds["options"]) == ("3000", "-c a=b")
    assert bounds["connect_timeout"] == 10


@pytest.mark.case(28)
@pytest.mark.postgresql
def test_a_lock_that_is_kept_refuses_a_click_in_words(
    transactional_db: None, database_url: str
) -> None:
    with psycopg.connect(database_url) as other, connection.cursor() as cursor:
        other.execute("LOCK TABLE longwatch_task")
        cursor.execute("SET lock_timeout = '100ms'")
        answer = Client().get("/healthz")
    assert answer.json()["reasons"] == ["the database is locked by another program"]
    connection.close()
