"""Rings: which tests run against which database. And what tests of every kind share."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from django.conf import settings
from django.db import connection

from ledger import clock
from tests import emptying
from tests.rings import find_chromium

ROOT = Path(__file__).resolve().parent.parent


def choose_rings(item: pytest.Item) -> set[str]:
    """The rings that a test belongs to; without a mark it is `sqlite` alone."""
    if item.get_closest_marker("browser"):
        return {"browser"}
    if item.get_closest_marker("sqlite"):
        return {"sqlite"}
    if item.get_closest_marker("postgresql"):
        return {"postgresql"}
    if item.get_closest_marker("both_databases"):
        return {"sqlite", "postgresql"}
    return {"sqlite"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave only the ring's own tests: a test of another ring is no skipped test of this one. Of
    these only the ones that failed, when the runner has them run once more."""
    ring = settings.RING
    only = json.loads(os.environ.get("LONGWATCH_TEST_ONLY", "null"))
    kept = [
        item
        for item in items
        if ring in choose_rings(item) and (only is None or item.nodeid in only)
    ]
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
        items[:] = kept


def pytest_collection_finish() -> None:
    """A module that a test writes is not taken from a cache: they go by whole seconds."""
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))


class Tally:
    """Counts for tests/rings.py how many tests ran, and names those that failed."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.counts = {"ran": 0, "failed": 0, "skipped": 0}
        self.names: dict[str, None] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Every test once; an error before or after it counts as a failure too."""
        if report.when == "call" and not report.skipped:
            self.counts["ran"] += 1
        self.counts["failed"] += report.failed
        self.counts["skipped"] += report.skipped
        if report.failed:
            self.names[report.nodeid] = None

        # At each test, so that a ring that is cut off can say how far it came.
        if report.when == "teardown":
            self.file.write_text(json.dumps(self.counts | {"names": list(self.names)}))


def pytest_configure(config: pytest.Config) -> None:
    """Report to the runner that started this ring, if one did."""
    emptying.install()
    if file := os.environ.get("LONGWATCH_TEST_TALLY"):
        config.pluginmanager.register(Tally(Path(file)), "ring-tally")


@pytest.fixture(autouse=True)
def keep_clock() -> Iterator[None]:
    """What a test moves the ledger's clock by is no concern of the next one."""
    yield
    clock.offset = 0.0


@pytest.fixture
def database_url() -> str:
    """The test's own database for LONGWATCH_DATABASE_URL of a process that the test starts.

    Such a process sees committed rows only: ask for `transactional_db`.
    """
    place = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{place['NAME']}"
    return f"postgresql://{quote(place['USER'])}@{place['HOST']}:{place['PORT']}/{place['NAME']}"


@pytest.fixture
def site_env(transactional_db: None, database_url: str, tmp_path: Path) -> dict[str, str]:
    """The environment for `manage.py` in a process of its own: this database, this test's var/."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LONGWATCH_", "DJANGO_"))}
    return kept | {
        "LONGWATCH_DATABASE_URL": database_url,
        "LONGWATCH_VAR": str(tmp_path / "var"),
        "PYTHONUNBUFFERED": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }


CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    # Nothing but the product is talked to.
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One headless chromium for the ring. Tests take `page` instead."""
    from playwright.sync_api import sync_playwright

    # Playwright keeps an event loop in this thread, and Django then refuses its ORM here.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_FLAGS)
        yield chromium
        chromium.close()
    del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page in a context of its own. An error in its console fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(15_000)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    context.close()
    assert errors == []
