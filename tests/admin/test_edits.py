"""`edit_task`: one guarded write, refused where it would lie or strand the task."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest

from ledger import clock, sql, states
from ledger.errors import (
    InvalidInput,
    LeaseLost,
    PayloadTooLarge,
    StaleRevision,
    TaskNotFound,
    UnparsableInput,
    WrongStatus,
)
from ledger.events import Actor
from ledger.ids import make_id
from ledger.models import AuditEntry, StepOutput, Task
from ledger.transitions import edits, holder, operators, sweeps
from ledger.transitions.edits import edit_task
from ledger.workflows import Workflow, registered
from tests.factories import LEASE, claim, make_in, make_unit, make_workflow, submit

EDITS = AuditEntry.objects.filter(action="edit_task")

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]

ADMIN = Actor("user", "7")
BY_HAND = {states.QUEUED, states.SCHEDULED, states.PAUSED, states.CANCELLED}


@pytest.fixture
def flow() -> Iterator[Workflow]:
    """A workflow of the steps a, b, c that this process knows."""
    workflow = make_workflow()
    with registered(workflow):
        yield workflow


def edit(task: Task, reason: str = "as agreed", **changes: Any) -> Task:
    """Edit what is stored now; the task afresh."""
    task.refresh_from_db()
    edit_task(task.pk, changes=changes, actor=ADMIN, reason=reason, revision=task.revision)
    task.refresh_from_db()
    return task


def refuse(task: Task, *errors: type[Exception], **changes: Any) -> str:
    """The message with which the edit is refused, having changed nothing."""
    before = Task.objects.filter(pk=task.pk).values().get()
    with pytest.raises(errors or InvalidInput) as caught:
        edit(task, **changes)
    assert Task.objects.filter(pk=task.pk).values().get() == before
    assert not task.events.filter(kind="edited").exists()
    assert not EDITS.exists()
    return str(caught.value)


@pytest.mark.parametrize("status", [s for s in states.STATUSES if s not in states.FINAL])
def test_an_edit_raises_fence_and_revision_and_is_on_record(flow: Workflow, status: str) -> None:
    task = make_in(status, flow)
    fence, revision = task.fence, task.revision
    edit(task, title="A better title", priority=5)
    assert (task.fence, task.revision) == (fence + 1, revision + 1)
    assert (task.title, task.priority) == ("A better title", 5)
    event = task.events.get(kind="edited")
    assert (event.actor, event.seq) == ("user:7", task.event_seq)
    assert event.data["reason"] == "as agreed"
    assert event.data["before"]["title"] == ""
    assert event.data["after"]["title"] == "A better title"
    entry = EDITS.get()
    assert (entry.actor, entry.action, entry.task) == ("user:7", "edit_task", task.pk)
    assert entry.before["priority"] == 0
    assert entry.after["status"] == task.status


@pytest.mark.parametrize("status", states.STATUSES)
@pytest.mark.parametrize("target", states.STATUSES)
def test_a_status_is_set_only_where_it_is_true(flow: Workflow, status: str, target: str) -> None:
    task = make_in(status, flow)
    more = {"available_at": clock.read()} if target == states.SCHEDULED != status else {}
    if status == target:
        if status == states.RUNNING:
            return  # is taken from its worker, see below
        refuse(task, InvalidInput, WrongStatus, status=target)
    elif status in states.FINAL:
        refuse(task, WrongStatus, status=target, **more)
    elif target not in BY_HAND:
        assert "can be set to" in refuse(task, status=target, **more)
    else:
        edit(task, status=target, **more)
        assert task.status == target  # and every constraint of the table held
        assert states.allow_edge("edit_task", status, target)
        if target == states.QUEUED:
            assert claim(flow).task_id == task.pk


def test_a_running_task_is_taken_from_its_worker_uncharged_at_the_head(flow: Workflow) -> None:
    task = submit(flow)
    other = submit(flow)
    held = claim(flow)
    assert held.task_id == task.pk
    rank = Task.objects.get(pk=task.pk).rank
    edit(task, progress={"fixed": True})
    assert (task.status, task.rank, task.attempts, task.reclaims) == ("queued", rank, 0, 0)
    assert task.events.get(kind="edited").data["taken_from"] == held.owner
    unit = make_unit(held, flow, progress='{"late":true}')
    assert sql.checkpoint_unit(held, unit, lease_seconds=LEASE, groups=None) is None
    with pytest.raises(LeaseLost):
        holder.settle_unit(held, unit)
    with pytest.raises(LeaseLost):
        holder.report_progress(held.lease, 1, 2, "late")
    assert sql.beat_leases(held.owner, [held.lease], LEASE) == []
    task.refresh_from_db()
    assert task.progress == {"fixed": True}
    assert task.events.filter(kind="stale_write_refused").count() == 1
    again = claim(flow)
    assert (again.task_id, again.progress) == (task.pk, {"fixed": True})
    assert other.pk != again.task_id


@pytest.mark.parametrize(
    ("flag", "leads_to"), [(operators.cancel_task, "cancelled"), (operators.pause_task, "paused")]
)
def test_a_running_task_goes_where_its_flag_leads(flow: Workflow, flag: Any, leads_to: str) -> None:
    task = make_in(states.RUNNING, flow)
    flag(task.pk, actor=ADMIN)
    assert edit(task, title="x").status == leads_to
    assert not task.pause_requested
    assert not task.cancel_requested


def test_a_wish_to_cancel_is_taken_back(flow: Workflow) -> None:
    task = make_in(states.RUNNING, flow)
    operators.cancel_task(task.pk, actor=ADMIN)
    assert edit(task, cancel_requested=False).status == "queued"
    assert task.cancel_by == ""


def test_a_stale_form_is_refused(flow: Workflow) -> None:
    task = make_in(states.QUEUED, flow)
    seen = task.revision
    edit(task, title="first")
    with pytest.raises(StaleRevision):
        edit_task(task.pk, changes={"title": "second"}, actor=ADMIN, reason="r", revision=seen)
    with pytest.raises(TaskNotFound):
        edit_task(make_id(), changes={"title": "x"}, actor=ADMIN, reason="r", revision=1)
    task.refresh_from_db()
    assert task.title == "first"
    assert EDITS.count() == 1


def test_of_a_final_task_only_the_labels_change(flow: Workflow) -> None:
    for status in sorted(states.FINAL):
        task = make_in(status, flow)
        assert "copy it" in refuse(task, WrongStatus, progress={"a": 1})
        finished = task.finished_at
        edit(task, title="Kept", tags=["kept"])
        assert (task.status, task.finished_at, task.tags) == (status, finished, ["kept"])
        EDITS.all().delete()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"priority": 101}, "priority: takes a whole number from -100 to 100"),
        ({"priority": 1.5}, "priority"),
        ({"title": "x" * 201}, "title"),
        ({"title": "line\nbreak"}, "title: contains control characters"),
        ({"lane": ""}, "lane"),
        ({"tags": "urgent"}, "tags"),
        ({"max_repairs": -1}, "max_repairs"),
        ({"repair_count": 1}, "repair_count: can't pass the number of rounds, 0"),
        ({"attempts": -1}, "attempts"),
        ({"turn": 2**31}, "turn"),
        ({"step_name": "z"}, "step_name: is none of the steps: a, b, c"),
        ({"step_index": 3}, "step_index"),
        ({"step_index": 2, "step_name": "b"}, "step_index: of b is 1"),
        ({"workflow_version": "2"}, "workflow_version: nobody knows three 2"),
        ({"progress": [1]}, "progress: takes a JSON object"),
        ({"feedback": float("nan")}, "feedback"),
        ({"input": {"a": "\x00"}}, "input"),
        ({"input": "text"}, "input"),
        ({"limit_units": -1}, "limit_units: takes a number"),
        ({"limit_cost": "dear"}, "limit_cost"),
        ({"limit_wall": None}, "limit_wall: is required"),
        ({"deadline_at": "tomorrow"}, "deadline_at: is no RFC 3339 time"),
        ({"stall_after": 0}, "stall_after"),
        ({"available_at": dt.datetime.now(dt.UTC)}, "available_at: is for scheduled tasks"),
        ({"status": "scheduled"}, "available_at: say when"),
        ({"status": "scheduled", "available_at": dt.datetime(2100, 1, 1, tzinfo=dt.UTC)}, "ten"),
        ({"cancel_requested": True}, "cancel_requested: set the status to cancelled instead"),
        ({"pause_requested": True}, "pause_requested: set the status to paused instead"),
        ({"fence": 9}, "fence: is not to be edited"),
        ({"lease_owner": "me"}, "lease_owner: is not to be edited"),
        ({"title": ""}, "changes: nothing differs"),
        ({"reason": "  ", "title": "x"}, "reason: is required"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_can_not_be_is_refused_with_its_column(
    flow: Workflow, changes: dict[str, Any], says: str
) -> None:
    message = refuse(make_in(states.QUEUED, flow), **changes)
    assert message.startswith(says) or says in message


def test_a_large_or_deep_value_is_refused_by_its_bound(flow: Workflow, settings: Any) -> None:
    task = make_in(states.QUEUED, flow)
    settings.LONGWATCH_INLINE_PROGRESS_BYTES = 1000
    assert "the bound is 1000" in refuse(task, PayloadTooLarge, progress={"x": "y" * 1000})
    deep: Any = {}
    for _ in range(70):
        deep = {"d": deep}
    assert "nested deeper" in refuse(task, UnparsableInput, progress=deep)


def test_a_move_back_supersedes_what_is_done_again(flow: Workflow) -> None:
    task = submit(flow)
    for _ in range(2):
        held = claim(flow)
        assert sql.checkpoint_unit(held, make_unit(held, flow), lease_seconds=LEASE, groups=[])
        operators.retry_task(task.pk, actor=ADMIN)  # gives the kept task back
    edit(task, step_name="a")
    assert (task.step_index, task.step_name, task.turn, task.round) == (0, "a", 0, 1)
    assert list(
        StepOutput.objects.filter(task=task).values_list("superseded_in_round", flat=True)
    ) == [1, 1]
    assert task.events.get(kind="edited").data["superseded"] == 2
    held = claim(flow)
    assert sql.checkpoint_unit(held, make_unit(held, flow), lease_seconds=LEASE, groups=[])


def test_a_question_is_voided_when_the_task_leaves_it(flow: Workflow) -> None:
    task = make_in(states.WAITING, flow)
    assert "waits for an answer" in refuse(task, step_name="c")
    with registered(make_workflow(version="2")):
        assert "waits for an answer" in refuse(task, workflow_version="2")
    assert edit(task, title="Still asked").approvals.get().status == "open"
    EDITS.all().delete()
    edit(task, status="queued")
    assert task.approvals.get().status == "void"
    held = claim(flow)
    assert sql.checkpoint_unit(held, make_unit(held, flow), lease_seconds=LEASE, groups=[])


def test_a_dead_task_goes_on_only_with_room_in_its_limits(flow: Workflow) -> None:
    task = submit(flow, limits_given={"wall": 60})
    clock.offset = 100.0
    assert sweeps.enforce_limits() == 1
    assert "limit_wall: is used up" in refuse(task, status="queued")
    edit(task, status="queued", limit_wall=3600)
    assert task.status == "queued"
    assert task.wall_until is not None
    left = (task.wall_until - clock.read()).total_seconds()
    assert 3400 < left <= 3500 + 1  # 100 of 3600 seconds are used
    assert claim(flow).attempts == 0


@pytest.mark.parametrize("status", ["queued", "running", "scheduled", "paused", "dead", "waiting"])
def test_the_wall_limit_is_shifted_in_every_status(flow: Workflow, status: str) -> None:
    task = make_in(status, flow)
    left, until = task.wall_left, task.wall_until
    edit(task, limit_wall=task.limit_wall + 100)
    if until is not None:
        assert task.wall_until == until + dt.timedelta(seconds=100)
    else:
        assert task.wall_left == pytest.approx(left + 100)
    until = task.wall_until
    edit(task, limit_wall=task.limit_wall + 100, status="paused" if until else "queued")
    if until is not None:
        left = (until - clock.read()).total_seconds() + 100
        assert task.wall_left == pytest.approx(left, abs=5)
    else:
        seen = (task.wall_until - clock.read()).total_seconds()
        assert seen == pytest.approx(left + 200, abs=5)


def test_money_is_a_decimal_outside_and_a_deadline_can_be_lifted(flow: Workflow) -> None:
    task = submit(flow, limits_given={"deadline_at": clock.read() + dt.timedelta(days=1)})
    edit(task, limit_cost="12.5", deadline_at=None)
    assert (task.limit_cost, task.deadline_at) == (12_500_000_000, None)
    assert EDITS.get().after["limit_cost"] == "12.50"


def test_priority_moves_the_task_in_the_queue(flow: Workflow) -> None:
    first, second = submit(flow), submit(flow)
    edit(second, priority=1)
    assert claim(flow).task_id == second.pk
    edit(second, priority=-1)
    assert claim(flow).task_id == first.pk


def test_what_is_scheduled_by_hand_is_promoted_when_due(flow: Workflow) -> None:
    task = make_in(states.FAILED, flow)
    edit(task, status="scheduled", available_at=clock.read() + dt.timedelta(seconds=50),
         pause_requested=True)  # fmt: skip
    assert (task.status_reason, task.pause_by) == ("not_before", "user:7")
    clock.offset = 60.0
    assert sweeps.promote_due() == 1
    task.refresh_from_db()
    assert task.status == "paused"


def test_steps_that_nobody_knows_are_set_by_name_and_index(flow: Workflow) -> None:
    stranger = make_workflow("stranger")
    task = submit(stranger)
    assert "name and index" in refuse(task, step_name="b")
    edit(task, step_name="b", step_index=1)
    assert (task.step_name, task.step_index) == ("b", 1)


def test_a_task_is_moved_to_another_version(flow: Workflow) -> None:
    task = make_in(states.PAUSED, flow)
    newer = Workflow("three", version="2")
    for letter in "bad":
        newer.step(lambda ctx: None, name=letter)
    with registered(newer):
        edit(task, workflow_version="2")
        assert (task.step_name, task.step_index, task.total_steps) == ("a", 1, 3)
        assert task.definition_digest == newer.digest()
        edit(task, status="queued")
        assert claim(newer).step_name == "a"


def test_an_event_names_a_long_value_by_its_digest(flow: Workflow) -> None:
    task = make_in(states.QUEUED, flow)
    edit(task, progress={"text": "y" * 50_000})
    short = task.events.get(kind="edited").data["after"]["progress"]
    assert len(str(short)) < 500
    assert short["length"] > 50_000
    assert EDITS.get().after["progress"]["text"] == "y" * 50_000


def test_every_column_of_a_task_is_editable_or_has_a_reason_not_to_be() -> None:
    follows = {
        "id", "workflow", "definition_digest", "rank", "submitted_by", "idempotency_key",
        "body_digest", "status_reason", "error", "total_steps", "progress_done",
        "progress_total", "progress_note", "result", "answer", "workspace", "lease_owner",
        "lease_until", "fence", "claimed_at", "round", "wall_until", "wall_left", "used_units",
        "used_tokens_in", "used_tokens_out", "used_cost", "cancel_by", "pause_by",
        "on_limit", "self_approval", "reserved_tokens", "reserved_cost",
        "last_progress_at", "parent", "parent_seq", "parent_told",
        "copied_from", "children_open", "ending",
        "cascade_upto", "waits", "concurrency_key", "concurrency_limit", "held_key",
            "event_seq", "revision", "beat", "created_at", "started_at",
        "finished_at", "updated_at", "seen_at", "thinned_at", "thinned_days",
    }  # fmt: skip
    names = {field.name for field in Task._meta.concrete_fields}
    assert names == follows | set(edits.EDITABLE)
    assert follows.isdisjoint(edits.EDITABLE)
