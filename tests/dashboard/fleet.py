"""Workers as rows, and a ledger with one of everything that needs somebody."""

from __future__ import annotations

from typing import Any

from ledger import clock, states
from ledger.models import Task, Worker
from ledger.workflows import Workflow
from tests.factories import LEASE, OWNER, claim, expire_lease, make_in, make_workflow, submit


def make_worker(*workflows: Workflow, owner: str = OWNER, **fields: Any) -> Worker:
    """A worker that beats now and knows `workflows`; again for the same owner, it beats again."""
    host, pid, _ = owner.split(":")
    knows = [
        {
            "workflow": one.name,
            "version": one.version,
            "digest": one.digest(),
            "steps": [step.name for step in one.steps],
        }
        for one in workflows
    ]
    now = clock.read()
    facts = {"host": host, "pid": int(pid), "started_at": now, "seen_at": now, "knows": knows}
    return Worker.objects.update_or_create(owner=owner, defaults=facts | fields)[0]


def fill_with_trouble(three: Workflow) -> None:
    """Two that gave up, one lost, two stalled, three that nobody can run, one question."""
    lost = submit(three)
    claim(three)
    expire_lease()
    for _ in range(2):
        submit(three, stall_after=20.0)
        claim(three)
    clock.offset += LEASE / 2
    for number in range(3):
        submit(make_workflow("unknown", version=str(number)))
    for _ in range(2):
        make_in(states.DEAD, three)
    make_in(states.WAITING, three)
    make_worker(three)  # beats at the time of now
    assert Task.objects.get(pk=lost.pk).status == states.RUNNING
