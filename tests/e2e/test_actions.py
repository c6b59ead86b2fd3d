"""Every action of the pages, driven by mouse, by keyboard alone and without JavaScript.

A script below says once what a person does and what is true after; the three ways of tests/e2e/
hands.py do it. An error in a console, a refusal of the content policy included, fails the test.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from dashboard.page_actions import PAGE_ACTIONS
from ledger import clock, sql, states
from ledger.models import Approval, Task
from ledger.transitions import operators
from ledger.transitions.approvals import decide_approval
from ledger.transitions.deleting import DEMO
from ledger.transitions.submit import submit_task
from ledger.workflows import Workflow
from tests.dashboard.conftest import PASSWORD, make_user
from tests.e2e.conftest import OpenPage
from tests.e2e.hands import WAYS, Mouse, make_hands
from tests.e2e.kit import strict_page, wait_until
from tests.e2e.more_scripts import MORE_SCRIPTS
from tests.e2e.view_scripts import list_rows
from tests.factories import LEASE, OPERATOR, ask, claim, make_effect, make_in, make_unit, submit
from tests.factories import wait_for as await_signal

pytestmark = pytest.mark.browser

type Script = Callable[[Mouse, Workflow], None]

SCRIPTS: dict[str, Script] = {}
SECONDS = 30.0
DIFF = "@@ -1,2 +1,2 @@\n import re\n-import os\n+import sys\n"
LONG = "@@ -1 +1,9 @@\n" + "+line\n" * 1_400
FORM = {"type": "object", "properties": {"title": {"type": "string", "title": "Report"}}}


def script(name: str) -> Callable[[Script], Script]:
    """Register what a person does for an action."""

    def register(run: Script) -> Script:
        assert name not in SCRIPTS
        SCRIPTS[name] = run
        return run

    return register


def wait_for(row: Any, **fields: Any) -> None:
    """Wait until the stored row has these values."""

    def look() -> bool:
        row.refresh_from_db()
        return all(getattr(row, name) == value for name, value in fields.items())

    wait_until(look, SECONDS)


def open_task(hands: Mouse, task: Task) -> Task:
    """Go to the task's page."""
    hands.page.goto(f"/tasks/{task.id}/")
    return task


def open_question(hands: Mouse, three: Workflow, **options: Any) -> Approval:
    """Go to the page of a new question."""
    submit(three, title="Ferry timetables")
    asked = Approval.objects.get(pk=ask(claim(three), three, **options).pk)
    hands.page.goto(f"/approvals/{asked.id}/")
    return asked


@script("task.pause")
def pause(hands: Mouse, three: Workflow) -> None:
    task = open_task(hands, make_in(states.QUEUED, three))
    hands.press("Pause")
    wait_for(task, status=states.PAUSED)


@script("task.resume")
def resume(hands: Mouse, three: Workflow) -> None:
    task = open_task(hands, make_in(states.PAUSED, three))
    hands.press("Resume")
    wait_for(task, status=states.QUEUED)


@script("task.retry")
def retry(hands: Mouse, three: Workflow) -> None:
    task = open_task(hands, make_in(states.SCHEDULED, three))
    hands.press("Retry now…")
    hands.write("Reason", "the network is back")
    hands.press("Retry now")
    wait_for(task, status=states.QUEUED)


@script("task.restart")
def restart(hands: Mouse, three: Workflow) -> None:
    task = open_task(hands, store_unit(three))
    hands.press("Restart from step…")
    hands.write("Feedback for the step", "read the second file")
    hands.press(re.compile("^Restart from [ab]$"))
    wait_for(task, round=1, status=states.QUEUED)


@script("task.limits")
def extend_limit(hands: Mouse, three: Workflow) -> None:
    task = open_task(hands, make_in(states.RUNNING, three))
    hands.press("Extend limit…")
    hands.write("Units", "77")
    hands.press("Extend limit")
    wait_for(task, limit_units=77)


@script("task.cancel")
def cancel(hands: Mouse, three: Workflow) -> None:
    task = open_task(hands, make_in(states.QUEUED, three))
    hands.press("Cancel…")
    hands.write("Reason", "not needed any more")
    hands.press("Cancel task")
    wait_for(task, status=states.CANCELLED)


