"""An agent's transcript in a browser: followed while it works, readable without a script."""

from __future__ import annotations

import pytest

from ledger import registry
from ledger.transitions.effects import begin_effect
from ledger.workflows import Workflow
from tests.dashboard.test_transcript import EVIL, call, give, say, store_turn
from tests.e2e.conftest import OpenPage
from tests.e2e.test_look import find_faults
from tests.factories import claim, submit

pytestmark = pytest.mark.browser

LONG = "\n".join(f"line {n} " + "w" * 300 for n in range(100))


def test_a_transcript_is_followed_and_what_was_opened_stays_open(
    open_page: OpenPage, three: Workflow
) -> None:
    task = submit(three)
    thinking = {"part_kind": "thinking", "content": EVIL}
    held = store_turn(
        claim(three), three, 0, say(thinking, call("read", {"path": "a" * 200}, "c1")),
        say(give("read", LONG, "c1"), kind="request"),
    )  # fmt: skip
    begin_effect(held, "agent.model", None)
    with open_page("operator") as page:
        page.goto(f"/tasks/{task.id}/")
        page.get_by_text("Asks the model, begun").wait_for()
        thought = page.locator("details.thought")
        thought.locator("summary").click()
        thought.locator("pre", has_text="[U+202E]fdp.exe").wait_for()
        held = store_turn(held, three, 1, say({"part_kind": "text", "content": "the next"}))
        page.locator("#task-transcript", has_text="the next").wait_for()
        assert thought.evaluate("one => one.open")
        assert find_faults(page) == []
        page.get_by_role("link", name="The whole transcript").click()
        page.wait_for_url("**/transcript/")
        for fold in page.locator(".turn summary").all():
            fold.click()
        assert find_faults(page) == []
        page.set_viewport_size({"width": 320, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 320


def test_axe_finds_nothing_in_a_circle_and_the_dialog_that_breaks_it(
    open_page: OpenPage, three: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(three.steps[0].fn, registry.AGENT, True, raising=False)
    task = submit(three)
    held = claim(three)
    for turn in range(3):
        held = store_turn(
            held, three, turn, say(call("look", {"what": "w" * 90}, f"c{turn}")),
            say(give("look", LONG, f"c{turn}", "failed"), kind="request"),
            compaction={"turns": [0, turn], "name": "w" * 90, "text": LONG},
        )  # fmt: skip
    with open_page("operator") as page:
        page.goto(f"/tasks/{task.id}/transcript/")
        page.get_by_text("It goes in circles").wait_for()
        assert find_faults(page) == []
        page.get_by_role("button", name="Tell the agent").click()
        page.wait_for_selector("#dialog[open]")
        assert find_faults(page) == []
        page.set_viewport_size({"width": 320, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 320


def test_without_script_it_is_a_page(open_page: OpenPage, three: Workflow) -> None:
    task = submit(three)
    held = claim(three)
    for turn in range(22):
        held = store_turn(held, three, turn, say({"part_kind": "text", "content": f"turn {turn}!"}))
    with open_page("viewer", java_script_enabled=False) as page:
        page.goto(f"/tasks/{task.id}/")
        page.get_by_role("link", name="The whole transcript").click()
        page.get_by_text("turn 21!").wait_for()
        page.get_by_role("link", name="Earlier turns").click()
        page.get_by_text("turn 0!").wait_for()
        assert page.get_by_text("turn 21!").count() == 0
