"""One product for all tests of a file, on a server of its own behind a line that may fail."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from tests.chaos.proxy import Proxy
from tests.commands.conftest import Product
from tests.outages.kit import LEASES, Client, make_token, sign_in
from tests.pg import Cluster

LINE = "sslmode=disable&gssencmode=disable"
QUICK = (
    "connect_timeout=3&tcp_user_timeout=3000&keepalives_idle=1&keepalives_interval=1"
    "&keepalives_count=2"
)
"""The bounds that the product has, made small."""


class Site(NamedTuple):
    """The product, who asks it, its database and the line between."""

    product: Product
    client: Client
    browser: Client
    server: Cluster
    proxy: Proxy
    sink: Path

    def ask(self, statement: str) -> list[Any]:
        """The rows of one statement, run on the server itself whatever it refuses the product."""
        options = "-c default_transaction_read_only=off"
        with psycopg.connect(self.server.url, autocommit=True, options=options) as link:
            cursor = link.execute(statement)  # type: ignore[call-overload]
            return list(cursor.fetchall()) if cursor.description else []


def make_env(url: str, var: Path) -> dict[str, str]:
    """The environment of a product on that database."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LONGWATCH_", "DJANGO_"))}
    return kept | LEASES | {
        "LONGWATCH_DATABASE_URL": url,
        "LONGWATCH_VAR": str(var),
        "PYTHONUNBUFFERED": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """PostgreSQL, `manage.py up` with two workers, and a signed-in browser."""
    folder = tmp_path_factory.mktemp("site")
    sink = folder / "sink"
    sink.touch()
    with (
        Cluster(max_connections=30, superuser_reserved_connections=0) as server,
        Proxy(server.port) as proxy,
    ):
        url = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?{LINE}&{QUICK}"
        env = make_env(url, folder / "var")
        product = Product(env, folder / "up.log", "--workers", "2", "--no-demo")
        try:
            cookie = sign_in(product, product.wait_until_ready())
            client = Client(product.url, token=make_token(env))
            browser = Client(product.url, cookie=cookie)
            client.wait_until_healthy()
            yield Site(product, client, browser, server, proxy, sink)
            assert product.stop() == 0, product.read_log()
            assert product.list_left_over() == []
        finally:
            product.close()


@pytest.fixture(autouse=True)
def show_log(request: pytest.FixtureRequest) -> Iterator[None]:
    """What the product wrote, beside a test that fails."""
    yield
    if "site" in request.fixturenames:
        sys.stderr.write(request.getfixturevalue("site").product.read_log()[-6000:])
