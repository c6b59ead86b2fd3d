"""What the poison tests share: those in the worker run on both databases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.crash.site_kit import SiteCluster

StartSite = Callable[..., SiteCluster]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A step that goes wrong ends in the same way on both databases."""
    for item in items:
        if "tests/poison/" in str(item.path) and item.path.name != "test_isolation.py":
            item.add_marker(pytest.mark.both_databases)


@pytest.fixture
def start_site(site_env: dict[str, str], tmp_path: Path) -> StartSite:
    """Makes a cluster of two real workers that knows the poisoned workflows."""

    def make(**more: Any) -> SiteCluster:
        more.setdefault(
            "LONGWATCH_WORKFLOWS", "tests.crash.flows,tests.poison.flows,tests.poison.exits"
        )
        return SiteCluster(tmp_path, site_env, **more)

    return make
