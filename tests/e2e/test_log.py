"""A log in a browser: it follows its end, stands still for who reads, and needs no script."""

from __future__ import annotations

import time

import pytest

from ledger import livelogs, sql
from ledger.models import Task
from ledger.steplog import Running
from ledger.unitlog import UnitLog
from ledger.workflows import Workflow
from tests.e2e.conftest import OpenPage
from tests.e2e.kit import wait_until
from tests.e2e.test_look import find_faults
from tests.factories import LEASE, claim, make_unit, submit

pytestmark = pytest.mark.browser

AT_END = "box => box.scrollHeight - box.scrollTop - box.clientHeight < 24"


def start_unit(three: Workflow) -> tuple[Task, sql.Claimed, Running]:
    """A task whose first unit runs and is followed."""
    task = submit(three)
    held = claim(three)
    lease = held.lease
    return task, held, Running(lease, held.step_name, 0, 0, UnitLog(), time.monotonic())


def say(running: Running, *lines: str) -> None:
    running.log.add(0.0, "OUT", lines)
    livelogs.write_row(running)


def test_a_log_is_followed_and_stands_still_for_who_reads(
    open_page: OpenPage, three: Workflow
) -> None:
    task, held, running = start_unit(three)
    say(running, *(f"line {number}" for number in range(200)), "w" * 900, "<b>\u202eno")
    with open_page("operator") as page:
        page.goto(f"/tasks/{task.id}/")
        box = page.locator("#log-text")
        box.filter(has_text="line 199").wait_for()
        wait_until(lambda: box.evaluate(AT_END), 10)
        say(running, "the next")
        box.filter(has_text="the next").wait_for()
        wait_until(lambda: box.evaluate(AT_END), 10)
        assert page.evaluate("document.documentElement.scrollWidth") <= 1440
        assert find_faults(page) == []
        box.evaluate("box => box.scrollTop = 100")
        page.locator("#log-held").wait_for()
        say(running, "unseen")
        with page.expect_response(lambda answer: answer.url.endswith(f"/tasks/{task.id}/")):
            pass  # the rest of the page goes on
        assert box.evaluate("box => box.scrollTop") == 100
        assert "unseen" not in box.inner_text()
        box.focus()
        page.keyboard.press("End")
        box.filter(has_text="unseen").wait_for()
        assert page.locator("#log-held").is_hidden()
        # Done: the last thing that it said is there, and nothing asks any more once all is over.
        unit = make_unit(held, three, log_tail=running.log.read_tail(), result="{}")
        sql.checkpoint_unit(held, unit, lease_seconds=LEASE, groups=[])
        page.wait_for_selector("#task-log:not([hx-trigger]) >> text=The unit is done.")
        page.get_by_role("link", name="The log on a page of its own").click()
        page.wait_for_url("**/log/")
        page.locator("#log-text", has_text="unseen").wait_for()
        page.set_viewport_size({"width": 320, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
        assert find_faults(page) == []


def test_without_script_a_log_is_a_page_that_is_loaded_again(
    open_page: OpenPage, three: Workflow
) -> None:
    task, _, running = start_unit(three)
    say(running, "first")
    with open_page("viewer", java_script_enabled=False) as page:
        page.goto(f"/tasks/{task.id}/")
        page.get_by_role("link", name="The log on a page of its own").click()
        assert "first" in page.locator("#log-text").inner_text()
        say(running, "second")
        page.get_by_role("link", name="Load the page again").click()
        assert "second" in page.locator("#log-text").inner_text()
