"""A task's page in a browser: parts that change in place, dialogs, keys, and no script at all."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import pytest

from ledger import clock, queries, states
from ledger.models import Task
from ledger.transitions import holder, operators
from ledger.workflows import Workflow
from tests.e2e.conftest import OpenPage
from tests.e2e.kit import wait_until
from tests.e2e.test_look import find_faults, name_faults
from tests.factories import LEASE, OPERATOR, ask, attempt, claim, make_in, make_unit, submit

pytestmark = pytest.mark.browser

FOCUSED = "node => node === document.activeElement"


@pytest.fixture(autouse=True)
def still_clock() -> Any:
    """Put the database's clock back where it was."""
    yield
    clock.offset = 0.0


def run_units(workflow: Workflow, turns: int) -> Task:
    """A task whose first step ran `turns` times."""
    task = submit(workflow)
    for turn in range(turns):
        held = claim(workflow)
        unit = make_unit(
            held, workflow, next_index=0, next_name="a", next_turn=turn + 1,
            output=f'{{"turn": {turn}}}',
        )  # fmt: skip
        holder.settle_unit(held, unit)
    return task


def test_a_chosen_unit_stays_through_polls_and_a_reload(
    open_page: OpenPage, three: Workflow
) -> None:
    task = run_units(three, 3)
    with open_page("operator") as page:
        page.goto(f"/tasks/{task.id}/")
        page.evaluate("window.node = document.querySelector('#task-panel')")
        page.locator("#panel-units summary").click()
        page.locator("#panel-units a", has_text="turn 0").click()
        page.wait_for_selector("#task-panel >> text=Output of a, turn 0")
        page.locator("#panel-units a", has_text="turn 1").click()
        page.wait_for_selector("#task-panel >> text=Output of a, turn 1")
        # The same link again: nothing of it was kept that would answer "unchanged".
        page.locator("#panel-units a", has_text="turn 0").click()
        page.wait_for_selector("#task-panel >> text=Output of a, turn 0")
        assert page.evaluate("window.node.isConnected")
        assert "?unit=" in page.url
        operators.pause_task(task.id, actor=OPERATOR)
        page.wait_for_selector("#task-vitals[data-status=paused]")
        assert page.locator("#task-panel >> text=Output of a, turn 0").is_visible()
        assert page.locator("#panel-units").get_attribute("open") is not None
        page.reload()
        assert page.locator("#task-panel >> text=Output of a, turn 0").is_visible()
        page.get_by_role("link", name="Back to what goes on").click()
        page.wait_for_selector("#task-panel >> text=Last output of a, turn 2")
        page.locator("#task-timeline").get_by_role("link", name="c", exact=True).click()
        page.wait_for_selector("#task-panel >> text=c has no output yet")
        assert page.locator("#task-timeline tr.sel").inner_text().startswith("Not started")


def test_an_unchanged_poll_leaves_every_part_alone(open_page: OpenPage, three: Workflow) -> None:
    task = make_in(states.RUNNING, three)
    with open_page("viewer") as page:
        page.goto(f"/tasks/{task.id}/?squeeze=0")
        page.evaluate("""() => {
            window.changes = 0;
            const watch = new MutationObserver((all) => { window.changes += all.filter(
                (one) => !one.target.closest?.('time, .nowl, .nowt, .grows')).length; });
            for (const id of ['task-timeline', 'task-panel', 'task-past', 'task-events'])
                watch.observe(document.getElementById(id), {subtree: true, childList: true,
                                                            attributes: true});
        }""")
        for _ in range(2):
            with page.expect_response(lambda one: "squeeze=0" in one.url) as answered:
                pass
            assert (answered.value.status, answered.value.headers.get("content-length", "0")) == (
                304, "0",
            )  # fmt: skip
        assert page.evaluate("window.changes") == 0


def test_stop_now_comes_by_itself_when_a_unit_goes_on(open_page: OpenPage, three: Workflow) -> None:
    task = make_in(states.RUNNING, three)
    with open_page("operator") as page:
        page.goto(f"/tasks/{task.id}/")
        page.get_by_role("button", name="Cancel…").click()
        page.wait_for_selector("#dialog[open]")
        assert "Stop now appears after 10 s" in page.locator("#dialog").inner_text()
        page.get_by_role("button", name="Cancel task").click()
        page.wait_for_selector("#task-actions >> text=It is asked")
        assert page.get_by_role("button", name="Cancel…").is_disabled()
        clock.offset += queries.STOP_AFTER + 1
        page.get_by_role("button", name="Stop now…").click()
        page.wait_for_selector("#dialog[open]")
        assert "host:1 is fenced off at once" in page.locator("#dialog").inner_text()
        page.get_by_role("button", name="Stop now", exact=True).click()
        page.wait_for_selector("#task-vitals[data-status=cancelled]")


