"""The eight checks that people try first on such a ledger."""

from __future__ import annotations

import json

import pytest

from ledger import sql, states
from ledger.errors import LeaseLost
from ledger.models import StepOutput, Task
from ledger.transitions import holder, sweeps
from ledger.workflows import Workflow
from tests.factories import LEASE, OTHER, OWNER, claim, complete, expire_lease, make_unit, submit


def groups_of(flow: Workflow) -> list[sql.Group]:
    return [("default", flow.name, flow.version)]


def test_an_expired_lease_can_be_reclaimed(flow: Workflow) -> None:
    task = submit(flow)
    held = claim(flow)
    expire_lease()
    assert sweeps.find_expired(LEASE) == [task.id]
    assert sweeps.reclaim_task(task.id, LEASE) == states.QUEUED
    again = claim(flow, OTHER)
    assert (again.task_id, again.fence, again.reclaims) == (task.id, held.fence + 2, 1)


def test_an_unexpired_lease_cannot_be_stolen(flow: Workflow) -> None:
    task = submit(flow)
    claim(flow)
    assert sql.claim_task(OTHER, groups_of(flow), LEASE) is None
    assert sweeps.find_expired(LEASE) == []
    assert sweeps.reclaim_task(task.id, LEASE) is None
    task.refresh_from_db()
    assert (task.status, task.lease_owner) == (states.RUNNING, OWNER)


def test_only_the_owner_may_heartbeat(flow: Workflow) -> None:
    task = submit(flow)
    held = claim(flow)
    task.refresh_from_db()
    before = task.lease_until
    assert sql.beat_leases(OTHER, [held.lease], LEASE) == []
    assert sql.beat_leases(OWNER, [sql.Lease(task.id, held.fence - 1, OWNER)], LEASE) == []
    task.refresh_from_db()
    assert task.lease_until == before
    beaten = sql.beat_leases(OWNER, [held.lease], 2 * LEASE)
    assert [(b.task_id, b.fence, b.cancel_requested) for b in beaten] == [
        (task.id, held.fence, False)
    ]
    task.refresh_from_db()
    assert before is not None
    assert task.lease_until is not None
    assert task.lease_until > before


def test_a_checkpoint_within_the_slice_keeps_the_task(flow: Workflow) -> None:
    task = submit(flow)
    held = claim(flow)
    unit = make_unit(held, flow, progress='{"a":1}')
    settled = sql.checkpoint_unit(held, unit, lease_seconds=LEASE, groups=None)
    assert settled is not None
    assert settled.kept_fence == held.fence + 1
    task.refresh_from_db()
    assert (task.status, task.step_name, task.fence) == (states.RUNNING, "b", held.fence + 1)
    assert task.progress == {"a": 1}
    output = StepOutput.objects.get(task=task)
    assert (output.step_name, output.turn, output.fence) == ("a", 0, held.fence)
    assert output.output == {"ok": True}
    assert output.started_at <= output.finished_at


def test_past_the_slice_a_task_gives_way_to_the_one_that_waited_longer(flow: Workflow) -> None:
    first, second = submit(flow), submit(flow)
    held = claim(flow)
    assert held.task_id == first.id
    settled = sql.checkpoint_unit(
        held, make_unit(held, flow), lease_seconds=LEASE, groups=groups_of(flow)
    )
    assert settled is not None
    assert settled.kept_fence is None
    assert settled.claimed is not None
    assert settled.claimed.task_id == second.id
    first.refresh_from_db()
    assert (first.status, first.step_name) == (states.QUEUED, "b")
    assert first.lease_owner == ""


def test_past_the_slice_a_lone_task_goes_on_under_a_new_fence(flow: Workflow) -> None:
    task = submit(flow)
    held = claim(flow)
    settled = sql.checkpoint_unit(
        held, make_unit(held, flow), lease_seconds=LEASE, groups=groups_of(flow)
    )
    assert settled is not None
    assert (settled.kept_fence, settled.claimed) == (held.fence + 1, None)
    task.refresh_from_db()
    assert (task.status, task.step_name) == (states.RUNNING, "b")


def test_one_unit_per_claim_advances_one_step_and_requeues(flow: Workflow) -> None:
    task = submit(flow)
    seen = []
    for _ in range(2):
        held = claim(flow)
        seen.append((held.step_name, held.fence))
        holder.settle_unit(held, make_unit(held, flow))
        task.refresh_from_db()
        assert task.status == states.QUEUED
        assert task.lease_until is None
    assert seen == [("a", 1), ("b", 2)]
    assert task.step_name == "c"


def test_repair_is_bounded(flow: Workflow) -> None:
    task = submit(flow, max_repairs=2)
    for round_ in range(3):
        held = claim(flow)
        holder.repair_task(
            held, make_unit(held, flow), to_index=0, to_name="a", feedback=f"round {round_}"
        )
    task.refresh_from_db()
    assert (task.status, task.status_reason) == (states.DEAD, states.REPAIRS_EXHAUSTED)
    assert (task.repair_count, task.round) == (2, 2)
    assert task.feedback == "round 2"
    assert StepOutput.objects.filter(task=task, superseded_in_round__isnull=True).count() == 0
    assert StepOutput.objects.filter(task=task).count() == 3


def test_progress_survives_a_new_worker(flow: Workflow) -> None:
    submit(flow)
    held = claim(flow)
    holder.settle_unit(held, make_unit(held, flow, progress=json.dumps({"seen": [1, 2]})))
    again = claim(flow, OTHER)
    assert again.progress == {"seen": [1, 2]}
    assert again.step_name == "b"


def test_a_completed_task_is_never_claimed(flow: Workflow) -> None:
    task = submit(flow)
    held = claim(flow)
    complete(held, flow)
    assert sql.claim_task(OTHER, groups_of(flow), LEASE) is None
    assert sql.list_groups() == []
    task.refresh_from_db()
    assert (task.status, task.result) == (states.COMPLETED, {"done": True})
    assert task.finished_at is not None
    assert [event.kind for event in task.events.all()] == ["submitted", "completed"]
    assert task.event_seq == 3


def test_a_reclaimed_attempt_cannot_settle(flow: Workflow) -> None:
    task = submit(flow)
    held = claim(flow)
    expire_lease()
    sweeps.reclaim_task(task.id, LEASE)
    unit = make_unit(held, flow)
    assert sql.checkpoint_unit(held, unit, lease_seconds=LEASE, groups=None) is None
    assert sql.checkpoint_unit(held, unit, lease_seconds=LEASE, groups=groups_of(flow)) is None
    for write in (
        lambda: holder.settle_unit(held, unit),
        lambda: holder.record_failure(held, holder.Attempt({}), retries=3, backoff=1),
        lambda: holder.release_task(held, why="drain"),
        lambda: holder.fail_task(held, holder.Attempt({})),
        lambda: holder.repair_task(held, unit, to_index=0, to_name="a", feedback=None),
        lambda: holder.report_progress(held.lease, 1, 2, "note"),
    ):
        with pytest.raises(LeaseLost):
            write()
    fresh = Task.objects.get(pk=task.id)
    assert (fresh.status, fresh.attempts, fresh.step_name) == (states.QUEUED, 0, "a")
    assert StepOutput.objects.filter(task=task).count() == 0
    refused = [e for e in fresh.events.all() if e.kind == "stale_write_refused"]
    assert [event.fence for event in refused] == [held.fence]
