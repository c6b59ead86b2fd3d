"""No session of the database crosses a fork, whatever was open before it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from django.conf import settings

from tests.commands.conftest import Product
from tests.crash.cluster_kit import wait_for
from tests.outages.conftest import make_env
from tests.outages.kit import Client, make_token
from tests.pg import Cluster

pytestmark = [pytest.mark.both_databases, pytest.mark.case(32), pytest.mark.timeout(180)]

TASKS = 40


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A database whose sessions can't be shared: TLS numbers its records."""
    if settings.RING == "sqlite":
        yield f"sqlite:///{tmp_path / 'ledger.sqlite3'}"
        return
    server = Cluster(ssl="on", ssl_cert_file="server.crt", ssl_key_file="server.key")
    subprocess.run(
        ["openssl", "req", "-new", "-x509", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-keyout", server.data / "server.key", "-out", server.data / "server.crt"],
        check=True, capture_output=True, **server.surroundings,
    )  # fmt: skip
    with server:
        yield f"{server.url}?sslmode=require"


def test_every_process_has_sessions_of_its_own(url: str, tmp_path: Path) -> None:
    env = make_env(url, tmp_path / "var") | {
        "DJANGO_SETTINGS_MODULE": "tests.outages.eager_settings",
        "LONGWATCH_WORKFLOWS": "tests.outages.flows",
        "LONGWATCH_TICKET_SECONDS": "0.5",
        "LONGWATCH_RECYCLE_TICKETS": "2",
    }
    product = Product(env, tmp_path / "up.log", "--workers", "4", "--no-demo")
    try:
        product.wait_until_ready()
        client = Client(product.url, token=make_token(env))
        ids = []
        for _ in range(TASKS):
            answer = client.ask("/api/v1/tasks", {"workflow": "sessions", "input": {}})
            assert answer.status == 201, answer
            ids.append(answer.json["id"])
        if url.startswith("postgresql"):
            assert count_sessions(url, encrypted=False) == 0
            assert count_sessions(url, encrypted=True) > 0
        results = [client.wait_for_status(task, "completed")["result"] for task in ids]
        wait_for(
            "workers were replaced",
            lambda: len(re.findall(r" worker \d+ started", product.read_log())) > 4,
        )
        log = product.read_log()
        assert product.stop() == 0
    finally:
        product.close()
    assert [result["echo"] for result in results] == ids, "answers never cross"
    if url.startswith("postgresql"):
        by_backend: dict[int, set[int]] = {}
        for result in results:
            by_backend.setdefault(result["backend"], set()).add(result["pid"])
        assert all(len(pids) == 1 for pids in by_backend.values()), by_backend
    for sign in ("Traceback", "SSL", "decryption", "already closed", "locked", "WARNING"):
        assert sign not in log, log


def count_sessions(url: str, *, encrypted: bool) -> int:
    """Sessions of the product over TLS, or without."""
    with psycopg.connect(url) as link:
        rows = link.execute(
            "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) "
            "WHERE application_name = 'longwatch' AND ssl = %s", [encrypted],
        ).fetchone()  # fmt: skip
    return int(rows[0]) if rows else -1
