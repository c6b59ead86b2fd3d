"""A task's bundle: whole, bounded, on record, and with nothing that its reader isn't shown."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import reverse

from dashboard import bundles
from ledger import artifacts
from ledger.models import AuditEntry, Reach, Task
from ledger.transitions import holder, operators
from ledger.transitions.deleting import DEMO, delete_demo
from ledger.transitions.submit import submit_task
from ledger.workflows import Workflow
from tests.factories import OPERATOR, claim, make_unit, submit

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]


def make_task(three: Workflow) -> Task:
    """A task with an artifact, a failure, an output that is superseded, and one that counts."""
    task = submit(three, input={"about": "ferries"}, title="Ferry")
    bad = holder.Attempt({"type": "Boom", "message": "broke"}, log_tail="08:00:00 ERROR cold")
    holder.record_failure(claim(three), bad, retries=3, backoff=0)
    operators.retry_task(task.id, actor=OPERATOR)
    for number in range(2):
        held = claim(three)
        artifacts.save_artifact(held, "a.txt", b"tea %d" % number)
        holder.settle_unit(held, make_unit(held, three, output=f'{{"tea": "green {number}"}}'))
        if not number:
            operators.restart_task(task.id, to_step="a", note="again", actor=OPERATOR)
    return task


def open_bundle(client: Client, task: Task) -> dict[str, str]:
    """Each file's text by its name."""
    response: Any = client.get(reverse("dashboard:bundle", args=[task.id]))
    assert (response.status_code, response["Content-Type"]) == (200, "application/zip")
    whole = zipfile.ZipFile(io.BytesIO(b"".join(response.streaming_content)))
    assert whole.testzip() is None
    return {name: whole.read(name).decode() for name in whole.namelist()}


def read_rows(text: str) -> list[Any]:
    """A file of a row a line."""
    return [json.loads(line) for line in text.splitlines()]


def test_a_bundle_has_everything_that_is_told_of_a_task(operator: Client, three: Workflow) -> None:
    task = make_task(three)
    files = open_bundle(operator, task)
    assert json.loads(files["task.json"])["input"] == {"about": "ferries"}
    outputs = read_rows(files["outputs.jsonl"])
    assert [one["output"]["tea"] for one in outputs] == ["green 0", "green 1"]
    assert [one["superseded"] for one in outputs] == [True, False]
    events = read_rows(files["events.jsonl"])
    assert [one["seq"] for one in events] == list(range(1, len(events) + 1))
    assert "ERROR cold" in files["events.jsonl"]
    assert "Ferry" in files["handoff.md"]
    listed = operator.get(f"/api/v1/tasks/{task.id}/artifacts").json()["items"]
    assert [one["sha256"] for one in read_rows(files["artifacts.jsonl"])] == [
        one["sha256"] for one in listed
    ]
    assert files["READ-ME.txt"].endswith("Left out:\n- Nothing.\n")
    entry = AuditEntry.objects.get(action="export_task")
    assert (entry.task, entry.target) == (task.id, str(task.id))
    assert (
        reverse("dashboard:bundle", args=[task.id])
        in operator.get(reverse("dashboard:task", args=[task.id])).content.decode()
    )


def test_a_bundle_is_bounded_and_says_what_lies_behind(
    operator: Client, three: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task(three)
    whole = open_bundle(operator, task)
    front = sum(len(whole[name]) for name in ("task.json", "handoff.md", "artifacts.jsonl"))
    monkeypatch.setattr(bundles, "MAX_BYTES", front + len(whole["events.jsonl"]) // 2)
    files = open_bundle(operator, task)
    assert 0 < len(files["events.jsonl"]) < len(whole["events.jsonl"])
    assert all(read_rows(files["events.jsonl"])), "no line is cut"
    assert files["outputs.jsonl"] == ""
    for what in ("events", "outputs"):
        assert f"Not all of the {what} is here" in files["READ-ME.txt"]
        assert f"GET /api/v1/tasks/{task.id}/{what}" in files["READ-ME.txt"]


def test_a_bundle_shows_no_more_than_the_pages(
    sign_in: Callable[..., Client], three: Workflow
) -> None:
    task = make_task(three)
    dora = sign_in("viewer", "dora")
    Reach.objects.create(user=get_user_model().objects.get(username="dora"), payload=False)
    files = open_bundle(dora, task)
    for hidden in ("ferries", "green", "cold", "broke"):
        assert not [name for name, text in files.items() if hidden in text], hidden
    assert "hand-off is left out" in files["READ-ME.txt"]
    assert "transcript is left out" in files["READ-ME.txt"]
    Reach.objects.update(lanes=["elsewhere"])
    assert dora.get(reverse("dashboard:bundle", args=[task.id])).status_code == 404
    assert AuditEntry.objects.filter(action="export_task").count() == 1


def test_a_bundle_of_a_task_that_is_deleted_meanwhile_is_whole_and_says_so(
    operator: Client, three: Workflow
) -> None:
    task, _ = submit_task(workflow=three, input={}, actor=DEMO, key="demo-x", title="Ferry")
    operators.cancel_task(task.id, actor=OPERATOR)
    response: Any = operator.get(reverse("dashboard:bundle", args=[task.id]))
    sent = iter(response.streaming_content)
    begun = next(sent)
    assert delete_demo(actor=OPERATOR)[0].why == ""
    whole = zipfile.ZipFile(io.BytesIO(begun + b"".join(sent)))
    assert whole.testzip() is None
    said = whole.read("READ-ME.txt").decode()
    assert "Ferry" in whole.read("task.json").decode()
    assert f"The hand-off is left out: There is no task {task.id}" in said
    assert "It was deleted meanwhile" in said
