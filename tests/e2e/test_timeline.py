"""A task's timeline in a browser: by keyboard, and without a script."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ledger import clock
from ledger.transitions import holder
from ledger.workflows import Workflow
from tests.e2e.conftest import OpenPage
from tests.e2e.kit import wait_until
from tests.e2e.test_look import find_faults
from tests.e2e.test_task_page import run_units
from tests.factories import attempt, claim

pytestmark = pytest.mark.browser

HERE = "document.activeElement.closest('tbody tr')?.querySelector('th').innerText"


@pytest.fixture(autouse=True)
def still_clock() -> Iterator[None]:
    """Put the database's clock back where it was."""
    yield
    clock.offset = 0.0


def test_the_timeline_by_keyboard(open_page: OpenPage, three: Workflow) -> None:
    task = run_units(three, 3)
    held = claim(three)
    clock.offset += 40
    holder.record_failure(held, attempt("NoBucket"), retries=3, backoff=600)
    with open_page("viewer") as page:
        page.goto(f"/tasks/{task.id}/?list=tag%3Dx")

        def press(*keys: str) -> str:
            for key in keys:
                page.keyboard.press(key)
            return " ".join(str(page.evaluate(HERE)).split())

        page.locator("#task-timeline tbody th a").first.focus()
        assert press("ArrowDown") == "Not started b"
        assert press("End", "ArrowDown") == "Not started c"
        assert press("Home").startswith("Scheduled a")
        press("ArrowLeft")  # to the unit before the one that the panel shows
        page.wait_for_selector("#task-panel >> text=Output of a, turn 1")
        assert press().startswith("Scheduled a")
        press("ArrowRight")
        page.wait_for_selector("#task-panel >> text=Output of a, turn 2")
        page.get_by_role("link", name="Attempts", exact=True).click()
        page.wait_for_selector("#task-timeline tr.sub")
        page.locator("#task-timeline tbody th a").first.focus()
        assert press("ArrowRight", "ArrowRight") == "Completed turn 1"
        assert press("ArrowLeft", "ArrowLeft").startswith("Scheduled a")
        press("+")
        wait_until(lambda: "zoom=" in page.url, 10)
        page.wait_for_selector("#task-timeline [data-zoom='0']")
        press("0")
        wait_until(lambda: "zoom=" not in page.url, 10)
        for part in ("view=attempts", "list=tag", "unit="):
            assert part in page.url
        page.locator("#wf-find").fill("+0")  # a letter that is typed means nothing else
        assert "zoom=" not in page.url
        page.locator("#wf-find").fill("bucket")
        page.keyboard.press("Enter")
        page.wait_for_url("**find=bucket**")
        rows = page.locator("#task-timeline tbody tr").all_inner_texts()
        assert [" ".join(row.split()[:4]) for row in rows][1:] == ["Failed turn 3 40"]
        page.goto(f"/tasks/{task.id}/?view=attempts")
        assert find_faults(page) == []
        for width in (320, 390, 1440):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_timeline_without_a_script(open_page: OpenPage, three: Workflow) -> None:
    task = run_units(three, 3)
    clock.offset += 40  # of less than a second nothing is zoomed into
    with open_page("viewer", java_script_enabled=False) as page:
        page.goto(f"/tasks/{task.id}/")
        page.get_by_role("link", name="Attempts", exact=True).click()
        assert page.locator("#task-timeline tr.sub").count() >= 3
        page.get_by_role("link", name="Zoom in").click()
        assert "zoom=" in page.url
        page.get_by_role("link", name="All", exact=True).click()
        assert "zoom=" not in page.url
        page.get_by_label("Only of the kind").select_option("done")
        page.get_by_role("button", name="Narrow").click()
        assert "view=attempts" in page.url
        page.get_by_role("link", name="Show all").click()
        assert "kind=" not in page.url
        page.get_by_role("link", name="Failed only").click()
        assert "Nothing here is a failure" in page.locator("#task-timeline").inner_text()
