"""The raw edit as people do it: in a browser's form, refused in words, never an error page."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from django.test import Client

from ledger import sql, states
from ledger.models import AuditEntry, Task
from ledger.transitions import operators
from ledger.transitions.edits import EDITABLE
from ledger.workflows import Workflow
from tests.admin.conftest import HOSTILE, make_actor
from tests.admin.test_pages import locate
from tests.factories import LEASE, claim, make_in, make_unit

EDITS = AuditEntry.objects.filter(action="edit_task")

pytestmark = pytest.mark.both_databases


class Form:
    """The page of one task, filled in as a browser does: with all that it shows."""

    def __init__(self, client: Client, task: Task) -> None:
        self.client = client
        self.path = locate(Task, "change", task.pk)
        response = client.get(self.path)
        assert response.status_code == 200
        form = response.context["adminform"].form
        self.data: dict[str, Any] = {"_save": "Save"}
        for field in form:
            value = field.value()
            if field.name in {"available_at", "deadline_at"}:
                for part, text in enumerate(field.field.widget.decompress(value)):
                    self.data[f"{field.name}_{part}"] = "" if text is None else str(text)
            elif value is not None and value is not False:
                self.data[field.name] = value

    def send(self, reason: str = "as agreed", **changes: Any) -> Any:
        """Save; what the browser gets."""
        data = {**self.data, "reason": reason, **changes}
        return self.client.post(
            self.path, {name: value for name, value in data.items() if value is not None}
        )


def read_errors(response: Any) -> str:
    """What the page says is wrong; empty after a save."""
    if response.status_code == 302:
        return ""
    assert response.status_code == 200
    lists = re.findall(r'<ul class="errorlist.*?</ul>', response.content.decode(), re.DOTALL)
    return unescape(re.sub(r"<[^>]+>", " ", " ".join(lists)))


@pytest.mark.parametrize("status", states.STATUSES)
def test_a_form_that_changes_nothing_is_refused_in_every_status(
    admin: Client, flow: Workflow, status: str
) -> None:
    task = make_in(status, flow)
    message = read_errors(Form(admin, task).send())
    assert "nothing differs" in message
    assert not EDITS.exists()
    assert Task.objects.get().status == status


def test_an_edit_is_saved_with_its_reason_and_actor(admin: Client, flow: Workflow) -> None:
    task = make_in(states.QUEUED, flow)
    response = Form(admin, task).send(
        title="Better", tags="one\n two \n", priority="7", progress='{"a": [1, 2]}',
        feedback="null", limit_cost="7.25", step_name="b", step_index=str(task.step_index),
    )  # fmt: skip
    assert read_errors(response) == ""
    task.refresh_from_db()
    assert (task.title, task.tags, task.priority) == ("Better", ["one", "two"], 7)
    assert (task.progress, task.limit_cost) == ({"a": [1, 2]}, 7_250_000_000)
    assert (task.step_name, task.step_index) == ("b", 1)
    entry = EDITS.get()
    assert entry.actor.startswith("user:")
    assert (entry.reason, entry.address) == ("as agreed", "127.0.0.1")
    assert task.events.get(kind="edited").actor == entry.actor


def test_a_running_task_is_taken_away_and_the_page_says_so_before(
    admin: Client, flow: Workflow
) -> None:
    task = make_in(states.RUNNING, flow)
    held = sql.read_task(task)
    assert b"Saving takes it away" in admin.get(locate(Task, "change", task.pk)).content
    assert read_errors(Form(admin, task).send(progress='{"fixed": 1}')) == ""
    assert sql.checkpoint_unit(held, make_unit(held, flow), lease_seconds=LEASE, groups=[]) is None
    assert claim(flow).progress == {"fixed": 1}


def test_a_form_that_is_older_than_the_row_is_refused_and_keeps_what_was_typed(
    admin: Client, flow: Workflow
) -> None:
    task = make_in(states.RUNNING, flow)
    form = Form(admin, task)
    operators.cancel_task(task.pk, actor=make_actor())
    response = form.send(title="typed for an hour")
    assert "has changed since you looked" in read_errors(response)
    assert "typed for an hour" in response.content.decode()
    task.refresh_from_db()
    assert (task.status, task.title) == ("running", "")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"reason": ""}, "This field is required"),
        ({"reason": "   "}, "This field is required"),
        ({"priority": "101"}, "from -100 to 100"),
        ({"priority": "9" * 400}, "takes a whole number"),
        ({"attempts": "-1"}, "greater than or equal to 0"),
        ({"attempts": str(2**63)}, "takes a whole number"),
        ({"turn": "2147483648"}, "takes a whole number"),
        ({"repair_count": "3"}, "number of rounds"),
        ({"limit_tokens": str(2**63)}, "takes a number"),
        ({"limit_cost": "1e500000"}, "limit_cost"),
        ({"limit_cost": "-1"}, "limit_cost"),
        ({"limit_wall": "nan"}, "Enter a number"),
        ({"limit_wall": "1e300"}, "takes a number"),
        ({"stall_after": "inf"}, "Enter a number"),
        ({"status": "running"}, "is not one of the available choices"),
        ({"status": "scheduled"}, "say when the task becomes ready"),
        ({"status": "<b>"}, "is not one of the available choices"),
        ({"available_at_0": "2030-01-01", "available_at_1": "x"}, "Enter a valid time"),
        ({"deadline_at_0": "99999-01-01", "deadline_at_1": "00:00"}, "Enter a valid date"),
        ({"progress": "[1]"}, "takes a JSON object"),
        ({"progress": ""}, "takes a JSON object"),
        ({"progress": "{"}, "valid JSON"),
        ({"progress": '{"a": NaN}'}, "is not a JSON number"),
        ({"progress": '{"a": "\\u0000"}'}, "NUL"),
        ({"progress": '{"a": "\\ud800"}'}, "surrogate"),
        ({"progress": "[" * 100_000}, "nested too deeply"),
        ({"progress": '{"a":' * 70 + "1" + "}" * 70}, "nested deeper"),
        ({"progress": '{"a": "' + "x" * 300_000 + '"}'}, "the bound is"),
        ({"input": ""}, "input"),
        ({"input": '"text"'}, "input"),
        ({"title": "a\0b"}, "Null characters"),
        ({"title": "x" * 201}, "at most 200 characters"),
        ({"lane": ""}, "This field is required"),
        ({"tags": "\n".join("x" * n for n in range(60))}, "tags"),
        ({"step_name": "z"}, "is none of the steps"),
        ({"step_name": "b", "step_index": "2"}, "step_index: of b is 1"),
        ({"workflow_version": "<i>"}, "nobody knows"),
        ({"cancel_requested": "on"}, "set the status to cancelled"),
        ({"pause_requested": "on"}, "set the status to paused"),
        ({"revision": ""}, "This field is required"),
        ({"revision": "x"}, "Enter a whole number"),
        ({"revision": "0"}, "has changed since"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_can_not_be_is_said_on_the_form(
    admin: Client, flow: Workflow, changes: dict[str, Any], says: str
) -> None:
    task = make_in(states.PAUSED, flow)
    before = Task.objects.values().get()
    response = Form(admin, task).send(**{"title": HOSTILE[:100], **changes})
    message = read_errors(response)
    assert says in message
    assert Task.objects.values().get() == before
    assert not EDITS.exists()
    assert "<script>alert" not in response.content.decode()


def test_a_final_task_says_what_can_be_changed(admin: Client, flow: Workflow) -> None:
    task = make_in(states.COMPLETED, flow)
    form = Form(admin, task)
    assert "copy it from a step" in read_errors(form.send(priority="3"))
    assert read_errors(form.send(title="Kept")) == ""
    page = admin.get(form.path).content.decode()
    assert "This task is final" in page


def test_the_form_has_every_editable_column(admin: Client, flow: Workflow) -> None:
    task = make_in(states.QUEUED, flow)
    fields = admin.get(locate(Task, "change", task.pk)).context["adminform"].form.fields
    assert set(fields) == {*EDITABLE, "reason", "revision"}


def test_times_on_the_form_survive_a_save(admin: Client, flow: Workflow) -> None:
    task = make_in(states.SCHEDULED, flow)
    due = task.available_at
    assert read_errors(Form(admin, task).send(title="x")) == ""
    task.refresh_from_db()
    assert task.available_at == due
