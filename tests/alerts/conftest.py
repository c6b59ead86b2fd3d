"""What the tests of alerts share: loopback is allowed, the clock is put back."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from ledger import clock
from ledger.workflows import Workflow, registered
from tests.alerts.kit import LOOPBACK, MailServer, Receiver
from tests.factories import make_workflow


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The promise is the same on both databases, so is the test."""
    for item in items:
        if "tests/alerts/" in str(item.path):
            item.add_marker(pytest.mark.both_databases)


@pytest.fixture(autouse=True)
def loopback(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Receivers stand on this machine. A guard over lookups, which is for a process of its own,
    goes with the test."""
    monkeypatch.setattr(socket, "getaddrinfo", socket.getaddrinfo)
    settings.LONGWATCH_ALERT_NETWORKS = [LOOPBACK]
    settings.LONGWATCH_URL = "https://longwatch.example"
    yield
    clock.offset = 0.0


@pytest.fixture
def flow(db: None) -> Iterator[Workflow]:
    """A workflow of three steps that this process knows."""
    workflow = make_workflow()
    with registered(workflow):
        yield workflow


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver of webhooks."""
    with Receiver() as found:
        yield found


@pytest.fixture
def mail_server(settings: Any) -> Iterator[MailServer]:
    """A mail server, which this process's mails go to."""
    with MailServer() as found:
        settings.MAILERS = {
            "default": {
                "BACKEND": "django.core.mail.backends.smtp.EmailBackend",
                "OPTIONS": {"host": "127.0.0.1", "port": found.port, "timeout": 5},
            }
        }
        yield found
