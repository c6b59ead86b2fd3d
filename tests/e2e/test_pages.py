"""The pages in a browser: polls that disturb nobody, dialogs, answers; no error in any console."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session

from ledger import sql, states
from ledger.models import Approval, Task
from ledger.transitions import holder, operators
from ledger.transitions.approvals import decide_approval
from ledger.workflows import Workflow
from tests.e2e.conftest import OpenPage
from tests.e2e.kit import wait_until
from tests.factories import LEASE, OPERATOR, ask, claim, make_in, make_unit, submit

pytestmark = pytest.mark.browser

MARK = "document.querySelector('#task-vitals').dataset.marked = 'yes'"


def is_poll(response: Any) -> bool:
    """True for the answer to a poll of a task's page."""
    return "/tasks/" in response.url and "hx-request" in response.request.headers


def read_status(page: Any) -> str:
    """The status that a task's page shows."""
    return str(page.locator("#task-vitals").get_attribute("data-status"))


def test_an_unchanged_poll_leaves_the_page_alone(open_page: OpenPage, three: Workflow) -> None:
    task = make_in(states.RUNNING, three)
    with open_page("operator") as page:
        page.goto(f"/tasks/{task.id}/")
        page.wait_for_selector("#task-log p")  # it comes by a request of its own, the first
        page.evaluate("window.node = document.querySelector('#task-vitals'); " + MARK)
        for _ in range(2):
            with page.expect_response(is_poll) as answered:
                pass
            assert answered.value.status == 304
        assert page.evaluate("window.node.isConnected && window.node.dataset.marked") == "yes"


def test_a_change_keeps_what_is_open_and_where_the_focus_is(
    open_page: OpenPage, three: Workflow
) -> None:
    task = submit(three)
    held = claim(three)
    sql.checkpoint_unit(held, make_unit(held, three), lease_seconds=LEASE, groups=[])
    with open_page("operator") as page:
        page.goto(f"/tasks/{task.id}/?step=a")
        unit = page.locator("#panel-units")
        unit.locator("summary").click()
        page.get_by_role("button", name="Pause", exact=True).focus()
        operators.pause_task(task.id, actor=OPERATOR)
        page.wait_for_selector("#task-events >> text=Pause")
        assert unit.get_attribute("open") is not None
        assert page.evaluate("document.activeElement.closest('#task-actions') !== null")


def test_the_end_of_a_task_ends_the_polling(open_page: OpenPage, three: Workflow) -> None:
    task = make_in(states.QUEUED, three)
    with open_page("viewer") as page:
        page.goto(f"/tasks/{task.id}/")
        operators.cancel_task(task.id, actor=OPERATOR)
        page.wait_for_selector("#task-vitals[data-status=cancelled]")
        # The log asks once more by itself, and is told that this was the end of it.
        wait_until(lambda: page.locator("[hx-trigger^=every]").count() == 0, 10)
        wait_until(lambda: page.locator("#live").is_hidden(), 10)


def test_a_hidden_tab_asks_for_nothing(open_page: OpenPage, three: Workflow) -> None:
    task = make_in(states.RUNNING, three)
    with open_page("viewer") as page:
        page.goto(f"/tasks/{task.id}/")
        page.evaluate("""() => {
            window.held = 0;
            Object.defineProperty(document, 'hidden', {configurable: true, get: () => true});
            document.addEventListener('htmx:before:request', (event) => {
                window.held += event.defaultPrevented ? 1 : 100;
            });
        }""")
        wait_until(lambda: page.evaluate("window.held") >= 2, 20)
        assert page.evaluate("window.held") < 100
        with page.expect_response(is_poll):
            page.evaluate("""() => {
                delete document.hidden;
                document.dispatchEvent(new Event('visibilitychange'));
            }""")


def test_pause_and_resume_change_the_page_at_once(open_page: OpenPage, three: Workflow) -> None:
    task = make_in(states.QUEUED, three)
    with open_page("operator") as page:
        page.goto(f"/tasks/{task.id}/")
        page.get_by_role("button", name="Pause", exact=True).click()
        page.wait_for_selector("#task-vitals[data-status=paused]")
        assert page.get_by_role("status").get_by_text("Paused.").is_visible()
        page.get_by_role("button", name="Resume").click()
        page.wait_for_selector("#task-vitals[data-status=queued]")


