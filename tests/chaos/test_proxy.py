"""The line between: what it cuts is committed, and the client can't know."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from ledger.sql import postgresql
from tests.chaos import wire
from tests.chaos.proxy import Proxy
from tests.crash.cluster_kit import wait_for
from tests.pg import Cluster

pytestmark = pytest.mark.postgresql


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    with Cluster() as server:
        yield server


@pytest.fixture
def proxy(server: Cluster) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy, psycopg.connect(server.url, autocommit=True) as direct:
        direct.execute("DROP TABLE IF EXISTS note")
        direct.execute("CREATE TABLE note (word text)")
        yield proxy


def connect(proxy: Proxy, **options: Any) -> psycopg.Connection[Any]:
    url = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?sslmode=disable"
    return psycopg.connect(url, gssencmode="disable", **options)


def read_words(server: Cluster) -> list[str]:
    with psycopg.connect(server.url) as direct:
        return [word for (word,) in direct.execute("SELECT word FROM note ORDER BY word")]


@pytest.mark.parametrize("prepare", [False, True])
def test_a_statement_is_committed_and_its_answer_swallowed(
    server: Cluster, proxy: Proxy, prepare: bool
) -> None:
    with connect(proxy, autocommit=True) as client:
        client.prepare_threshold = 0 if prepare else None
        client.execute("INSERT INTO note VALUES (%s)", ["one"])
        client.execute("INSERT INTO note VALUES (%s)", ["two"])
        proxy.arm("write")
        client.execute("SELECT count(*) FROM note")
        assert proxy.is_armed(), "a read commits nothing"
        with pytest.raises(psycopg.OperationalError):
            client.execute("INSERT INTO note VALUES (%s)", ["three"])
    assert read_words(server) == ["one", "three", "two"]
    assert dict(proxy.cuts) == {"write": 1}


def test_a_commit_is_cut_and_not_what_leads_to_it(server: Cluster, proxy: Proxy) -> None:
    with connect(proxy) as client:
        proxy.arm("")
        client.execute("INSERT INTO note VALUES ('in a transaction')")
        client.execute("UPDATE note SET word = upper(word)")
        with pytest.raises(psycopg.OperationalError):
            client.commit()
        assert client.closed
    assert read_words(server) == ["IN A TRANSACTION"]
    assert dict(proxy.cuts) == {"commit": 1}


def test_a_refused_write_is_answered(proxy: Proxy) -> None:
    with connect(proxy, autocommit=True) as client:
        proxy.arm("write")
        with pytest.raises(psycopg.errors.UndefinedTable):
            client.execute("INSERT INTO nowhere VALUES (1)")
        wait_for("it is armed again", proxy.is_armed)
        assert not proxy.cuts


def test_it_drops_and_stalls(proxy: Proxy) -> None:
    with connect(proxy, autocommit=True) as client:
        proxy.drop()
        with pytest.raises(psycopg.OperationalError):
            wait_for("the session is gone", lambda: client.execute("SELECT 1") and None)
    with connect(proxy, autocommit=True) as client, ThreadPoolExecutor(1) as pool:
        proxy.stall()
        asked = pool.submit(lambda: client.execute("SELECT 1").fetchone())
        with pytest.raises(TimeoutError):
            asked.result(0.3)
        proxy.flow()
        assert asked.result(30) == (1,)


def test_the_products_own_statements_are_known() -> None:
    texts = [
        (postgresql._write(name, 0.0)[0], label)
        for name, label in (
            ("yield", "settle"), ("finish", "settle"), ("keep", "keep"), ("claim", "claim"),
            ("beat", "beat"), ("groups", None),
        )
    ]  # fmt: skip
    texts.append((postgresql._write_insert(frozenset({"id"}), 0.0)[0], "submit"))
    for text, label in texts:
        talk = wire.Conversation()
        parse = b"P\0\0\0\0s1\0" + text.encode() + b"\0\0\0"
        assert talk.read_request(parse) is None
        assert talk.read_request(b"B\0\0\0\0\0s1\0\0\0") is None
        assert talk.read_request(b"S\0\0\0\4") == label
        assert talk.read_request(b"S\0\0\0\4") is None, "nothing was bound since"
