"""What a task may use and has reserved, on its page."""

from __future__ import annotations

import re

import pytest
from django.test import Client
from django.urls import reverse

from dashboard import shown
from ledger import limits
from ledger.workflows import Scope, registered
from tests.factories import claim, make_workflow, submit

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


def test_the_page_shows_what_is_reserved_beside_what_is_used(operator: Client) -> None:
    flow = make_workflow("paying")
    with registered(flow):
        task = submit(flow)
        page = reverse("dashboard:task", args=[task.id])
        assert " reserved" not in operator.get(page).content.decode()
        held = claim(flow)
        limits.reserve_amount(held, key="one", cost="1.50", tokens=2000)
        text = operator.get(page).content.decode()
    assert ", $1.50 reserved" in text
    assert ", 2,000 reserved" in text


def test_an_event_tells_a_limit_in_words() -> None:
    told = shown.summarise_data({"reason": "budget", "limit": "limit_cost", "max_failed": 1})
    assert told == "for its parent's budget; the money limit is used up; max failed: 1"
    assert shown.summarise_data({"limit": "units"}) == "limit: units"


def test_an_event_tells_the_values_of_an_answer_by_their_own_names() -> None:
    values = {"article": "tea", "count": 4, "to": "the office", "number": 7}
    told = shown.summarise_data({"decision": "approve", "values": values, "number": 1})
    assert told == "decision: approve; article: tea; count: 4; to: the office; number: 7"
