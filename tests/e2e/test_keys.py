"""Keys: the palette, the help of a page, the pause; all of it named, none while somebody types."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ledger import clock, states
from ledger.models import Preference
from ledger.transitions import operators
from ledger.workflows import Workflow
from tests.e2e.conftest import OpenPage
from tests.e2e.kit import wait_until
from tests.e2e.test_look import find_faults, name_faults
from tests.factories import OPERATOR, claim, make_in, submit

pytestmark = pytest.mark.browser

CHOSEN = "#palette-found [aria-selected=true]"


@pytest.fixture(autouse=True)
def true_clock() -> None:
    """What other tests moved the database's clock by is taken back."""
    clock.offset = 0.0


def open_palette(page: Any, text: str, chosen: str) -> None:
    """Ctrl K, some letters, and wait for what is offered first."""
    page.keyboard.press("Control+K")
    page.wait_for_selector("#palette[open]")
    page.keyboard.type(text)
    page.wait_for_selector(f"{CHOSEN} >> text={chosen}")


def test_the_palette_goes_places_by_keyboard_alone(open_page: OpenPage, three: Workflow) -> None:
    task, other = submit(three, title="Ferry timetables"), submit(three, title="Tides")
    with open_page("viewer") as page:
        page.goto("/workers/")
        open_palette(page, "ferry", "Ferry timetables")
        field = page.locator("#palette-field")
        option = page.locator(CHOSEN)
        assert field.get_attribute("aria-activedescendant") == option.get_attribute("id")
        assert field.evaluate("node => node === document.activeElement")
        page.keyboard.press("ArrowUp")  # round to the last one
        page.wait_for_selector(f"{CHOSEN} >> text=Tasks with “ferry”")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/tasks/{task.id}/")
        open_palette(page, str(other.id)[:23], "Tides")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/tasks/{other.id}/")
        open_palette(page, "three", "three")
        page.keyboard.press("Enter")
        page.wait_for_url("**/workflows/three/")
        page.keyboard.press("Control+K")
        page.wait_for_selector("#palette[open]")
        page.keyboard.press("Escape")
        page.wait_for_selector("#palette:not([open])", state="attached")
        page.get_by_role("link", name="Go to").click()
        page.wait_for_selector("#palette[open]")


def test_the_palette_offers_what_the_page_can_do(open_page: OpenPage, three: Workflow) -> None:
    task = make_in(states.QUEUED, three)
    with open_page("operator") as page:
        page.goto(f"/tasks/{task.id}/")
        open_palette(page, "canc", "Cancel…")
        page.keyboard.press("Enter")
        page.wait_for_selector("#dialog[open] >> text=Cancel task")
        task.refresh_from_db()
        assert task.status == states.QUEUED


def test_axe_finds_nothing_in_the_palette_the_help_and_a_tooltip(
    open_page: OpenPage, three: Workflow
) -> None:
    task = make_in(states.RUNNING, three)
    with open_page("operator") as page:
        page.goto(f"/tasks/{task.id}/")
        open_palette(page, "t", "")
        faults = {"palette": find_faults(page)}
        page.keyboard.press("Escape")
        page.wait_for_selector("#palette", state="hidden", timeout=3000)
        page.keyboard.press("?")
        page.wait_for_selector("#dialog[open] >> text=Keys of this page")
        assert page.locator("#dialog").get_by_text("restart from a step").is_visible()
        assert page.locator("#dialog").get_by_text("approve, reject").count() == 0
        faults["help"] = find_faults(page)
        page.keyboard.press("Escape")
        page.locator("#task-head time").first.focus()
        page.wait_for_selector("#tip:popover-open")
        faults["tooltip"] = find_faults(page)
    assert name_faults(faults) == {}