@script("task.effect")
def settle_effect(hands: Mouse, three: Workflow) -> None:
    task = make_in(states.DEAD, three)
    effect = make_effect(task)
    open_task(hands, task)
    hands.press("Settle effect…")
    hands.tick("pay of a, turn 0: it was done")
    hands.write("Reason", "seen at the bank")
    hands.press("Settle effect")
    wait_for(effect, status="done")


@script("task.compensate")
def compensate(hands: Mouse, three: Workflow) -> None:
    task = make_effect(make_in(states.DEAD, three), compensation="refund").task
    open_task(hands, task)
    hands.press("Undo effects…")
    hands.press("Undo effects")
    wait_for(task, status_reason=states.COMPENSATING)


@script("task.stop")
def stop(hands: Mouse, three: Workflow) -> None:
    task = make_in(states.RUNNING, three)
    operators.cancel_task(task.id, actor=OPERATOR)
    clock.offset = 11.0  # the unit had its time to look
    open_task(hands, task)
    hands.press("Stop now…")
    hands.write("Reason", "it hangs")
    hands.press("Stop now")
    wait_for(task, status=states.CANCELLED)


@script("task.change")
def change(hands: Mouse, three: Workflow) -> None:
    task = open_task(hands, make_in(states.RUNNING, three))
    hands.press("Change…")
    hands.write("Title", "Ferries")
    hands.write("Priority", "7")
    hands.write("Tags", "nightly, north")
    hands.press("Change")
    wait_for(task, title="Ferries", priority=7, tags=["nightly", "north"], status=states.RUNNING)


@script("task.signal")
def send_signal(hands: Mouse, three: Workflow) -> None:
    task = submit(three)
    await_signal(claim(three), three)
    open_task(hands, task)
    hands.press("Send signal…")
    hands.page.get_by_text("It waits for go, which lets it go on at once").wait_for()
    hands.write("Data", '{"found": 3}')
    hands.press("Send signal")
    wait_for(task, status=states.QUEUED)
    assert task.answer["signal"]["data"] == {"found": 3}


def store_unit(three: Workflow) -> Task:
    """A running task that has stored what a left."""
    task = submit(three)
    held = claim(three)
    sql.checkpoint_unit(held, make_unit(held, three), lease_seconds=LEASE, groups=[])
    return task


@script("task.fork")
def copy_from_a_step(hands: Mouse, three: Workflow) -> None:
    task = open_task(hands, store_unit(three))
    hands.press("Copy from step…")
    hands.write("Input", '{"subject": "ferries"}')
    hands.press(re.compile("^Copy from [ab]$"))
    hands.page.get_by_text("This is the copy.").wait_for()
    copy = Task.objects.get(copied_from=task)
    assert (copy.input, str(copy.id) in hands.page.url) == ({"subject": "ferries"}, True)


@script("task.edit")
def edit_an_output(hands: Mouse, three: Workflow) -> None:
    task = open_task(hands, store_unit(three))
    hands.press("Edit and go on…")
    hands.write("Output", '{"ok": "by hand"}')
    hands.write("Reason", "the source is wrong")
    hands.press("Edit and go on")
    wait_for(task, status=states.QUEUED, round=1)
    hands.page.get_by_text("Edited by admin: the source is wrong").first.wait_for()


@script("stuck.act")
def act_on_a_stuck_task(hands: Mouse, three: Workflow) -> None:
    task = make_in(states.DEAD, three)
    hands.page.goto("/stalled/")
    hands.press(re.compile("^Retry now…"))
    hands.write("Reason", "the network is back")
    hands.press("Retry now")
    wait_for(task, status=states.QUEUED)
    hands.page.wait_for_url("**/stalled/")  # back in the list that it was taken from


@script("answer.approve")
def approve(hands: Mouse, three: Workflow) -> None:
    asked = open_question(hands, three)
    hands.press("Approve")
    wait_for(asked, status="approved", applied_at=None)


@script("answer.approve-final")
def approve_what_can_not_be_undone(hands: Mouse, three: Workflow) -> None:
    asked = open_question(hands, three, risk="high")
    hands.write("Comment", "looked at all of it")
    hands.press("Approve…")
    hands.press("Approve")
    wait_for(asked, status="approved", comment="looked at all of it")
    assert asked.applied_at is not None


