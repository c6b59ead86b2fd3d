"""Fixtures of the tests that kill processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.conf import settings

from tests.crash.cluster_kit import ToyCluster
from tests.crash.site_kit import SiteCluster
from tests.durable import DURABLE, PATIENCE
from tests.pg import Cluster

StartCluster = Callable[..., ToyCluster]
StartSite = Callable[..., SiteCluster]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test that waits for leases of 60 s has as much more time."""
    for item in items if DURABLE else []:
        given = item.get_closest_marker("timeout")
        seconds = given.args[0] if given else float(config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(PATIENCE * seconds), append=False)


@pytest.fixture(scope="session")
def toy_server() -> Iterator[Cluster]:
    """A PostgreSQL server that tests here may stop, as long as they start it again."""
    with Cluster() as server:
        yield server


@pytest.fixture
def toy_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the table of units is, in this ring."""
    if settings.RING == "postgresql":
        return str(request.getfixturevalue("toy_server").url)
    return f"sqlite:///{tmp_path}/toy.sqlite3"


@pytest.fixture
def start_cluster(tmp_path: Path, toy_url: str) -> StartCluster:
    """Makes a cluster of two workers; keywords go to its environment."""

    def make(**environment: str | float) -> ToyCluster:
        return ToyCluster(tmp_path, toy_url, **environment)

    return make


@pytest.fixture
def start_site(site_env: dict[str, str], tmp_path: Path) -> StartSite:
    """Makes a cluster of two real workers on the test's database; keywords go to its environment.

    Several of them are several hosts: they share the database and the sink.
    """
    return lambda **more: SiteCluster(tmp_path, site_env, **more)
