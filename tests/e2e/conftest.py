"""A live server, somebody signed in, and a workflow that the web side knows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.conf import settings
from django.test import Client

from ledger import registry
from ledger.workflows import Workflow
from tests.dashboard.conftest import make_user
from tests.e2e.kit import strict_page
from tests.factories import make_workflow

type OpenPage = Callable[..., contextlib.AbstractContextManager[Any]]


@pytest.fixture
def three() -> Iterator[Workflow]:
    """A workflow of the steps a, b, c."""
    workflow = make_workflow("three")
    with registry.registered(workflow):
        yield workflow


@pytest.fixture
def open_page(browser: Any, live_server: Any) -> OpenPage:
    """A page of somebody with a role: `with open_page("operator") as page:`."""

    @contextlib.contextmanager
    def open_as(role: str, name: str = "", **options: Any) -> Iterator[Any]:
        client = Client()
        client.force_login(make_user(role, name))
        cookie = client.cookies[settings.SESSION_COOKIE_NAME]
        with strict_page(browser, base_url=live_server.url, **options) as page:
            page.context.add_cookies(
                [{"name": cookie.key, "value": cookie.value, "url": live_server.url}]
            )
            yield page

    return open_as