@pytest.mark.parametrize("keys", [False, True], ids=["mouse", "keyboard"])
def test_cancel_asks_first_with_the_focus_on_the_safe_button(
    open_page: OpenPage, three: Workflow, keys: bool
) -> None:
    task = make_in(states.QUEUED, three)
    with open_page("operator") as page:
        page.goto(f"/tasks/{task.id}/")
        button, safe = (
            page.get_by_role("button", name="Cancel…"),
            page.locator("#dialog [data-close]"),
        )
        (button.focus(), page.keyboard.press("Enter")) if keys else button.click()
        page.wait_for_selector("#dialog[open]")
        wait_until(lambda: safe.evaluate("node => node === document.activeElement"), 5)
        page.keyboard.press("Enter") if keys else safe.click()
        page.wait_for_selector("#dialog:not([open])", state="attached")
        assert read_status(page) == "queued"
        button.click()
        page.wait_for_selector("#dialog[open]")
        page.get_by_label("Reason").fill("not needed any more")
        page.get_by_role("button", name="Cancel task").click()
        page.wait_for_selector("#task-vitals[data-status=cancelled]")
        assert page.locator("#dialog[open]").count() == 0
        assert "not needed any more" in page.locator("#task-events").inner_text()


def test_a_restart_is_told_what_it_costs_and_a_stale_one_keeps_the_text(
    open_page: OpenPage, three: Workflow
) -> None:
    task = submit(three)
    held = claim(three)
    sql.checkpoint_unit(held, make_unit(held, three), lease_seconds=LEASE, groups=[])
    with open_page("operator") as page:
        page.goto(f"/tasks/{task.id}/")
        page.get_by_role("button", name="Restart from step…").click()
        page.wait_for_selector("#dialog[open]")
        page.get_by_label("1 output superseded").check()
        page.get_by_role("button", name="Restart from a", exact=True).click()
        assert page.locator("#dialog[open]").count() == 1  # the note is required
        page.get_by_label("Feedback for the step").fill("read the second file")
        operators.extend_limits(task.id, limits_given={"units": 77}, actor=OPERATOR)
        page.expected.add(409)
        page.get_by_role("button", name="Restart from a", exact=True).click()
        page.wait_for_selector("#dialog >> text=The task has changed since you looked")
        assert page.get_by_label("Feedback for the step").input_value() == "read the second file"
        page.get_by_role("button", name="Restart from a", exact=True).click()
        page.wait_for_selector("#panel-units .was", state="attached")
        assert Task.objects.get(pk=task.id).feedback["comment"] == "read the second file"


def test_a_refused_action_shows_what_is_true_now(open_page: OpenPage, three: Workflow) -> None:
    task = make_in(states.QUEUED, three)
    with open_page("operator") as page:
        page.goto(f"/tasks/{task.id}/")
        page.get_by_role("button", name="Pause updates").click()
        operators.cancel_task(task.id, actor=OPERATOR)
        page.expected.add(409)
        page.get_by_role("button", name="Pause", exact=True).click()
        page.wait_for_selector("#task-vitals[data-status=cancelled]")
        assert "has changed since you looked" in page.locator("#notices").inner_text()


def put_question(workflow: Workflow, **options: Any) -> Approval:
    """An open question."""
    submit(workflow)
    found = ask(claim(workflow), workflow, **options)
    return Approval.objects.get(pk=found.pk)


def test_an_answer_can_be_undone_for_a_while(open_page: OpenPage, three: Workflow) -> None:
    asked = put_question(three)
    with open_page("approver") as page:
        page.goto(f"/approvals/{asked.id}/")
        page.get_by_role("button", name="Approve", exact=True).click()
        page.get_by_role("button", name="Undo", exact=True).click()
        page.wait_for_selector("#state[data-status=open]")
        page.expected.add(422)
        page.get_by_role("button", name="Reject").click()
        page.wait_for_selector("#comment-wrong")
        page.get_by_label("Comment").fill("the second source is missing")
        page.get_by_role("button", name="Reject").click()
        page.wait_for_selector("#state[data-status=rejected]")
    asked.refresh_from_db()
    assert (asked.status, asked.comment) == ("rejected", "the second source is missing")


def test_what_can_not_be_undone_is_asked_twice(open_page: OpenPage, three: Workflow) -> None:
    asked = put_question(three, risk="high")
    with open_page("approver") as page:
        page.goto(f"/approvals/{asked.id}/")
        page.get_by_label("Comment").fill("looked at all of it")
        page.get_by_role("button", name="Approve…").click()
        page.wait_for_selector("#dialog[open]")
        page.keyboard.press("Escape")
        page.wait_for_selector("#dialog:not([open])", state="attached")
        assert page.get_by_label("Comment").input_value() == "looked at all of it"
        page.get_by_role("button", name="Approve…").click()
        page.locator("#dialog").get_by_role("button", name="Approve", exact=True).click()
        page.wait_for_selector("#state[data-status=approved]")
        assert page.locator("#dialog[open]").count() == 0
    asked.refresh_from_db()
    assert asked.comment == "looked at all of it"


