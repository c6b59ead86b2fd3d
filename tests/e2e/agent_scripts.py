"""What a person tells an agent at work; tests/e2e/test_actions.py drives it in three ways."""

from __future__ import annotations

from collections.abc import Callable

from ledger import registry
from ledger.models import Event, Signal, Task
from ledger.transitions.steering import steer_task
from ledger.workflows import Workflow
from tests.e2e.hands import Mouse
from tests.factories import OPERATOR, submit


def submit_to_agent(three: Workflow) -> Task:
    vars(three.steps[0].fn)[registry.AGENT] = True
    return submit(three)


def steer(hands: Mouse, three: Workflow) -> None:
    task = submit_to_agent(three)
    hands.page.goto(f"/tasks/{task.id}/")
    hands.press("Tell the agent…")
    hands.write("What the agent is told", "go left")
    hands.press("Tell the agent")
    hands.page.get_by_text("Sent; the agent is told at its next turn.").wait_for()
    assert Signal.objects.get(task=task).data == {"text": "go left"}


def withdraw(hands: Mouse, three: Workflow) -> None:
    task = submit_to_agent(three)
    steer_task(task.pk, text="go left", actor=OPERATOR)
    hands.page.goto(f"/tasks/{task.id}/transcript/")
    hands.press("Withdraw…")
    hands.write("Reason", "it knows")
    hands.press("Withdraw message")
    hands.page.get_by_text("Withdrawn.").wait_for()
    assert Event.objects.filter(task=task, kind="steer_withdrawn").exists()


SCRIPTS: dict[str, Callable[[Mouse, Workflow], None]] = {
    "task.steer": steer,
    "task.withdraw": withdraw,
}
