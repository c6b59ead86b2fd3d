"""What a task's steps may use, on its page."""

from __future__ import annotations

import re

import pytest
from django.test import Client
from django.urls import reverse

from ledger.workflows import Scope, registered
from tests.factories import make_workflow, submit

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("scope", [None, Scope(), Scope(tools=["search", "<b>"])])
def test_the_page_shows_the_scope_of_a_workflow_that_has_one(
    operator: Client, scope: Scope | None
) -> None:
    flow = make_workflow("fenced", scope=scope)
    with registered(flow):
        task = submit(flow)
        page = operator.get(reverse("dashboard:task", args=[task.id])).content.decode()
    found = re.findall(r"<dt>(Secrets|Tools|Lanes)</dt><dd>(.*?)</dd>", page)
    tools = "&lt;b&gt;, search" if scope and scope.tools else "none"
    told = [("Secrets", "none"), ("Tools", tools), ("Lanes", "none")]
    assert found == ([] if scope is None else told)
