"""The fleet's pages in a browser: polls, keys, the way from a list and back, a start, no script."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ledger import states
from ledger.models import Task
from ledger.transitions import operators
from ledger.workflows import Workflow
from tests.dashboard.fleet import fill_with_trouble, make_worker
from tests.e2e.conftest import OpenPage
from tests.e2e.kit import wait_until
from tests.factories import OPERATOR, ask, claim, make_in, make_workflow, submit

pytestmark = pytest.mark.browser


def is_poll(answer: Any) -> bool:
    """True for a part that is asked for again and again; what is new to a person comes once."""
    return "hx-request" in answer.request.headers and "/since/" not in answer.url


def test_the_overview_stays_and_follows(open_page: OpenPage, three: Workflow) -> None:
    task = make_in(states.DEAD, three)
    with open_page("operator") as page:
        page.goto("/")
        page.evaluate("window.node = document.querySelector('#overview')")
        assert page.title().startswith("(1) Overview")
        with page.expect_response(is_poll) as answered:
            pass
        assert answered.value.status == 304
        operators.cancel_task(task.id, actor=OPERATOR)
        page.wait_for_selector("text=All calm")
        assert page.evaluate("window.node.isConnected")
        assert page.title() == "Overview · Longwatch"


def test_an_action_from_the_list_comes_back_to_it(open_page: OpenPage, three: Workflow) -> None:
    task = make_in(states.DEAD, three)
    with open_page("operator") as page:
        page.goto("/")
        page.locator("#overview .att").get_by_role("link", name="gave up").click()
        page.wait_for_selector("#trouble")
        page.get_by_role("button", name="Retry now").click()
        page.wait_for_selector("#dialog[open]")
        page.locator("#dialog").get_by_role("button", name="Retry now").click()
        page.wait_for_selector("text=Queued again.")
        assert page.url.endswith("/stalled/?kind=gave-up")
        assert Task.objects.get(pk=task.pk).status == states.QUEUED


def test_an_open_group_stays_open_when_the_list_changes(
    open_page: OpenPage, three: Workflow
) -> None:
    tasks = [submit(make_workflow("unknown")) for _ in range(5)]
    with open_page("operator") as page:
        page.goto("/stalled/")
        group = page.locator(".grp details")
        assert group.get_attribute("open") is None
        group.locator("summary").click()
        operators.cancel_task(tasks[0].id, actor=OPERATOR)
        page.wait_for_selector("text=4 tasks")
        assert group.get_attribute("open") is not None


def test_keys_go_places_until_they_are_switched_off(open_page: OpenPage, three: Workflow) -> None:
    with open_page("viewer") as page:
        page.goto("/")
        for key, path in (("t", "/tasks/"), ("w", "/workers/"), ("s", "/stalled/"), ("o", "/")):
            page.keyboard.press("g")
            page.keyboard.press(key)
            page.wait_for_url(re.compile(rf":\d+{path}$"))  # "**/" would be any page
        page.goto("/tasks/")
        page.keyboard.press("/")
        page.keyboard.type("g w ?")
        assert page.locator("input[type=search]").input_value() == "g w ?"
        for _ in ("the list of words", "the text", "the field"):
            page.keyboard.press("Escape")
        page.keyboard.press("?")
        page.get_by_role("link", name="All keys, shapes and reasons").or_(
            page.get_by_role("button", name="All keys, shapes and reasons")
        ).click()
        page.wait_for_url("**/legend/")
        page.get_by_role("button", name="Switch these keys off").click()
        page.get_by_role("button", name="Switch these keys on").wait_for()
        page.keyboard.press("g")
        page.keyboard.press("o")
        page.get_by_role("button", name="Switch these keys on").wait_for()
        assert page.url.endswith("/legend/")


@pytest.mark.parametrize("script", [True, False])
def test_a_task_is_started_from_the_form(
    open_page: OpenPage, three: Workflow, script: bool
) -> None:
    make_worker(three)
    with open_page("operator", java_script_enabled=script) as page:
        page.goto("/workflows/")
        page.get_by_role("link", name="Start a task").first.click()
        form = page.locator("form.start")
        page.expected.add(422)
        name = page.url.split("/workflows/")[1].split("/")[0]
        assert name
        page.goto("/workflows/three/")
        page.get_by_label("Input").fill("[]")
        form.get_by_role("button", name="Start task").click()
        page.wait_for_selector("text=It takes a JSON object.")
        page.get_by_label("Input").fill('{"from": "the form"}')
        form.get_by_role("button", name="Start task").click()
        page.wait_for_url("**/tasks/**")
        assert Task.objects.get().input == {"from": "the form"}


def test_without_a_script_a_list_still_acts(open_page: OpenPage, three: Workflow) -> None:
    task = make_in(states.DEAD, three)
    with open_page("operator", java_script_enabled=False) as page:
        page.goto("/stalled/?kind=gave-up")
        page.get_by_role("button", name="Retry now").click()
        page.get_by_role("button", name="Retry now").click()
        page.wait_for_selector("text=Queued again.")
        assert page.url.endswith("/stalled/?kind=gave-up")
        wait_until(lambda: Task.objects.get(pk=task.pk).status == states.QUEUED, 5)


def test_the_phone_reaches_every_place(open_page: OpenPage, three: Workflow) -> None:
    fill_with_trouble(three)
    options: dict[str, Any] = {"viewport": {"width": 390, "height": 800}}
    with open_page("viewer", **options) as page:
        page.goto("/")
        for name in ("Workers", "Workflows", "Legend"):
            page.locator(".tabbar summary").click()
            page.locator(".tabbar").get_by_role("link", name=name).click()
            page.wait_for_selector(f"h1:has-text('{name}')")


def test_the_navigation_counts_what_came_while_one_looked(
    open_page: OpenPage, three: Workflow
) -> None:
    task = submit(three)
    with open_page("operator") as page:
        page.goto(f"/tasks/{task.id}/")
        badge = page.locator(".side .count.you")
        assert badge.is_hidden()
        ask(claim(three), three)  # a queued task's page reads the fleet instead
        page.wait_for_selector(".side .count.you >> text=1")
        assert badge.inner_text().startswith("1")