def test_a_pause_says_how_much_it_holds_back_and_then_shows_all(
    open_page: OpenPage, three: Workflow
) -> None:
    task = make_in(states.QUEUED, three)
    with open_page("operator") as page:
        page.goto(f"/tasks/{task.id}/")
        page.keyboard.press("l")
        page.get_by_text("nothing has changed since").wait_for()
        for priority in (7, 8):
            operators.change_task(task.id, actor=OPERATOR, priority=priority)
            page.wait_for_selector(f"#paused >> text={priority - 6} change")
        operators.cancel_task(task.id, actor=OPERATOR)
        page.get_by_text(re.compile("[34] changes are held back")).wait_for()  # the log ends too
        assert page.locator("#task-vitals").get_attribute("data-status") == "queued"
        page.keyboard.press("l")
        page.wait_for_selector("#task-vitals[data-status=cancelled]")
        assert page.locator("#paused").is_hidden()
        wait_until(lambda: page.locator("#announce").inner_text() == "Now cancelled.", 10)


def test_the_theme_is_a_key_away_and_stays(open_page: OpenPage, three: Workflow) -> None:
    with open_page("viewer") as page:
        page.goto("/workers/")
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        for theme in ("light", "dark"):
            page.keyboard.press("t")
            page.wait_for_selector(f"html[data-theme={theme}]")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != ground
        page.reload()
        assert page.locator("html").get_attribute("data-theme") == "dark"
        assert Preference.objects.get().theme == "dark"


def test_no_key_does_anything_while_somebody_types_or_where_keys_are_off(
    open_page: OpenPage, three: Workflow
) -> None:
    with open_page("admin") as page:
        page.goto("/tasks/")
        page.keyboard.press("/")
        page.keyboard.type("t l ? g l")
        assert page.locator("input[type=search]").first.input_value() == "t l ? g l"
        assert page.locator("dialog[open]").count() == 0
        for _ in ("suggestions", "text", "field"):  # it closes, clears, then leaves
            page.keyboard.press("Escape")
        page.keyboard.press("g")
        page.keyboard.press("l")
        page.wait_for_url("**/audit/")
        page.evaluate("document.documentElement.dataset.keys = 'off'")
        for key in ("t", "?", "l", "g", "o"):
            page.keyboard.press(key)
        open_palette(page, "workers", "Workers")  # not a single key, so it stays
        assert page.url.endswith("/audit/")
        assert not Preference.objects.exists()


def test_a_time_has_its_other_form_by_pointer_focus_and_tap(
    open_page: OpenPage, three: Workflow
) -> None:
    task = submit(three)
    exact = re.compile(r"\w{3} \d+ \w{3} \d{4}, \d\d:\d\d:\d\d Asia/Kathmandu \(UTC\+05:45\)")
    with open_page("viewer", has_touch=True) as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.goto("/settings/")
        page.locator("#id_zone").select_option("Asia/Kathmandu")
        page.get_by_role("button", name="Save settings").click()
        page.get_by_text("Settings saved.").wait_for()
        page.goto(f"/tasks/{task.id}/events/")
        time, tip = page.locator("main time").first, page.locator("#tip")
        for use in (time.hover, time.focus, time.tap):
            use()
            page.wait_for_selector("#tip:popover-open")
            assert exact.search(tip.inner_text())
            assert " ago" in tip.inner_text()
            page.keyboard.press("Escape")
            assert tip.is_hidden()
            page.evaluate("document.activeElement.blur()")
            page.mouse.move(0, 0)
        time.focus()
        page.keyboard.press("Enter")
        wait_until(lambda: page.locator("#announce").inner_text() == "Copied.", 10)
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied == time.get_attribute("datetime")
        assert copied.endswith("+05:45")


def test_running_times_tick_by_the_servers_clock(open_page: OpenPage, three: Workflow) -> None:
    """The browser's clock is an hour fast and in another zone."""
    task = submit(three)
    claim(three)
    with open_page("viewer", timezone_id="America/St_Johns") as page:
        page.add_init_script("const real = Date.now; Date.now = () => real() + 3600000;")
        page.goto(f"/tasks/{task.id}/")
        offer = page.locator("#zone-offer")
        assert offer.locator("b").inner_text() == "America/St_Johns"
        started = page.locator("#task-head time").first
        before = started.inner_text()
        wait_until(lambda: started.inner_text() != before, 10)
        assert re.fullmatch(r"\d+ s ago|[01] m \d\d s ago", started.inner_text())
        offer.get_by_role("button", name="Use it").click()
        page.wait_for_selector("html[data-zone='America/St_Johns']")
        assert page.locator("#zone-offer").count() == 0
        assert page.url.endswith(f"/tasks/{task.id}/")