def test_a_lease_that_runs_out_is_counted_down(open_page: OpenPage, three: Workflow) -> None:
    task = make_in(states.RUNNING, three)
    with open_page("viewer") as page:
        page.goto(f"/tasks/{task.id}/")
        assert page.locator("text=Lease held").is_visible()
        clock.offset += LEASE - 8
        page.wait_for_selector("#task-vitals time[data-time=left]")
        clock.offset += 20
        page.wait_for_selector("#task-head >> text=Lost")


def test_the_restart_dialog_by_keyboard_names_its_step(
    open_page: OpenPage, three: Workflow
) -> None:
    task = submit(three)
    held = claim(three)
    holder.settle_unit(held, make_unit(held, three))
    with open_page("operator") as page:
        page.goto(f"/tasks/{task.id}/")
        page.get_by_role("button", name="Restart from step…").focus()
        page.keyboard.press("Enter")
        page.wait_for_selector("#dialog[open]")
        wait_until(lambda: page.locator("#dialog [data-close]").evaluate(FOCUSED), 5)
        assert page.get_by_role("button", name="Restart from b").is_visible()
        page.locator("#dialog input[type=radio]:checked").focus()
        page.keyboard.press("ArrowDown")
        assert page.get_by_role("button", name="Restart from a").is_visible()
        page.get_by_label("Feedback for the step").focus()
        page.keyboard.type("read it again")
        page.get_by_role("button", name="Restart from a").focus()
        page.keyboard.press("Enter")
        page.wait_for_selector("#repairs-h >> text=Repairs")
        page.wait_for_selector("#task-past >> text=read it again")
        assert page.locator("#dialog[open]").count() == 0
        assert page.evaluate("document.activeElement.closest('#task-actions') !== null")


def test_axe_finds_nothing_in_any_state(open_page: OpenPage, three: Workflow) -> None:
    busy = run_units(three, 2)
    operators.restart_task(busy.id, to_step="a", note="again", actor=OPERATOR)
    holder.record_failure(claim(three), attempt(), retries=3, backoff=600)
    asked = submit(three)
    ask(claim(three), three)
    faults = {}
    with open_page("operator") as page:
        for task in (busy, asked, make_in(states.PAUSED, three), make_in(states.COMPLETED, three)):
            page.goto(f"/tasks/{task.id}/")
            faults[task.id] = find_faults(page)
        page.goto(f"/tasks/{busy.id}/events/?kind=repaired")
        faults["events"] = find_faults(page)
    assert name_faults(faults) == {}


def test_axe_finds_nothing_in_any_dialog(open_page: OpenPage, three: Workflow) -> None:
    running = make_in(states.RUNNING, three)
    operators.cancel_task(running.id, actor=OPERATOR)
    clock.offset += queries.STOP_AFTER + 1
    plain = make_in(states.RUNNING, three)
    faults = {}
    with open_page("operator") as page:
        for label in (
            "Retry now…", "Restart from step…", "Extend limit…", "Cancel…", "Stop now…",
            "Change…", "Send signal…", "Copy from step…",
        ):  # fmt: skip
            page.goto(f"/tasks/{running.id if label == 'Stop now…' else plain.id}/")
            page.get_by_role("button", name=label).click()
            page.wait_for_selector("#dialog[open]")
            faults[label] = find_faults(page)
            page.set_viewport_size({"width": 320, "height": 640})
            assert page.evaluate("document.documentElement.scrollWidth") <= 320
            page.set_viewport_size({"width": 1440, "height": 900})
    assert name_faults(faults) == {}


