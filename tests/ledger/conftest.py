"""What the ledger's tests share: every one runs on both databases; the clock is put back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ledger import clock
from ledger.workflows import Workflow, registered
from tests.factories import make_workflow


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
