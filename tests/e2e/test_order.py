"""Answers that come late or out of order: what is shown never goes back, nothing typed is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db.models import F

from ledger import clock, queries, states
from ledger.models import Task
from ledger.transitions import approvals, holder
from ledger.workflows import Workflow
from tests.e2e.conftest import OpenPage
from tests.e2e.kit import wait_until
from tests.factories import OPERATOR, ask, claim, complete, make_unit, submit

pytestmark = pytest.mark.browser

LATE = """
(() => {
  const ask = window.fetch;
  window.polls = 0;
  window.seen = [];
  window.held = [];
  window.fetch = async (...given) => {
    const options = given[1] ?? {};
    const headers = new Headers(options.headers);
    const answer = await ask(...given);
    if (!headers.get("HX-PTag") || !String(given[0]).includes("/tasks/")) return answer;
    window.polls += 1;
    if (window.holds) await new Promise((go) => window.held.push(go));
    else if (window.polls % 2 === 0) await new Promise((go) => setTimeout(go, 3000));
    return answer;
  };
  new MutationObserver(() => {
    const status = document.querySelector("#task-vitals")?.dataset.status;
    if (status && status !== window.seen.at(-1)) window.seen.push(status);
  }).observe(document, { subtree: true, childList: true, attributes: true });
})();
"""
"""A proxy's delay between answer and page: of every second poll, or of all while it holds."""


@pytest.fixture(autouse=True)
def still_clock() -> Iterator[None]:
    """Put the database's clock back where it was."""
    yield
    clock.offset = 0.0


@pytest.mark.case(71)
def test_late_answers_turn_nothing_back_and_keep_what_is_typed(
    open_page: OpenPage, three: Workflow
) -> None:
    task = submit(three)
    held = claim(three)
    with open_page("operator") as page:
        page.add_init_script(LATE)
        page.goto(f"/tasks/{task.id}/")
        page.locator("#wf-find").fill("half a wo")
        page.locator(".acts [data-key=c]").click()
        page.wait_for_selector("#dialog[open]")
        reason = page.locator("#dialog [name=reason]")
        reason.fill("because of")
        reason.evaluate("field => field.setSelectionRange(3, 7)")
        buttons = page.locator(".acts .btn").all_inner_texts()
        asked = ask(held, three)
        wait_until(lambda: "waiting" in page.evaluate("window.seen"), 20)
        assert page.locator(".acts .btn").all_inner_texts() == buttons
        approvals.decide_approval(asked.id, decision="approve", actor=OPERATOR, digest=asked.digest)
        while (left := queries.find_task(task.pk)).status == states.QUEUED:
            complete(claim(three), three) if left.step_index == 2 else _go_on(three)
        wait_until(lambda: page.evaluate("window.seen").count("completed"), 20)
        assert page.evaluate("window.polls") >= 3
        order = [states.RUNNING, states.WAITING, states.QUEUED, states.RUNNING, states.COMPLETED]
        rest = iter(order)
        assert all(status in rest for status in page.evaluate("window.seen"))
        assert page.locator("#dialog[open]").count() == 1
        assert reason.input_value() == "because of"
        assert reason.evaluate(
            "f => [f === document.activeElement, f.selectionStart, f.selectionEnd]"
        ) == [True, 3, 7]
        assert page.locator("#wf-find").input_value() == "half a wo"


def _go_on(workflow: Workflow) -> None:
    """The next unit."""
    held = claim(workflow)
    holder.settle_unit(held, make_unit(held, workflow))


@pytest.mark.case(71)
def test_an_answer_from_before_an_action_is_not_shown_after_it(
    open_page: OpenPage, three: Workflow
) -> None:
    task = submit(three)
    with open_page("operator") as page:
        page.add_init_script(LATE + "window.holds = true;")
        page.goto(f"/tasks/{task.id}/")
        Task.objects.filter(pk=task.pk).update(revision=F("revision") + 1)
        wait_until(lambda: page.evaluate("window.held.length"), 10)  # it says queued
        page.get_by_role("button", name="Pause", exact=True).click()
        page.wait_for_selector("#task-vitals[data-status=paused]")
        page.evaluate("window.holds = false; window.held.forEach((go) => go());")
        polls = page.evaluate("window.polls")
        wait_until(lambda: page.evaluate("window.polls") > polls, 15)
        assert page.evaluate("window.seen") == ["queued", "paused"]