@script("answer.settings")
def approve_with_other_settings(hands: Mouse, three: Workflow) -> None:
    asked = open_question(hands, three, form=FORM, proposal={"title": "Ferry"}, money=True)
    hands.write("Report", "Ferry times")
    hands.press("Approve…")
    assert hands.page.get_by_text("You changed 1 setting.").is_visible() or hands.script
    hands.press("Approve")
    wait_for(asked, status="approved", values={"title": "Ferry times"})


@script("answer.reject")
def reject(hands: Mouse, three: Workflow) -> None:
    asked = open_question(hands, three)
    hands.write("Comment", "too early")
    hands.press("Reject")
    wait_for(asked, status="rejected", comment="too early")


@script("answer.send_back")
def send_back(hands: Mouse, three: Workflow) -> None:
    asked = open_question(hands, three, send_back_to="a")
    hands.page.expected.add(422)
    hands.press("Send back")
    hands.page.get_by_text("Say what should change").wait_for()
    hands.write("Comment", "cite the source")
    hands.press("Send back")
    wait_for(asked, status="sent_back", comment="cite the source")


def decide(asked: Approval) -> None:
    """An answer whose time to undo outlives the slowest machine."""
    decide_approval(
        asked.id, decision="approve", actor=OPERATOR, digest=asked.digest, undo_seconds=600
    )


@script("answer.undo")
def undo(hands: Mouse, three: Workflow) -> None:
    asked = open_question(hands, three)
    decide(asked)
    hands.page.goto(f"/approvals/{asked.id}/")
    hands.use(hands.page.locator("#decision").get_by_role("button", name="Undo"))
    wait_for(asked, status="open")


@script("queue.undo")
def undo_in_the_queue(hands: Mouse, three: Workflow) -> None:
    asked = open_question(hands, three)
    decide(asked)
    hands.page.goto("/approvals/")
    hands.press(re.compile("^Undo ?: Go on"))
    wait_for(asked, status="open")


@script("workflow.start")
def start(hands: Mouse, three: Workflow) -> None:
    hands.page.goto(f"/workflows/{three.name}/")
    hands.write("Input", '{"subject": "ferries"}')
    hands.press("Start task")
    hands.page.wait_for_url("**/tasks/*/")
    task = Task.objects.get()
    assert (task.input, str(task.id) in hands.page.url) == ({"subject": "ferries"}, True)


@script("demo.delete")
def delete_the_demo(hands: Mouse, three: Workflow) -> None:
    task, _ = submit_task(workflow=three, input={}, key="demo-three", actor=DEMO)
    kept = submit(three)
    operators.cancel_task(task.id, actor=OPERATOR)
    hands.page.goto("/tasks/")
    hands.press("Delete demo tasks…")
    hands.press("Delete 1 task")
    hands.page.get_by_text("1 demo task deleted.").wait_for()
    assert list_rows(hands) == [str(kept.id)]


@script("sign-in")
def sign_in(hands: Mouse, three: Workflow) -> None:
    make_user("operator", "ann")
    hands.page.context.clear_cookies()
    hands.page.goto("/approvals/")
    hands.write("User name", "ann")
    hands.write("Password", PASSWORD)
    hands.press("Sign in")
    hands.page.get_by_role("heading", name="Approvals", exact=True).wait_for()


@script("sign-out")
def sign_out(hands: Mouse, three: Workflow) -> None:
    hands.page.goto("/tasks/")
    hands.press("Sign out")
    hands.page.wait_for_url("**/login/")
    hands.page.goto("/tasks/")
    assert "/login/" in hands.page.url


@script("request.open-file")
def open_a_file(hands: Mouse, three: Workflow) -> None:
    files = [{"path": f"f{number}.py", "diff": LONG} for number in (1, 2)]
    open_question(hands, three, payload={"files": files})
    second = hands.page.locator(".fitem").nth(1)
    assert second.locator("tr.add").count() == 0
    hands.use(second.locator("summary"))
    if not hands.script:
        hands.press("Open this diff", "link")
        second = hands.page
    wait_until(lambda: second.locator("tr.add").count() == 1_400, SECONDS)


