"""Deleting: the demo's finished tasks only, nothing of others; by force it is nobody's loss."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.db import connection
from django.test import override_settings

from ledger import artifacts, blobs, collecting, limits, queries, sql, states
from ledger.calls import Call, answer_call
from ledger.errors import InvalidInput, TaskNotFound
from ledger.models import AuditEntry, Blob, Effect, Event, Spend, Task
from ledger.runner import Engine, run_attempt
from ledger.transitions import deleting, holder, operators
from ledger.transitions.approvals import decide_approval
from ledger.transitions.deleting import DEMO, delete_demo
from ledger.transitions.forks import fork_task
from ledger.transitions.submit import submit_task
from ledger.workflows import Workflow, registered
from tests.factories import (
    LEASE,
    OPERATOR,
    OWNER,
    ask,
    attempt,
    claim,
    complete,
    make_unit,
    make_workflow,
    spawn,
    submit,
)

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db, pytest.mark.case(73)]


@pytest.fixture
def flow() -> Any:
    """A workflow of three steps."""
    workflow = make_workflow("three")
    with registered(workflow):
        yield workflow


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """An empty artifact store."""
    with override_settings(LONGWATCH_ARTIFACTS=str(tmp_path / "artifacts")):
        yield tmp_path / "artifacts"


def submit_demo(flow: Workflow, key: str = "demo-three", **options: Any) -> Task:
    """A queued task as `up` submits it."""
    task, _ = submit_task(workflow=flow, input={}, key=key, actor=DEMO, **options)
    return task


def finish(task: Task) -> Task:
    """End it."""
    operators.cancel_task(task.id, actor=OPERATOR)
    task.refresh_from_db()
    return task


def count_rows() -> dict[str, int]:
    """How many rows each table of the ledger has."""
    models = apps.get_app_config("longwatch_ledger").get_models()
    return {model.__name__: model._default_manager.count() for model in models}


def test_a_finished_demo_task_goes_with_its_rows_and_the_record_of_it_stays(
    flow: Workflow, store: Path
) -> None:
    submit(flow)
    before = count_rows()
    task = submit_demo(flow, priority=100, title="A first report")
    held = claim(flow)
    artifacts.save_artifact(held, "a.txt", b"x")
    unit = make_unit(held, flow)
    limits.record_spend(held, key="call", tokens_in=3, cost="5.00")
    sql.checkpoint_unit(held, unit, lease_seconds=LEASE, groups=[])
    operators.retry_task(task.id, actor=OPERATOR)
    asked = ask(claim(flow), flow, votes=1)
    decide_approval(asked.id, decision="approve", actor=OPERATOR, digest=asked.digest)
    last = claim(flow)
    last.step_index = 2
    complete(last, flow)
    assert delete_demo(actor=OPERATOR, reason="seen enough") == [(task.id, "A first report", "")]
    after = count_rows()
    kept = ("AuditEntry", "Blob", "Hour", "Outbox", "Tally")
    assert {n: after[n] for n in after if n not in kept} == {
        n: before[n] for n in before if n not in kept
    }
    entry = AuditEntry.objects.get(action="deleted")
    assert (entry.actor, entry.task, entry.reason) == (str(OPERATOR), task.id, "seen enough")
    assert entry.before["used"]["cost"] == "5.00"
    assert AuditEntry.objects.filter(task=task.id).count() > 1  # what was done to it before
    with pytest.raises(TaskNotFound):
        queries.find_task(task.id)


@pytest.mark.parametrize("status", ["queued", "running", "waiting", "scheduled", "paused"])
def test_what_is_not_finished_is_not_deleted(flow: Workflow, status: str) -> None:
    task = submit_demo(flow)
    if status in {"running", "waiting"}:
        held = claim(flow)
        if status == "waiting":
            ask(held, flow)
    if status == "paused":
        operators.pause_task(task.id, actor=OPERATOR)
    if status == "scheduled":
        holder.record_failure(claim(flow), attempt(), retries=3, backoff=60)
    before = count_rows()
    [one] = delete_demo(actor=OPERATOR)
    assert one.why == f"it is {status}; cancel it first"
    assert count_rows() == before


def test_only_the_demo_is_deleted(flow: Workflow) -> None:
    mine = finish(submit(flow, tags=["demo"], key="demo-mine"))
    other, _ = submit_task(workflow=flow, input={}, key="nightly", actor=DEMO)
    finish(other)
    assert delete_demo(actor=OPERATOR) == []
    assert set(Task.objects.values_list("pk", flat=True)) == {mine.pk, other.pk}


def test_what_others_stand_on_stays_and_says_so(flow: Workflow, store: Path) -> None:
    copied = submit_demo(flow, "demo-1")
    copy, _ = fork_task(copied.id, from_step="a", actor=OPERATOR)
    finish(copy)
    parent = submit_demo(flow, "demo-2", priority=50)
    spawn(claim(flow), flow)
    used = submit_demo(flow, "demo-3", priority=100)
    artifact = artifacts.save_artifact(claim(flow), "a.txt", b"x")
    user = submit(flow, input={"archive": str(artifact.pk)})
    for task in (copied, parent, used):
        operators.cancel_task(task.id, actor=OPERATOR)
        if queries.find_task(task.id).status == states.RUNNING:
            operators.stop_task(task.id, actor=OPERATOR)
    child = Task.objects.get(parent=parent)
    before = count_rows()
    assert {one.id: one.why for one in delete_demo(actor=OPERATOR)} == {
        copied.id: f"{copy.id} was copied from it",
        parent.id: f"{child.id} is its child",
        used.id: f"{user.id} has one of its artifacts as input",
    }
    assert count_rows() == before


def test_who_is_limited_to_lanes_deletes_and_learns_of_nothing_outside(flow: Workflow) -> None:
    mine = submit_demo(flow, "demo-1", lane="mine", title="Mine")
    theirs = finish(submit_demo(flow, "demo-2", lane="theirs"))
    copy, _ = fork_task(finish(mine).id, from_step="a", actor=OPERATOR)
    operators.change_task(copy.id, lane="theirs", actor=OPERATOR)
    with answer_call(Call(lanes=frozenset({"mine"}))):
        why = "a task of another lane was copied from it"
        assert delete_demo(actor=OPERATOR) == [(mine.id, "Mine", why)]
    assert Task.objects.filter(pk=theirs.pk).exists()


def test_every_table_that_names_a_task_is_known_to_the_deletion() -> None:
    """A new one has to be deleted with the task, or to keep it."""
    names = {relation.related_model for relation in Task._meta.related_objects}
    assert names == {*deleting.OWN, Task, Effect}


def test_a_second_click_deletes_nothing_more(flow: Workflow) -> None:
    finish(submit_demo(flow))
    assert len(delete_demo(actor=OPERATOR)) == 1
    assert delete_demo(actor=OPERATOR) == []
    assert AuditEntry.objects.filter(action="deleted").count() == 1
    with pytest.raises(InvalidInput):
        delete_demo(actor=OPERATOR, reason="x" * 4_001)


def test_files_that_nothing_names_are_collected_and_no_others(flow: Workflow, store: Path) -> None:
    task, kept = submit_demo(flow, priority=9), submit(flow)
    first, second = claim(flow), claim(flow)
    for held, names in ((first, ("own", "shared")), (second, ("shared",))):
        for name in names:
            artifacts.save_artifact(held, name, name.encode())
    [file] = blobs.store_blobs([b"tree"])
    manifest = f'{{"entries":[{{"path":"f","digest":"{file.digest}",'
    manifest += '"kind":"file","mode":384,"size":4}],"version":1}'
    [root] = blobs.store_blobs([manifest])
    artifacts.write_blob_rows([file, root])
    unit = make_unit(second, flow, workspace=root.digest)
    sql.checkpoint_unit(second, unit, lease_seconds=LEASE, groups=[])
    operators.cancel_task(task.id, actor=OPERATOR)
    operators.stop_task(task.id, actor=OPERATOR)
    (store / ".incoming").mkdir(exist_ok=True)
    (store / ".incoming" / "torn").write_bytes(b"half")
    assert collecting.collect_files(-1) == (1, 4, 0)  # what a dead write left
    assert len(delete_demo(actor=OPERATOR)) == 1
    assert collecting.collect_files(3600) == (0, 0, 1)
    assert collecting.collect_files(-1) == (1, 3, 0)
    assert collecting.collect_files(-1) == (0, 0, 0)
    assert set(Blob.objects.values_list("size", flat=True)) == {6, 4, root.size}
    with artifacts.open_content(artifacts.find_artifact("shared", kept.id)) as content:
        assert content.read() == b"shared"


def test_bytes_that_are_stored_again_are_young(flow: Workflow, store: Path) -> None:
    """Who meets old bytes that nothing names must be able to count on them."""
    [one] = blobs.store_blobs([b"again"])
    path = store / blobs.name_blob(one.digest)
    os.utime(path, (1, 1))
    blobs.store_blobs([b"again"])
    assert collecting.collect_files(60) == (0, 0, 1)
    os.utime(path, (1, 1))
    assert collecting.collect_files(60) == (1, 5, 0)


def tear_out(task_id: Any) -> None:
    """As a person at the database's prompt does it."""
    task = Task.objects.get(pk=task_id)
    Event.objects.filter(task=task)._raw_delete("default")
    Spend.objects.filter(task=task)._raw_delete("default")
    Task.objects.filter(pk=task_id)._raw_delete("default")
    connection.check_constraints()


