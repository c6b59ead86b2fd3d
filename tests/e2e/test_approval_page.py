"""A question's page while polls come late, others answer, and people go back and forth."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ledger.events import Actor
from ledger.models import Approval
from ledger.transitions.approvals import decide_approval
from ledger.workflows import Workflow
from tests.e2e.conftest import OpenPage
from tests.e2e.kit import wait_until
from tests.factories import OPERATOR, ask, claim, submit

pytestmark = pytest.mark.browser

SECOND = Actor("user", "2")
WATCH = """() => {
  window.seen = [];
  const note = () => window.seen.push(document.querySelector("#state").dataset.status);
  const all = {subtree: true, childList: true, attributes: true};
  new MutationObserver(note).observe(document.body, all);
}"""


def put(workflow: Workflow, **options: Any) -> Approval:
    """An open question of a new task, which is first in line."""
    submit(workflow, priority=100)
    return Approval.objects.get(pk=ask(claim(workflow), workflow, **options).pk)


def is_poll(asked: Approval) -> Any:
    """Whether a response is one to the poll of the question's state."""
    return lambda answer: (
        f"/approvals/{asked.id}/" in answer.url
        and "hx-request" in answer.request.headers
        and answer.request.method == "GET"
    )


def read_places(page: Any) -> list[Any]:
    """Where Approve and Reject stand."""
    names = (re.compile("^Approve"), re.compile("^Reject"))
    return [page.get_by_role("button", name=name).first.bounding_box() for name in names]


@pytest.mark.case(71)
def test_an_old_answer_to_a_poll_does_not_take_a_decision_back(
    open_page: OpenPage, three: Workflow
) -> None:
    asked = put(three)
    held: list[Any] = []

    def hold(route: Any) -> None:
        polls = route.request.method == "GET" and "hx-request" in route.request.headers
        if held or not polls:
            return route.continue_()
        headers = route.request.headers | {"hx-ptag": "open.of-long-ago"}
        held.append((route, route.fetch(headers=headers)))

    with open_page("approver") as page:
        page.goto(f"/approvals/{asked.id}/")
        page.route(f"**/approvals/{asked.id}/", hold)
        wait_until(lambda: page.evaluate("1") and held, 20)
        page.get_by_label("Comment").fill("the second source is missing")
        page.get_by_role("button", name="Reject").click()
        page.wait_for_selector("#state[data-status=rejected]")
        page.evaluate(WATCH)
        route, answer = held[0]
        assert 'data-status="open"' in answer.text()
        with page.expect_response(is_poll(asked)):
            route.fulfill(response=answer)
        with page.expect_response(is_poll(asked)):
            pass  # the next one
        assert "open" not in page.evaluate("window.seen")
        assert page.locator("#state").get_attribute("data-status") == "rejected"


@pytest.mark.case(71)
def test_what_is_typed_opened_and_pointed_at_stays_while_parts_change(
    open_page: OpenPage, three: Workflow
) -> None:
    asked = put(three, risk="high", votes=2)
    with open_page("approver") as page:
        page.goto(f"/approvals/{asked.id}/")
        comment = page.get_by_label("Comment")
        comment.fill("half a sentence")
        comment.evaluate("field => field.setSelectionRange(2, 6)")
        places = read_places(page)
        decide_approval(asked.id, decision="approve", actor=OPERATOR, digest=asked.digest)
        page.wait_for_selector("#state >> text=approve")  # the other vote is shown
        typed = "field => [field.value, field.selectionStart, field.selectionEnd]"
        assert comment.evaluate(typed) == ["half a sentence", 2, 6]
        assert comment.evaluate("field => field === document.activeElement")
        assert read_places(page) == places
        page.get_by_role("button", name="Approve…").click()
        page.wait_for_selector("#dialog[open]")
        safe = page.locator("#dialog [data-close]")
        wait_until(lambda: safe.evaluate("node => node === document.activeElement"), 20)
        another = put(three)
        page.wait_for_selector(f"#queue-{another.id}")
        decide_approval(asked.id, decision="reject", actor=SECOND, digest=asked.digest)
        page.wait_for_selector("#state[data-status=rejected]", state="attached")
        assert page.locator("#dialog[open]").count() == 1
        assert safe.evaluate("node => node === document.activeElement")
        page.keyboard.press("Escape")
        assert comment.input_value() == "half a sentence"
        assert read_places(page) == places
        page.expected.add(409)
        page.get_by_role("button", name="Reject").click()
        page.wait_for_selector("#decision >> text=already rejected")
        assert comment.input_value() == "half a sentence"


@pytest.mark.case(70)
def test_back_shows_what_is_true_now_and_an_old_button_does_nothing(
    open_page: OpenPage, three: Workflow
) -> None:
    first, second = put(three, expires=900), put(three)
    with open_page("approver") as page:
        page.goto(f"/approvals/{first.id}/")
        page.get_by_role("button", name="Approve", exact=True).click()
        page.wait_for_url(f"**/approvals/{second.id}/")
        page.go_back()
        page.wait_for_selector("#state[data-status=approved]")
        assert page.locator("link[rel=stylesheet]").count() == 1, "a whole page"
        assert page.get_by_role("button", name="Approve", exact=True).count() == 0
        page.go_forward()
        page.wait_for_url(f"**/approvals/{second.id}/")
        page.get_by_role("button", name=re.compile("^Pause updates")).click()
        decide_approval(second.id, decision="reject", actor=OPERATOR, digest=second.digest)
        page.expected.add(409)
        with page.expect_response(lambda answer: answer.request.method == "POST") as answered:
            page.get_by_role("button", name="Approve", exact=True).click()
        assert answered.value.status == 409
        page.wait_for_selector("#decision >> text=already rejected")
        page.reload()
        page.wait_for_selector("#state[data-status=rejected]")
        assert page.get_by_role("button", name="Approve", exact=True).count() == 0


def test_the_next_question_takes_no_press_that_was_meant_for_the_last(
    open_page: OpenPage, three: Workflow
) -> None:
    first, second = put(three, expires=900), put(three)
    with open_page("approver") as page:
        now = int(page.evaluate("Date.now()"))
        page.clock.set_fixed_time(now)
        page.goto(f"/approvals/{first.id}/")
        page.keyboard.press("a")
        page.wait_for_url(f"**/approvals/{second.id}/")
        page.keyboard.press("a")
        page.get_by_role("button", name="Approve", exact=True).click()
        with page.expect_response(is_poll(second)):
            pass
        second.refresh_from_db()
        assert second.status == "open"
        page.keyboard.press("z")  # the last answer is undone from the list
        wait_until(lambda: Approval.objects.get(pk=first.pk).status == "open", 20)
        page.clock.set_fixed_time(now + 2_000)
        page.keyboard.press("a")
        wait_until(lambda: Approval.objects.get(pk=second.pk).status == "approved", 20)
