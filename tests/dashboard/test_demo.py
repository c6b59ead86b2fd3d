"""Deleting the demo from the list of tasks: what goes, what stays and why; links then end."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from ledger.models import AuditEntry, Task
from ledger.transitions import operators
from ledger.transitions.deleting import DEMO
from ledger.transitions.submit import submit_task
from ledger.workflows import Workflow
from tests.dashboard.conftest import PART
from tests.factories import OPERATOR, submit

pytestmark = [pytest.mark.both_databases, pytest.mark.case(73)]
PATH = "/tasks/demo/"
LABEL = "Delete demo tasks…"


def submit_demo(flow: Workflow, key: str, title: str) -> Task:
    """A queued task as `up` submits it."""
    return submit_task(workflow=flow, input={}, key=key, actor=DEMO, title=title)[0]


def test_the_form_says_what_goes_and_what_stays(operator: Client, three: Workflow) -> None:
    done, busy = submit_demo(three, "demo-1", "First"), submit_demo(three, "demo-2", "Second")
    operators.cancel_task(done.id, actor=OPERATOR)
    assert LABEL in operator.get("/tasks/").content.decode()
    for headers in ({}, PART):
        text = operator.get(PATH, headers=headers).content.decode()
        assert "<b>First</b> is deleted" in text
        assert "<b>Second</b> stays: it is queued; cancel it first." in text
        assert "Delete 1 task</button>" in text
        assert ("</html>" in text) is (not headers)
    operator.post(PATH, {"reason": "seen enough"})
    page = operator.get("/tasks/").content.decode()
    assert "1 demo task deleted. Second stays: it is queued; cancel it first." in page
    assert list(Task.objects.all()) == [busy]
    assert AuditEntry.objects.get(action="deleted").reason == "seen enough"
    for name in ("task", "outputs", "events"):
        assert operator.get(reverse(f"dashboard:{name}", args=[done.id])).status_code == 404
    assert operator.get(reverse("dashboard:act", args=[done.id, "retry"])).status_code == 404
    posted = operator.post(reverse("dashboard:act", args=[done.id, "pause"]), headers=PART)
    assert posted.status_code == 404


def test_without_a_demo_there_is_no_button(operator: Client, three: Workflow) -> None:
    submit(three)
    assert LABEL not in operator.get("/tasks/").content.decode()
    text = operator.get(PATH).content.decode()
    assert "There is no demo task." in text
    assert "disabled>Delete 0 tasks" in text
    assert operator.post(PATH).status_code == 302
    assert Task.objects.count() == 1
