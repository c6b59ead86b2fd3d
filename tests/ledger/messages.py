"""Messages to an agent, for tasks that have none."""

from __future__ import annotations

from ledger import clock, registry
from ledger.bounds import MESSAGE
from ledger.models import Signal, Task
from ledger.transitions import steering
from ledger.workflows import Workflow
from tests.factories import OPERATOR


def steer_some(task: Task, flow: Workflow) -> None:
    """Tell a step something, as if it were an agent's."""
    setattr(flow.steps[0].fn, registry.AGENT, True)
    steering.steer_task(task.pk, text="go left", actor=OPERATOR)


def withdraw_some(task: Task) -> None:
    """Take back a message that no unit has taken."""
    message = Signal.objects.create(
        task=task, name=MESSAGE, data={"text": "go"}, by="user:1", at=clock.now()
    )
    steering.withdraw_message(task.pk, message.pk, actor=OPERATOR)