@script("request.mark-seen")
def mark_files_as_seen(hands: Mouse, three: Workflow) -> None:
    files = [{"path": name, "diff": DIFF} for name in ("a.py", "b.py", "c.py")]
    asked = open_question(hands, three, payload={"files": files}, outside_effect=True)
    hands.tick("Seen: b.py")
    if hands.script:
        hands.page.get_by_text("1 of 3 seen").wait_for()
        hands.page.reload()
        hands.page.get_by_text("1 of 3 seen").wait_for()
    hands.press("Approve…")
    hands.page.get_by_text("2 of 3 files are not marked seen.").wait_for()
    hands.press("Approve")
    wait_for(asked, status="approved")


def test_every_action_has_its_three_tests() -> None:
    assert set(SCRIPTS) == set(PAGE_ACTIONS)
    assert WAYS == ("mouse", "keyboard", "plain")


@pytest.fixture
def moved_clock() -> Any:
    """Put the database's clock back."""
    yield
    clock.offset = 0.0


SCRIPTS |= MORE_SCRIPTS


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_an_action_works(
    open_page: OpenPage, three: Workflow, moved_clock: None, name: str, way: str
) -> None:
    with open_page("admin", java_script_enabled=way != "plain") as page:
        SCRIPTS[name](make_hands(way, page), three)


LETTERS = [("a", {}, "approved"), ("r", {}, "rejected"), ("s", {"send_back_to": "a"}, "sent_back")]


@pytest.mark.parametrize(("letter", "options", "status"), LETTERS)
def test_a_letter_answers(
    open_page: OpenPage, three: Workflow, letter: str, options: dict[str, Any], status: str
) -> None:
    with open_page("approver") as page:
        asked = open_question(make_hands("mouse", page), three, **options)
        page.keyboard.press(letter)
        if letter != "a":  # it opens the comment first; letters typed there are text
            page.keyboard.type("so: ars")
            asked.refresh_from_db()
            assert (asked.status, page.get_by_label("Comment").input_value()) == ("open", "so: ars")
            page.locator("h1").click()
            page.keyboard.press(letter)
        wait_for(asked, status=status)
        page.get_by_role("button", name="Undo", exact=True).wait_for()
        page.keyboard.press("z")
        wait_for(asked, status="open")


@pytest.mark.parametrize("options", [{"risk": "high"}, {"money": True}, {"outside_effect": True}])
def test_no_letter_approves_what_can_not_be_undone(
    open_page: OpenPage, three: Workflow, options: dict[str, Any]
) -> None:
    with open_page("approver") as page:
        asked = open_question(make_hands("mouse", page), three, **options)
        button, dialog = page.get_by_role("button", name="Approve…"), page.locator("#dialog[open]")
        for _ in range(3):
            page.keyboard.press("a")
        assert button.evaluate("node => node === document.activeElement")
        assert dialog.count() == 0
        page.keyboard.press("Enter")
        dialog.wait_for()
        safe = page.locator("#dialog [data-close]")
        wait_until(lambda: safe.evaluate("node => node === document.activeElement"), SECONDS)
        page.keyboard.press("a")
        page.keyboard.press("Enter")  # on the safe button
        page.wait_for_selector("#dialog:not([open])", state="attached")
        asked.refresh_from_db()
        assert asked.status == "open"


def test_letters_that_are_switched_off_do_nothing(open_page: OpenPage, three: Workflow) -> None:
    with open_page("approver") as page:
        page.goto("/legend/")
        page.get_by_role("button", name="Switch these keys off").click()
        page.get_by_role("button", name="Switch these keys on").wait_for()
        asked = open_question(make_hands("mouse", page), three)
        page.keyboard.press("a")
        page.keyboard.press("r")
        assert page.evaluate("document.activeElement === document.body")
        asked.refresh_from_db()
        assert asked.status == "open"


def test_a_wrong_password_says_how_many_tries_are_left(browser: Any, live_server: Any) -> None:
    make_user("operator", "ann")
    with strict_page(browser, base_url=live_server.url) as page:
        page.expected |= {422, 429}
        page.goto("/login/")
        for sentence in ("4 tries left", "3 tries left", "2 tries left", "1 try left", "last try"):
            page.get_by_label("Password").fill("wrong")
            page.get_by_label("User name").fill("ann")
            page.get_by_role("button", name="Sign in").click()
            page.get_by_text(sentence).wait_for()
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_text("Too many tries with this name. Wait 10 minutes").wait_for()
