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
    assert told == "approved; article: tea; count: 4; to: the office; number: 7"


def test_what_is_no_sentence_by_its_data_is_told_in_one() -> None:
    told = shown.summarise_event
    circle = {"tool": "look_up", "call": "c1", "times": 3, "failed": False, "round": 0}
    assert told("circling", circle) == (
        "look_up called 3 times with the same arguments, the same came back each time"
    )
    share = {"limit": "tokens", "percent": 50, "used": 26_700, "of": 50_000}
    assert told("limit_warned", share) == "50% of the tokens: 26,700 of 50,000"
    share |= {"limit": "cost", "used": "0.50", "of": "1.00"}
    assert told("limit_warned", share) == "50% of the money: $0.50 of $1.00"
    asked = {"subject": "Publish?", "risk": "high", "limit": "limit_cost"}
    assert told("approval_requested", asked) == ("Publish? (high risk); the money limit is used up")
    assert told("spawned", {"count": 1, "children": ["a"]}) == "1 child task"
    assert told("compensating", {"count": 2}) == "effects to undo: 2"
    assert told("submitted", {"until": "2026-11-30T21:59:51+00:00"}).startswith("not before Mon 30")
    assert told("submitted", {"until": None}) == ""
    assert told("released", {"reason": "drain"}) == "its worker was told to stop"
    assert (
        told("approval_voted", {"decision": "send_back", "comment": "drain"}) == "sent back; drain"
    )
    assert told("circling", {}) == ""  # its contents are hidden
    wrong = [{"message": "It is missing.", "where": "page-3"}]
    assert told("repaired", {"feedback": {"findings": wrong}}) == "page-3: It is missing"
