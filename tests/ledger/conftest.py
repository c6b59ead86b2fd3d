"""What the ledger's tests share: every one runs on both databases; the clock is put back."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from django.db import connection

from ledger import clock, runner
from ledger.runner import Engine
from ledger.workflows import Workflow, registered
from tests.factories import OWNER, make_workflow
from tests.ledger.cutting import Proxy
from tests.ledger.journal import run_until_rest
from tests.ledger.threads import Crew


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The promise is the same on both databases, so is the test."""
    for item in items:
        if "tests/ledger/" in str(item.path):
            item.add_marker(pytest.mark.both_databases)


@pytest.fixture(autouse=True)
def moved_clock() -> Iterator[None]:
    """Tests move the database's clock by `clock.offset`."""
    yield
    clock.offset = 0.0


@pytest.fixture
def flow(db: None) -> Iterator[Workflow]:
    """A workflow of three steps that this process knows."""
    workflow = make_workflow()
    with registered(workflow):
        yield workflow


@pytest.fixture
def together(flow: Workflow) -> Iterator[Crew]:
    """Runs what it is given in threads that begin at the same instant. For tests whose
    rows are really committed: marked with `transaction=True`."""
    crew = Crew()
    yield crew
    crew.close()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """Between this process and its PostgreSQL."""
    place = connection.settings_dict
    kept = {"HOST": place["HOST"], "PORT": place["PORT"]}
    with Proxy(place["HOST"], int(place["PORT"])) as found:
        connection.close()
        place.update(HOST="127.0.0.1", PORT=str(found.port))
        yield found
        connection.close()
        place.update(kept)


@pytest.fixture
def resident(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs a worker of its own, ticket after ticket, until the named tasks are at rest.

    With an engine that spares this process's children: a database server may be among them.
    """
    monkeypatch.setattr(runner, "_engine", (os.getpid(), Engine(OWNER)))
    return run_until_rest
