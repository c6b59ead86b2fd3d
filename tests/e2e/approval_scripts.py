"""What a person does on lists of questions and of trouble; test_actions.py drives it three ways."""

from __future__ import annotations

from collections.abc import Callable

from ledger import states
from ledger.events import Actor
from ledger.models import Approval
from ledger.transitions.approvals import decide_approval
from ledger.workflows import Workflow
from tests.e2e.hands import Mouse
from tests.e2e.kit import wait_until
from tests.factories import ask, claim, make_in, make_workflow, submit

SECONDS = 30.0


def put(workflow: Workflow, title: str, **options: object) -> Approval:
    """An open question of a new task, which is first in line."""
    submit(workflow, title=title, priority=100)
    return Approval.objects.get(pk=ask(claim(workflow), workflow, **options).pk)


def answer_one_after_the_other(hands: Mouse, three: Workflow) -> None:
    """The address keeps the filter, and the next question of it comes by itself."""
    first, other = put(three, "Ferries", expires=900), put(three, "Tides", risk="high")
    last = put(three, "Ferries of the north")
    hands.page.goto("/approvals/")
    hands.write("Subject, step, task or id", "ferries")
    hands.press("Filter")
    hands.page.wait_for_url("**/approvals/?*q=ferries*")
    assert hands.page.locator(f"#queue-{other.id}").count() == 0
    hands.use(hands.page.locator(f"#queue-{first.id} a"))
    hands.page.wait_for_url(f"**/approvals/{first.id}/?*q=ferries*")
    hands.press("Approve")
    hands.page.wait_for_url(f"**/approvals/{last.id}/?*q=ferries*")
    wait_until(lambda: Approval.objects.get(pk=first.pk).status == "approved", SECONDS)


def look_through_answers(hands: Mouse, three: Workflow) -> None:
    for title in ("Ferries", "Tides"):
        asked = put(three, title)
        decide_approval(asked.pk, decision="reject", actor=Actor("cli", "ann"),
                        digest=asked.digest, comment=f"no {title}")  # fmt: skip
    hands.page.goto("/approvals/")
    hands.press("All answers", "link")
    hands.page.get_by_text("no Ferries").wait_for()
    hands.write("Subject, step, task or id", "tides")
    hands.press("Filter")
    hands.page.wait_for_url("**/approvals/answers/?*q=tides*")
    assert hands.page.get_by_text("no Ferries").count() == 0
    hands.page.get_by_text("no Tides").wait_for()


def look_through_what_gave_up(hands: Mouse, three: Workflow) -> None:
    task, other = make_in(states.DEAD, three), make_in(states.DEAD, make_workflow("five"))
    hands.page.goto("/stalled/?kind=gave-up")
    hands.write("Title, id or error", str(task.id))
    hands.press("Filter")
    hands.page.wait_for_url("**/stalled/?*q=*")
    hands.page.locator(f"#row-{task.id}").wait_for()
    assert hands.page.locator(f"#row-{other.id}").count() == 0
    hands.press("In the task list", "link")
    hands.page.wait_for_url("**/tasks/?*failure=Boom*")
    hands.find("three", "link").wait_for()


SCRIPTS: dict[str, Callable[[Mouse, Workflow], None]] = {
    "answer.next": answer_one_after_the_other,
    "answers.filter": look_through_answers,
    "trouble.filter": look_through_what_gave_up,
}
