"""SQLite's WAL: a reader that stays lets it grow; the product is no such reader, and it shrinks."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness_site import env
from tests.commands.conftest import Product
from tests.crash.cluster_kit import wait_for
from tests.outages.conftest import make_env
from tests.outages.kit import Client, count_attempts, make_token

pytestmark = [pytest.mark.case(35), pytest.mark.timeout(180)]

LIMIT = 16 << 20


def connect(file: Path) -> sqlite3.Connection:
    """As the product connects."""
    made = sqlite3.connect(file, isolation_level=None)
    for command in str(env.SQLITE_OPTIONS["init_command"]).split(";"):
        made.execute(command)
    return made


def test_the_wal_shrinks_once_a_long_reader_has_gone(tmp_path: Path) -> None:
    file = tmp_path / "ledger.sqlite3"
    wal = tmp_path / "ledger.sqlite3-wal"
    with contextlib.closing(connect(file)) as writer, contextlib.closing(connect(file)) as reader:
        writer.execute("PRAGMA synchronous = OFF")  # the disk is not what is tried here
        writer.execute("CREATE TABLE kept (text)")
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM kept").fetchall()
        for _ in range(40):
            writer.execute("INSERT INTO kept VALUES (?)", ["x" * 600_000])
        assert wal.stat().st_size > LIMIT + 1_000_000, "it has grown meanwhile"
        reader.execute("COMMIT")
        for _ in range(3):
            writer.execute("INSERT INTO kept VALUES ('a little')")
        assert wal.stat().st_size <= LIMIT


@pytest.fixture
def product(tmp_path: Path) -> Iterator[tuple[Product, Client]]:
    """The product on a file, with a token."""
    environment = make_env(f"sqlite:///{tmp_path / 'ledger.sqlite3'}", tmp_path / "var")
    made = Product(environment, tmp_path / "up.log", "--workers", "2", "--no-demo")
    try:
        made.wait_until_ready()
        client = Client(made.url, token=make_token(environment))
        client.wait_until_healthy()
        yield made, client
        assert made.stop() == 0
    finally:
        made.close()


def test_the_product_holds_no_reader_while_it_works_waits_and_sends(
    product: tuple[Product, Client], tmp_path: Path
) -> None:
    """A unit at work, a long poll and a download half read: the whole WAL can be put away."""
    made, client = product
    sink = tmp_path / "sink"
    sink.touch()
    task = client.submit(sink, "long", seconds=600, turns=1).json
    wait_for("the unit is at work", lambda: count_attempts(sink, task["id"]))
    shown = client.ask(f"/api/v1/tasks/{task['id']}").json
    poll = f"/api/v1/tasks/{task['id']}?wait=60&revision={shown['revision']}"
    threading.Thread(target=client.ask, args=[poll], daemon=True).start()
    upload = urllib.request.Request(
        f"{made.url}/api/v1/artifacts?name=large", b"x" * 30_000_000, client.headers, method="POST"
    )
    with urllib.request.urlopen(upload, timeout=60) as answer:
        artifact = json.load(answer)["id"]
    content = f"{made.url}/api/v1/artifacts/{artifact}/content"
    with (
        urllib.request.urlopen(urllib.request.Request(content, headers=client.headers)) as download,
        contextlib.closing(connect(tmp_path / "ledger.sqlite3")) as outside,
    ):
        assert len(download.read(1000)) == 1000
        wait_for("nobody reads", lambda: put_away(outside) == (0, 0, 0), 20)
    client.ask(f"/api/v1/tasks/{task['id']}/cancel", {})
    assert client.ask(f"/api/v1/tasks/{task['id']}/stop", {}).status == 200


def put_away(outside: sqlite3.Connection) -> tuple[int, ...]:
    """Busy, pages in the WAL, pages written back. Another's write may come between."""
    return tuple(outside.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone())
