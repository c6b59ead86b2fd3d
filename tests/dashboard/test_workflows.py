"""Workflows and the form that starts one: made from the schema, judged by the workflow."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from pydantic import BaseModel, Field, model_validator

from dashboard.start import StartForm, list_wanted
from ledger import artifacts, registry, states
from ledger.models import Artifact, Task
from ledger.workflows import Workflow
from tests.dashboard.fleet import make_worker
from tests.factories import make_in, make_workflow

pytestmark = pytest.mark.both_databases


class Tone(StrEnum):
    """A choice."""

    PLAIN = "plain"
    WARM = "warm"


class Order(BaseModel):
    """One field of every kind."""

    subject: Annotated[str, Field(min_length=3, description="What it is about.")]
    notes: Annotated[str, Field(max_length=2000)] = ""
    sources: list[str] = []
    copies: Annotated[int, Field(ge=1)] = 1
    share: float | None = None
    urgent: bool = False
    tone: Tone = Tone.PLAIN
    ending: Tone | None = None
    archive: Annotated[UUID, Field(json_schema_extra={"format": "artifact"})] | None = None
    options: dict[str, int] = {}

    @model_validator(mode="after")
    def check_both(self) -> Order:
        """A problem of no single field."""
        if self.urgent and self.copies > 5:
            raise ValueError("urgent orders have at most 5 copies")
        return self


@pytest.fixture
def order() -> Iterator[Workflow]:
    """A workflow that takes an Order."""
    workflow = make_workflow("order", input=Order, description="Takes orders.")
    with registry.registered(workflow):
        yield workflow


def fill(client: Client, path: str = "/workflows/order/", **typed: Any) -> dict[str, Any]:
    """The form as a browser would send it, changed by what is `typed`."""
    text = client.get(path).content.decode()
    token = re.search(r'name="token" value="([0-9a-f]+)"', text)
    assert token
    plain = {"lane": "default", "priority": "0", "token": token[1], "in-subject": "Tides",
             "in-copies": "1", "in-tone": "plain", "in-options": "{}"}  # fmt: skip
    return plain | {f"in-{key}": value for key, value in typed.items()}


def read_hint(response: Any, name: str) -> str:
    """What is said below a field."""
    found = re.search(rf'id="id_{name}-help">([^<]*)<', response.content.decode())
    assert found
    return found[1]


def test_the_schema_decides_how_a_field_is_asked_for(order: Workflow) -> None:
    assert {one.name: one.kind for one in list_wanted(order)} == {
        "subject": "text", "notes": "long", "sources": "lines", "copies": "integer",
        "share": "number", "urgent": "boolean", "tone": "choice", "ending": "choice",
        "archive": "file", "options": "json",
    }  # fmt: skip
    assert [one.name for one in list_wanted(order) if one.required] == ["subject"]
    assert list_wanted(make_workflow("any"))[0].kind == "json"


def test_a_form_filled_in_starts_a_task(operator: Client, order: Workflow) -> None:
    sent = fill(
        operator, subject="Tides", notes="Long.\nLines.", sources="one\n\n two ", copies="3",
        share="0.5", urgent="on", tone="warm", options='{"a": 1}',
    )  # fmt: skip
    done = operator.post("/workflows/order/", sent | {"title": "Mine", "tags": "x, y,"})
    task = Task.objects.get()
    assert done.status_code == 303
    assert done["Location"] == f"/tasks/{task.id}/"
    assert task.input == {
        "subject": "Tides", "notes": "Long.\nLines.", "sources": ["one", "two"], "copies": 3,
        "share": 0.5, "urgent": True, "tone": "warm", "ending": None, "archive": None,
        "options": {"a": 1},
    }  # fmt: skip
    assert (task.title, task.tags, task.lane) == ("Mine", ["x", "y"], "default")
    assert task.submitted_by.startswith("user:")


def test_a_file_becomes_an_artifact(operator: Client, order: Workflow) -> None:
    file = SimpleUploadedFile("tree.tar.gz", b"bytes of a tree")
    assert operator.post("/workflows/order/", fill(operator, archive=file)).status_code == 303
    kept = Artifact.objects.get()
    assert Task.objects.get().input["archive"] == str(kept.pk)
    with artifacts.open_content(kept) as content:
        assert content.read() == b"bytes of a tree"


@pytest.mark.parametrize(
    ("typed", "field", "words"),
    [
        ({"subject": ""}, "in-subject", "Give it a value."),
        ({"subject": "ab"}, "in-subject", "at least 3 characters"),
        ({"copies": "0"}, "in-copies", "greater than or equal to 1"),
        ({"copies": "many"}, "in-copies", "whole number"),
        ({"share": "half"}, "in-share", "number"),
        ({"tone": "loud"}, "in-tone", "valid choice"),
        ({"options": "{"}, "in-options", "This is no JSON"),
        ({"options": '{"a": "b"}'}, "in-options", "a: Input should be a valid integer"),
    ],
)
def test_a_problem_stands_at_its_field(
    operator: Client, order: Workflow, typed: dict[str, str], field: str, words: str
) -> None:
    sent = fill(operator, **({"notes": "typed by hand"} | typed))
    file = SimpleUploadedFile("tree.tar.gz", b"bytes")
    done = operator.post("/workflows/order/", sent | {"in-archive": file})
    assert done.status_code == 422
    assert words in read_hint(done, field)
    assert b"typed by hand" in done.content
    assert not Task.objects.exists()
    assert not Artifact.objects.exists()  # nothing is kept of a form that was refused


@pytest.mark.parametrize(
    ("name", "value"), [("priority", "101"), ("lane", ""), ("tags", "x" * 51), ("title", "a\x00b")]
)
def test_a_problem_of_the_task_itself_stands_at_its_field(
    operator: Client, order: Workflow, name: str, value: str
) -> None:
    done = operator.post("/workflows/order/", fill(operator) | {name: value})
    assert done.status_code in {400, 422}
    assert read_hint(done, name)
    assert re.search(rf'name="{name}"[^>]*aria-invalid="true"', done.content.decode())
    assert not Task.objects.exists()


def test_a_problem_of_no_field_stands_above(operator: Client, order: Workflow) -> None:
    done = operator.post("/workflows/order/", fill(operator, urgent="on", copies="6"))
    assert done.status_code == 422
    assert b"Urgent orders have at most 5 copies" in done.content


def test_sent_twice_it_is_one_task(operator: Client, order: Workflow) -> None:
    sent = fill(operator)
    first, again = (operator.post("/workflows/order/", sent) for _ in range(2))
    assert first["Location"] == again["Location"]
    other = operator.post("/workflows/order/", sent | {"in-subject": "Currents"})
    assert other.status_code == 409
    token = re.search(r'name="token" value="([0-9a-f]+)"', other.content.decode())
    assert token
    retried = sent | {"in-subject": "Currents", "token": token[1]}
    assert operator.post("/workflows/order/", retried).status_code == 303
    assert Task.objects.count() == 2


def test_a_key_is_the_submitters_own(operator: Client, order: Workflow) -> None:
    assert operator.post("/workflows/order/", fill(operator) | {"key": "k"}).status_code == 303
    sent = fill(operator, subject="Currents") | {"key": "k"}
    done = operator.post("/workflows/order/", sent)
    assert done.status_code == 409
    assert read_hint(done, "key")
    assert Task.objects.get().idempotency_key == "k"


@pytest.mark.parametrize("role", ["viewer", "approver"])
def test_who_may_not_submit_sees_no_form(
    sign_in: Callable[..., Client], order: Workflow, role: str
) -> None:
    client = sign_in(role)
    page = client.get("/workflows/order/").content.decode()
    assert 'class="start"' not in page
    assert "It takes the role operator to start a task." in page
    assert client.post("/workflows/order/", {"in-subject": "Tides"}).status_code == 403
    assert not Task.objects.exists()


def test_a_workflow_that_only_a_worker_knows_takes_json(operator: Client) -> None:
    make_worker(make_workflow("far", version="4"))
    assert "far</a>" in operator.get("/workflows/").content.decode()
    sent = fill(operator, "/workflows/far/") | {"version": "4", "in-input": '{"any": [1]}'}
    assert operator.post("/workflows/far/", sent).status_code == 303
    task = Task.objects.get()
    assert (task.workflow, task.workflow_version, task.input) == ("far", "4", {"any": [1]})
    sent = fill(operator, "/workflows/far/") | {"version": "4", "in-input": "[1]"}
    done = operator.post("/workflows/far/", sent)
    assert done.status_code == 422
    assert read_hint(done, "in-input") == "It takes a JSON object."


def test_an_unknown_workflow_is_a_404(operator: Client, order: Workflow) -> None:
    assert operator.get("/workflows/nobody/").status_code == 404
    assert operator.get("/workflows/order/?version=77").status_code == 404
    assert operator.post("/workflows/order/", fill(operator) | {"version": "7"}).status_code == 404


def test_the_list_counts_what_runs_and_what_nobody_knows(
    operator: Client, order: Workflow, three: Workflow
) -> None:
    make_in(states.COMPLETED, three)
    make_in(states.RUNNING, three)
    make_in(states.QUEUED, make_workflow("forgotten"))
    make_worker(three)
    text = operator.get("/workflows/").content.decode()
    card = next(one for one in text.split('<li class="grp">') if ">three</a>" in one)
    assert re.findall(r'<dd class="num">(?:<a[^>]*>)?([^<]+)<', card)[:3] == ["1", "1", "100%"]
    assert "Takes orders." in text
    assert "no worker" in text
    assert "forgotten version 1</u></a>, 1 unfinished" in text


def test_a_default_is_filled_in_and_an_emptied_one_is_judged(order: Workflow) -> None:
    form = StartForm(workflow=order)
    assert form["in-copies"].value() == 1
    assert form["in-tone"].value() == "plain"
    assert form["in-ending"].value() in (None, "")
