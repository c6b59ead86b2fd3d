"""Title, lane, priority, tags of a task under way: its place moves, its lease does not."""

from __future__ import annotations

from typing import Any

import pytest

from ledger import conf, sql, states
from ledger.errors import InvalidInput, StaleRevision, WrongStatus
from ledger.models import Task
from ledger.transitions import holder, operators, sweeps
from ledger.workflows import Workflow
from tests.factories import LEASE, OPERATOR, claim, expire_lease, make_in, make_unit, submit


def change(task: Task, **given: Any) -> Task:
    """The task after the operator's change."""
    operators.change_task(task.pk, actor=OPERATOR, **given)
    return Task.objects.get(pk=task.pk)


@pytest.mark.parametrize("status", states.STATUSES)
def test_a_change_moves_no_status_and_no_lease(status: str, flow: Workflow) -> None:
    task = make_in(status, flow)
    given = {"title": "New", "lane": "other", "priority": 3, "tags": ["x"]}
    if status in states.FINAL:
        with pytest.raises(WrongStatus, match="copy it from a step"):
            change(task, **given)
        return
    before = Task.objects.filter(pk=task.pk).values().get()
    after = change(task, reason="urgent", revision=task.revision, **given)
    moved = {name for name, value in before.items() if getattr(after, name) != value}
    assert moved - {"updated_at"} == {*given, "rank", "revision", "event_seq"}
    event = after.events.get(kind="edited")
    assert event.data == {
        "reason": "urgent", "after": given,
        "before": {"title": "", "lane": "default", "priority": 0, "tags": []},
    }  # fmt: skip


def test_the_place_in_the_queue_follows_the_priority(flow: Workflow) -> None:
    first, second = submit(flow), submit(flow)
    raised = change(second, priority=2)
    assert second.rank - raised.rank == 2 * conf.RANK_PER_PRIORITY
    assert claim(flow).task_id == second.pk
    assert change(raised, priority=0).rank == second.rank
    assert change(first, priority=-100).rank > first.rank


def test_another_lane_is_claimed_by_its_name(flow: Workflow) -> None:
    task = change(submit(flow), lane="vip")
    assert sql.claim_task("h:1:b", [("default", flow.name, flow.version)], LEASE) is None
    assert claim(flow, lane="vip").task_id == task.pk


def test_a_running_unit_is_stored_under_the_new_priority(flow: Workflow) -> None:
    task = submit(flow)
    held = claim(flow)
    change(task, priority=50, lane="vip")
    holder.settle_unit(held, make_unit(held, flow))
    stored = Task.objects.get(pk=task.pk)
    assert (stored.step_name, stored.priority, stored.lane) == ("b", 50, "vip")
    later = submit(flow, lane="vip", priority=49)
    assert stored.rank < later.rank


def test_a_checkpoint_gives_way_by_the_new_priority(flow: Workflow) -> None:
    """In one statement with the next claim: the row's own priority counts, not the claim's."""
    groups = [("default", flow.name, flow.version)]
    task, held = submit(flow), claim(flow)
    change(task, priority=-50)
    other = submit(flow)
    settled = sql.checkpoint_unit(held, make_unit(held, flow), lease_seconds=LEASE, groups=groups)
    assert settled is not None
    assert settled.claimed is not None
    assert settled.claimed.task_id == other.pk


def test_a_lost_task_keeps_its_changed_place(flow: Workflow) -> None:
    task, other = submit(flow), submit(flow)
    claim(flow)
    change(task, priority=-100)
    expire_lease()
    sweeps.reclaim_task(task.pk, LEASE)
    assert claim(flow).task_id == other.pk


def test_nothing_new_leaves_no_trace(flow: Workflow) -> None:
    task = submit(flow, title="T")
    assert change(task, title="T", priority=0).revision == task.revision
    with pytest.raises(InvalidInput, match="at least one of"):
        change(task)
    with pytest.raises(StaleRevision):
        change(task, title="x", revision=task.revision + 1)
    for field, value in (("priority", 101), ("priority", True), ("lane", ""), ("title", "a\nb"),
                         ("tags", ["x"] * 21), ("tags", "x")):  # fmt: skip
        with pytest.raises(InvalidInput, match=field):
            change(task, **{field: value})
    assert Task.objects.get(pk=task.pk).revision == task.revision
