"""What evaluators found, in a browser: for everybody to read, at every width, without a script."""

from __future__ import annotations

import os
from typing import Any

import pytest

from ledger.evaluators import Finding, Person, Predicate
from ledger.models import Approval
from ledger.testing import run
from ledger.workflows import registered
from tests.e2e.conftest import OpenPage
from tests.e2e.test_look import LONG, find_faults
from tests.evaluators.conftest import make_flow

pytestmark = pytest.mark.browser

WIDE = "document.documentElement.scrollWidth > document.documentElement.clientWidth"


def judge(value: dict[str, Any]) -> list[Any]:
    """Wrong at first, then with a warning."""
    output = f"exit code 1; its output ends:\n{LONG}\nFAILED tests/test_tea.py::test_pot"
    if value["told"] is None:
        return [Finding(output), Finding(f"F401 {LONG}", f"src/{LONG}.py:3"), "The title is bad."]
    return [Finding("Weak word.", "$.title", "warning")]


def test_findings_can_be_read_by_everybody(open_page: OpenPage) -> None:
    layers = [Predicate(judge, name="words"), Predicate(lambda value: None, name="fits")]
    flow = make_flow([*layers, Person("Good enough?")], [{}])
    ended = run(flow)
    first = next(one["seq"] for one in ended.outputs if one["step"]["name"] == "check")
    asked = Approval.objects.get(task=ended.id)
    places = [f"/tasks/{ended.id}/?unit={first}", f"/tasks/{ended.id}/", f"/approvals/{asked.pk}/"]
    with registered(flow), open_page("operator") as page:
        for number, place in enumerate(places):
            page.goto(place)
            page.evaluate(
                "document.querySelectorAll('details').forEach((one) => (one.open = true))"
            )
            assert find_faults(page) == [], place
            for width in (1440, 390):
                page.set_viewport_size({"width": width, "height": 900})
                assert not page.evaluate(WIDE), (place, width)
                if folder := os.environ.get("LONGWATCH_TEST_SHOTS"):
                    page.screenshot(path=f"{folder}/{number}-{width}.png", full_page=True)
    with registered(flow), open_page("operator", "plain", java_script_enabled=False) as page:
        page.goto(places[0])
        assert page.locator("#judged-1 pre").first.is_visible()