@pytest.mark.parametrize("does", ["nothing", "reports", "spends", "saves", "fails"])
def test_a_worker_whose_task_was_torn_out_says_one_line_and_takes_the_next(
    does: str, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    workflow = Workflow("torn")

    @workflow.step
    def work(ctx: Any) -> Any:
        if ctx.input.get("torn"):
            tear_out(ctx.task_id)
            acts = {
                "reports": lambda: ctx.report(1, 2), "spends": lambda: ctx.spend(cost="1.00"),
                "saves": lambda: ctx.save_artifact("a", b"x"), "fails": lambda: 1 / 0,
            }  # fmt: skip
            acts.get(does, lambda: None)()
        return {"ok": True}

    with registered(workflow):
        torn, kept = submit(workflow, input={"torn": True}), submit(workflow)
        engine = Engine(OWNER)
        with caplog.at_level(logging.INFO, "ledger"):
            held = engine.claim()
            while held is not None:
                held = run_attempt(engine, held) or engine.claim()
    kept.refresh_from_db()
    assert kept.status == states.COMPLETED
    lines = [one.getMessage() for one in caplog.records if str(torn.id) in one.getMessage()]
    assert lines[-1].endswith("is lost: the task was deleted.")
    assert len(lines) <= (2 if does in {"fails", "spends"} else 1), lines
    assert not Event.objects.filter(task_id=torn.id).exists()
