"""People of each role, and a workflow that the web side knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.test import Client

from dashboard.rests import forget_runs
from ledger import clock, registry
from ledger.workflows import Workflow
from tests.factories import make_workflow

PASSWORD = "a long enough password"


def make_user(role: str, name: str = "") -> Any:
    """A user in the group `role`; "superuser" and "" (in no group) are none of the roles."""
    users: Any = get_user_model().objects
    if role == "superuser":
        return users.create_superuser(name or "root", password=PASSWORD)
    user = users.create_user(name or role or "nobody", password=PASSWORD)
    if role:
        user.groups.add(Group.objects.get_or_create(name=role)[0])
    return user


@pytest.fixture
def sign_in(db: None) -> Callable[..., Client]:
    """A browser of somebody with a role: `sign_in("operator")`."""

    def make_client(role: str, name: str = "") -> Client:
        client = Client()
        client.force_login(make_user(role, name))
        return client

    return make_client


@pytest.fixture
def operator(sign_in: Callable[..., Client]) -> Client:
    """An operator's browser."""
    return sign_in("operator")


@pytest.fixture
def three() -> Iterator[Workflow]:
    """A workflow of the steps a, b, c."""
    workflow = make_workflow("three")
    with registry.registered(workflow):
        yield workflow


@pytest.fixture(autouse=True)
def still_clock() -> Iterator[None]:
    """Put the database's clock back where it was; nothing is known of another test's runs."""
    forget_runs()
    yield
    clock.offset = 0.0


PART = {"HX-Request": "true", "HX-Request-Type": "partial"}
"""Headers of a request for a part of a page."""
