"""Another program holds SQLite's one lock for 8 s, longer than a lease: everybody waits it out."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands.conftest import Product
from tests.crash.cluster_kit import wait_for
from tests.outages.conftest import make_env
from tests.outages.kit import (
    Answer,
    Client,
    assert_uncharged,
    count_attempts,
    make_token,
    sign_in,
)

pytestmark = pytest.mark.timeout(180)

HELD_SECONDS = 8.0


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """Somebody else holds the write lock of the file."""
    with contextlib.closing(sqlite3.connect(file, isolation_level=None, timeout=30)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


class Crowd:
    """Submitters and readers in threads, each as fast as it is answered, up to 10 a second."""

    def __init__(self, client: Client, browser: Client, sink: Path) -> None:
        self.client, self.browser, self.sink = client, browser, sink
        self.submitted: list[Answer] = []
        self.read: list[Answer] = []
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._submit, args=["a"]),
            threading.Thread(target=self._submit, args=["b"]),
            threading.Thread(target=self._read),
        ]

    def __enter__(self) -> Crowd:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)

    def _submit(self, name: str) -> None:
        while not self._over.wait(0.1):
            key = f"{name}-{len(self.submitted)}-{time.monotonic_ns()}"
            self.submitted.append(self.client.submit(self.sink, key, seconds=0.05, turns=1))

    def _read(self) -> None:
        while not self._over.wait(0.1):
            self.read.append(self.browser.ask("/tasks/"))


@pytest.mark.case(34)
def test_eight_seconds_of_lock_cost_nothing_and_nobody_sees_an_error(tmp_path: Path) -> None:
    file, sink = tmp_path / "ledger.sqlite3", tmp_path / "sink"
    sink.touch()
    env = make_env(f"sqlite:///{file}", tmp_path / "var")
    product = Product(env, tmp_path / "up.log", "--workers", "4", "--no-demo")
    try:
        cookie = sign_in(product, product.wait_until_ready())
        client = Client(product.url, token=make_token(env))
        client.wait_until_healthy()
        slow = client.submit(sink, "slow", seconds=3, turns=1).json["id"]
        with Crowd(client, Client(product.url, cookie=cookie), sink) as crowd:
            wait_for("the slow unit is at work", lambda: count_attempts(sink, slow))
            wait_for("all are busy", lambda: len(crowd.submitted) > 10 and len(crowd.read) > 5)
            with locked(file):
                began = time.monotonic()
                wait_for(
                    "health is red",
                    lambda: client.read_reasons() == ["the database is locked by another program"],
                )
                wait_for("the lock is over", lambda: time.monotonic() - began > HELD_SECONDS)
            client.wait_until_healthy()
            after = len(crowd.submitted)
            wait_for("the crowd goes on", lambda: len(crowd.submitted) > after + 5)
        assert {answer.status for answer in crowd.submitted} == {201}
        assert {answer.status for answer in crowd.read} == {200}
        for task in [slow, *(answer.json["id"] for answer in crowd.submitted)]:
            assert_uncharged(client.wait_for_status(task, "completed", 60))
            assert count_attempts(sink, task) == 1, "no finished unit is done again"
        log = product.read_log()
        assert "Traceback" not in log
        assert product.stop() == 0
    finally:
        product.close()