def test_typed_text_survives_somebody_elses_answer(open_page: OpenPage, three: Workflow) -> None:
    asked = put_question(three)
    with open_page("approver") as page:
        page.goto(f"/approvals/{asked.id}/")
        page.get_by_label("Comment").fill("half a sentence")
        decide_approval(asked.id, decision="reject", actor=OPERATOR, digest=asked.digest)
        page.wait_for_selector("#state[data-status=rejected]")
        assert page.get_by_label("Comment").input_value() == "half a sentence"
        page.expected.add(409)
        page.get_by_role("button", name="Approve", exact=True).click()
        page.wait_for_selector("#decision >> text=already rejected")
        assert page.get_by_label("Comment").input_value() == "half a sentence"


def test_a_lost_session_stops_the_polls_and_keeps_the_text(
    open_page: OpenPage, three: Workflow
) -> None:
    asked = put_question(three)
    with open_page("approver") as page:
        page.goto(f"/approvals/{asked.id}/")
        page.get_by_label("Comment").fill("half a sentence")
        page.expected.add(401)
        Session.objects.all().delete()
        page.wait_for_selector("#signed-out:not([hidden])")
        assert page.get_by_label("Comment").input_value() == "half a sentence"
        there = page.locator("#signed-out a").get_attribute("href")
        assert f"next=%2Fapprovals%2F{asked.id}%2F" in there


@pytest.mark.parametrize("ended", ["session", "deactivated"])
def test_a_lost_session_leads_to_the_sign_in_page_and_back(
    open_page: OpenPage, three: Workflow, ended: str
) -> None:
    task = submit(three, title="Tides")
    with open_page("operator") as page:
        page.goto(f"/tasks/{task.id}/?squeeze=0")
        page.expected.add(401)
        if ended == "session":
            Session.objects.all().delete()
        else:
            User.objects.update(is_active=False)
        page.wait_for_url("**/login/?**", timeout=15_000)
        assert f"next=%2Ftasks%2F{task.id}%2F%3Fsqueeze%3D0" in page.url
        assert page.get_by_text("session").first.is_visible()


def test_a_long_diff_loads_when_it_is_opened(open_page: OpenPage, three: Workflow) -> None:
    long = "@@ -1 +1,9 @@\n" + "+line\n" * 1_400
    asked = put_question(
        three, payload={"files": [{"path": f"f{n}", "diff": long} for n in (1, 2)]}
    )
    with open_page("viewer") as page:
        page.goto(f"/approvals/{asked.id}/")
        second = page.locator(".fitem").nth(1)
        assert second.locator("tr.add").count() == 0
        second.locator("summary").click()
        wait_until(lambda: second.locator("tr.add").count() == 1_400, 15)


def test_everything_works_without_a_script(open_page: OpenPage, three: Workflow) -> None:
    asked, task = put_question(three, risk="high"), submit(three)
    with open_page("operator", java_script_enabled=False) as page:
        page.goto("/tasks/")
        page.locator(f"#row-{task.id} a").click()
        page.get_by_role("button", name="Pause", exact=True).click()
        assert read_status(page) == "paused"
        page.get_by_role("button", name="Cancel…").click()
        page.get_by_label("Reason").fill("not needed")
        page.get_by_role("button", name="Cancel task").click()
        assert read_status(page) == "cancelled"
        page.get_by_role("link", name="Approvals").first.click()
        page.locator(f"#queue-{asked.id} a").click()
        page.get_by_role("button", name="Approve…").click()
        page.get_by_role("button", name="Approve", exact=True).click()
        assert page.locator("#state").get_attribute("data-status") == "approved"
        page.get_by_role("button", name="Sign out").click()
        assert page.get_by_role("heading", name="Sign in").is_visible()


def test_a_report_moves_the_bar_by_itself(open_page: OpenPage, three: Workflow) -> None:
    task = submit(three)
    held = claim(three)
    with open_page("viewer") as page:
        page.goto(f"/tasks/{task.id}/")
        holder.report_progress(held.lease, 20, 34, "files edited")
        page.wait_for_selector("#task-vitals >> text=20 of 34 · files edited")


def test_new_tasks_wait_behind_a_button(open_page: OpenPage, three: Workflow) -> None:
    first = submit(three)
    with open_page("viewer") as page:
        page.goto("/tasks/")
        submit(three)
        page.wait_for_selector("text=1 new")
        assert page.locator("tbody tr").count() == 1
        page.locator("text=1 new").click()
        wait_until(lambda: page.locator("tbody tr").count() == 2, 10)
        assert page.locator(f"#row-{first.id}").is_visible()