def test_nothing_needs_a_script(open_page: OpenPage, three: Workflow) -> None:
    task = run_units(three, 2)
    with open_page("operator", java_script_enabled=False) as page:
        page.goto(f"/tasks/{task.id}/")
        page.locator("#panel-units summary").click()
        page.locator("#panel-units a", has_text="turn 0").click()
        assert page.locator("#task-panel >> text=Output of a, turn 0").is_visible()
        page.locator("#task-events .kinds a").first.click()
        assert page.locator("#event-1").is_visible()
        page.go_back()
        page.get_by_role("button", name="Extend limit…").click()
        page.get_by_label("Units").fill("77")
        page.get_by_role("button", name="Extend limit", exact=True).click()
        assert "of 77" in page.locator("#task-vitals").inner_text()
        for width in (320, 390, 768, 1024, 1440, 1920):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_letter_opens_a_dialog_and_does_nothing(open_page: OpenPage, three: Workflow) -> None:
    task = run_units(three, 1)
    before = Task.objects.get(pk=task.pk).revision
    with open_page("operator") as page:
        page.goto(f"/tasks/{task.id}/")
        for key, title in (("c", "Cancel task"), ("Shift+R", "Restart from step")):
            page.keyboard.press(key)
            page.wait_for_selector(f"#dialog[open] >> text={title}")
            wait_until(lambda: page.locator("#dialog [data-close]").evaluate(FOCUSED), 5)
            page.keyboard.press("c")  # nothing is pressed through an open dialog
            page.keyboard.press("Enter")
            page.wait_for_selector("#dialog:not([open])", state="attached")
        assert page.locator(".acts kbd").all_inner_texts() == ["⇧R", "C"]
        page.evaluate("document.documentElement.dataset.keys = 'off'")
        page.keyboard.press("c")
        assert page.locator(".acts kbd").first.is_hidden()
        assert page.locator("#dialog[open]").count() == 0
    assert Task.objects.get(pk=task.pk).revision == before


def test_a_task_knows_its_neighbours_in_the_list(open_page: OpenPage, three: Workflow) -> None:
    first, second, third = (submit(three, title=name, tags=["x"]) for name in ("one", "two", "six"))
    submit(three, title="other")
    with open_page("viewer") as page:
        page.goto(f"/tasks/{second.id}/")
        assert page.locator("#around").is_hidden()
        page.goto("/tasks/?tag=x")
        page.keyboard.press("j")
        page.keyboard.press("j")
        page.keyboard.press("k")
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/tasks/{second.id}/?list=tag%3Dx")
        page.keyboard.press("]")
        page.wait_for_url(f"**/tasks/{first.id}/?list=tag%3Dx")
        assert page.locator("#around [rel=next]").get_attribute("href") is None
        page.get_by_role("link", name="Previous task").click()
        page.wait_for_url(f"**/tasks/{second.id}/?list=tag%3Dx")
        page.keyboard.press("[")
        page.wait_for_url(f"**/tasks/{third.id}/?list=tag%3Dx")
        page.locator("#back").click()
        page.wait_for_url("**/tasks/?tag=x")


@pytest.mark.parametrize("secure", [True, False])
def test_an_id_and_an_output_are_copied_whole(
    open_page: OpenPage, three: Workflow, secure: bool
) -> None:
    """Over plain http a browser has no clipboard for scripts, and the old way is taken."""
    task = run_units(three, 1)
    with open_page("viewer", permissions=["clipboard-read", "clipboard-write"]) as page:
        page.goto(f"/tasks/{task.id}/")
        if not secure:
            page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(); }")
        for name, text in (("id", str(task.id)), ("output", '{\n  "turn": 0\n}')):
            page.get_by_role("button", name=re.compile(f"^Copy th.*{name}")).click()
            page.wait_for_selector("#announce >> text=Copied.")
            assert page.evaluate("navigator.clipboard.readText()") == text


def test_the_line_of_now_moves_between_two_answers(open_page: OpenPage, three: Workflow) -> None:
    task = make_in(states.RUNNING, three)
    begun = task.created_at - dt.timedelta(minutes=2)
    Task.objects.filter(pk=task.pk).update(created_at=begun, claimed_at=begun)
    place = "parseFloat(document.querySelector('.nowl').getAttribute('x1'))"
    width = "parseFloat(document.querySelector('.grows').getAttribute('width'))"
    with open_page("viewer") as page:
        page.goto(f"/tasks/{task.id}/")
        began = page.evaluate(f"[{place}, {width}]")
        wait_until(lambda: page.evaluate(place) > began[0], 10)
        assert page.evaluate(width) > began[1]
