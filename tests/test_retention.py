"""Artifacts expire with their task, never before; proof of what they were stays."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client

from ledger import artifacts, blobs, clock, queries, registry, retention, sql, states
from ledger.errors import ArtifactExpired
from ledger.events import Actor
from ledger.models import Artifact, AuditEntry, Task
from ledger.tokens import make_token
from ledger.transitions import holder, operators
from ledger.transitions.forks import fork_task
from ledger.transitions.waits import send_signal
from ledger.workflows import Workflow
from tests.factories import attempt, make_unit, make_workflow, submit
from tests.held import claim

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]

ACTOR = Actor("cli", "test")
DAY = 86_400.0


@pytest.fixture(autouse=True)
def places(settings: Any, tmp_path: Path) -> Iterator[None]:
    settings.LONGWATCH_VAR = str(tmp_path / "var")
    settings.LONGWATCH_ARTIFACTS = str(tmp_path / "artifacts")
    yield
    clock.offset = 0.0


@pytest.fixture
def three() -> Iterator[Workflow]:
    workflow = make_workflow("three")
    with registry.registered(workflow):
        yield workflow


def make_over(workflow: Workflow, content: bytes = b"hello") -> Artifact:
    """An artifact of a failed task whose first step is done."""
    task = submit(workflow)
    held = claim(workflow, task_id=task.pk)
    saved = artifacts.save_artifact(held, "report.md", content)
    artifacts.spill(held, "output.large", {"a": 1})
    sql.checkpoint_unit(held, make_unit(held, workflow), lease_seconds=60.0, groups=[])
    held.step_index, held.step_name, held.fence = 1, "b", held.fence + 1
    holder.fail_task(held, attempt())
    assert Task.objects.get(pk=task.pk).status == states.FAILED
    return saved


def expire(days: float = 30) -> tuple[int, int]:
    return tuple(retention.expire_artifacts(days, ACTOR))  # type: ignore[return-value]


def test_an_artifact_expires_long_after_its_task_and_leaves_proof(
    three: Workflow, settings: Any, client: Client
) -> None:
    saved = make_over(three)
    clock.offset = 29 * DAY
    assert expire() == (0, 0)
    clock.offset = 31 * DAY
    call_command("collect", hours=0)  # by default everything is kept
    assert blobs.open_blob(str(saved.blob_id)).close() is None
    settings.LONGWATCH_ARTIFACT_DAYS = 30
    call_command("collect", hours=0)
    row = Artifact.objects.select_related("blob").get(pk=saved.pk)
    shown = queries.show_artifact(row)
    assert (shown["state"], shown["size"], shown["sha256"]) == ("expired", 5, saved.blob_id)
    assert shown["expired_at"] is not None
    with pytest.raises(blobs.CorruptArtifact):
        blobs.open_blob(str(saved.blob_id))
    with pytest.raises(ArtifactExpired, match=r"'report.md' expired"):
        artifacts.find_artifact("report.md", row.task_id)
    _, token = make_token("test", ["read"], created_by="cli:test")
    path = f"/api/v1/artifacts/{saved.pk}"
    headers = {"Authorization": f"Bearer {token}"}
    gone = client.get(f"{path}/content", headers=headers)
    assert (gone.status_code, gone.json()["code"]) == (410, "artifact_expired")
    assert client.get(path, headers=headers).json()["state"] == "expired"
    entry = AuditEntry.objects.get(action="artifacts_expired")
    assert (entry.task, entry.after) == (row.task_id, {"artifacts": 1, "size": 5})
    value = Artifact.objects.select_related("blob").get(name="$output.large.json")
    with artifacts.open_content(value) as file:
        assert file.read() == b'{"a":1}', "what the record itself consists of stays"


def test_what_a_copy_or_an_unfinished_task_needs_stays(three: Workflow) -> None:
    saved = make_over(three)
    copy, _ = fork_task(saved.task_id or "", from_step="b", actor=ACTOR)
    again, _ = fork_task(copy.pk, from_step="b", actor=ACTOR)
    operators.cancel_task(copy.pk, actor=ACTOR)
    held = claim(three, task_id=again.pk)
    clock.offset = 31 * DAY
    assert expire() == (0, 0), "the copy's copy runs"
    assert artifacts.find_artifact(saved.pk, again.pk) == saved
    holder.fail_task(held, attempt())
    assert expire() == (0, 0), "it is over, but not for long"
    clock.offset = 62 * DAY
    assert expire() == (3, 0)
    assert expire() == (0, 0)


def test_a_task_that_is_tried_again_makes_its_artifacts_anew(three: Workflow) -> None:
    submit(three)
    held = claim(three)
    artifacts.save_artifact(held, "report.md", b"first")
    holder.fail_task(held, attempt())
    clock.offset = 31 * DAY
    assert expire() == (1, 0)
    operators.retry_task(held.task_id, actor=ACTOR)
    held = claim(three, task_id=held.task_id)
    with pytest.raises(ArtifactExpired):
        artifacts.find_artifact("report.md", held.task_id)
    made = artifacts.save_artifact(held, "report.md", b"first")
    assert queries.show_artifact(made)["state"] == "ok"
    assert expire() == (0, 0)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("place", ["input", "signal", "copy"])
def test_an_upload_that_is_handed_over_between_look_and_drop_stays(
    three: Workflow, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a transaction that the look can't see, and that ends before the drop or while it waits."""
    upload = artifacts.store_upload(b"rows", "rows.csv", actor="cli:test")
    other = artifacts.store_upload(b"more", "more.csv", actor="cli:test")
    named = {"file": str(upload.pk)}
    task = submit(three, input=named if place == "copy" else {})
    clock.offset = 31 * DAY
    operators.cancel_task(task.pk, actor=ACTOR)
    clock.offset = 62 * DAY
    task = task if place == "copy" else submit(three)
    looked, written = threading.Event(), threading.Event()

    def hand_over() -> None:
        with connection.cursor(), sql.atomic():
            if place == "input":
                submit(three, input=named)
            elif place == "signal":
                send_signal(task.pk, name="go", data=named, actor=ACTOR)
            else:
                fork_task(task.pk, from_step="a", actor=ACTOR)
            written.set()
            assert looked.wait(30)
        connection.close()

    def look(*given: Any) -> set[str]:
        found = real(*given)
        looked.set()
        return found

    real = retention._find_named
    monkeypatch.setattr(retention, "_find_named", look)
    client = threading.Thread(target=hand_over)
    client.start()
    assert written.wait(30)
    assert expire() == (0, 1), "the other one"
    client.join(30)
    assert Artifact.objects.get(pk=upload.pk).blob_id
    assert not Artifact.objects.get(pk=other.pk).blob_id
    monkeypatch.undo()
    clock.offset = 93 * DAY
    assert expire() == (0, 0), "an unfinished task names it, however long ago"


@pytest.mark.parametrize("place", ["input", "signal", "nowhere"])
def test_an_upload_stays_while_anything_that_counts_names_it(three: Workflow, place: str) -> None:
    upload = artifacts.store_upload(b"rows", "rows.csv", actor="cli:test")
    key = str(upload.pk)
    task = submit(three, input={"deep": [{"file": key}]} if place == "input" else {})
    if place == "signal":
        send_signal(task.pk, name="go", data={"file": key}, actor=ACTOR)
    clock.offset = 31 * DAY
    assert expire() == (0, int(place == "nowhere"))
    operators.cancel_task(task.pk, actor=ACTOR)
    clock.offset = 62 * DAY
    assert expire() == (0, int(place != "nowhere"))
