"""Tasks that tasks spawn: made with the unit, counted once, ended with their parent."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest

from ledger import clock, limits, sql, states, sweeper
from ledger.errors import InvalidInput, LeaseLost, NotAllowed
from ledger.models import Approval, Spend, Task
from ledger.testing import run
from ledger.transitions import approvals, children, holder, operators, sweeps
from ledger.workflows import AskApproval, Child, Fail, Limits, Spawn, Workflow, registered
from tests.factories import (
    CLIENT,
    LEASE,
    OPERATOR,
    ask,
    attempt,
    claim,
    complete,
    expire_lease,
    make_workflow,
    spawn,
    submit,
)
from tests.ledger.copying import fork, go_on
from tests.ledger.replay import check_columns
from tests.ledger.threads import Crew

pytestmark = pytest.mark.django_db


def make_parent(flow: Workflow, count: int = 3, **options: Any) -> Task:
    """A task that waits for its children."""
    task = submit(flow, limits_given=options.pop("limits_given", None))
    spawn(claim(flow), flow, count, **options)
    return read(task)


def read(task: Task) -> Task:
    found = Task.objects.get(pk=task.pk)
    check_columns(found)
    return found


def list_children(task: Task, *statuses: str) -> list[Task]:
    found = Task.objects.filter(parent=task).order_by("id")
    return list(found.filter(status__in=statuses) if statuses else found)


def end_one(flow: Workflow, good: bool = True) -> None:
    """The next queued task of the workflow ends."""
    held = claim(flow)
    complete(held, flow) if good else holder.fail_task(held, attempt())


def test_children_are_made_with_the_unit_and_nobody_is_held(flow: Workflow) -> None:
    task = make_parent(flow)
    assert (task.status, task.status_reason, task.children_open) == ("waiting", "children", 3)
    assert (task.step_name, task.outputs.get().step_name) == ("b", "a")
    assert {(c.status, c.submitted_by) for c in list_children(task)} == {
        ("queued", f"task:{task.pk}")
    }


def test_a_lost_worker_spawns_nothing(flow: Workflow) -> None:
    submit(flow)
    held = claim(flow)
    expire_lease()
    sweeper.sweep()
    with pytest.raises(LeaseLost):
        spawn(held, flow)
    assert Task.objects.count() == 1


def test_when_all_have_completed_the_parent_goes_on(flow: Workflow) -> None:
    task = make_parent(flow)
    for n in (2, 1, 0):
        assert read(task).status == states.WAITING
        end_one(flow)
        assert sweeper.sweep().related == 1
        assert read(task).children_open == n
    assert (read(task).status, read(task).step_name) == (states.QUEUED, "b")
    assert sweeper.sweep().related == 0


def test_one_failure_fails_the_parent_and_ends_the_others(flow: Workflow) -> None:
    task = make_parent(flow)
    end_one(flow, good=False)
    sweeper.sweep()
    failed = read(task)
    assert (failed.status, failed.status_reason) == ("failed", "workflow_failed")
    assert failed.error["message"] == "1 of 3 child tasks did not complete; 0 may."  # type: ignore[index]
    sweeper.sweep()
    left = list_children(task, states.CANCELLED)
    assert [(c.status_reason) for c in left] == ["cancelled_by_parent"] * 2
    sweep_until_quiet()
    assert (read(task).children_open, read(task).cascade_upto) == (0, None)


def sweep_until_quiet() -> None:
    for _ in range(20):
        if sweeper.sweep().related == 0:
            return
    raise AssertionError("there is always something to sweep")


def test_a_task_that_failed_by_a_child_waits_again_for_the_child_that_goes_on(
    flow: Workflow,
) -> None:
    task = make_parent(flow, 2)
    end_one(flow)
    sweep_until_quiet()
    end_one(flow, good=False)
    sweep_until_quiet()
    assert read(task).status == states.FAILED
    operators.retry_task(task.pk, actor=OPERATOR)
    sweep_until_quiet()
    assert read(task).status == states.FAILED, "nothing has changed"
    operators.retry_task(list_children(task, states.FAILED)[0].pk, actor=OPERATOR)
    operators.retry_task(task.pk, actor=OPERATOR)
    assert (read(task).status, read(task).status_reason) == ("waiting", "children")
    end_one(flow)
    sweep_until_quiet()
    assert (read(task).status, read(task).step_name) == (states.QUEUED, "b")
    assert claim(flow).answer["children"][0] == str(task.pk)  # type: ignore[index]


def test_as_many_may_fail_as_the_workflow_says(flow: Workflow) -> None:
    task = make_parent(flow, 3, max_failed=1)
    end_one(flow, good=False)
    end_one(flow)
    sweeper.sweep()
    assert read(task).status == states.WAITING
    end_one(flow)
    sweeper.sweep()
    assert read(task).status == states.QUEUED


def test_the_first_that_completes_is_enough_and_the_others_end(flow: Workflow) -> None:
    task = make_parent(flow, 3, until="any")
    end_one(flow, good=False)
    sweeper.sweep()
    assert read(task).status == states.WAITING
    end_one(flow)
    sweep_until_quiet()
    assert read(task).status == states.QUEUED
    assert len(list_children(task, states.CANCELLED)) == 1


def test_a_cancelled_parent_with_a_hundred_children_leaves_none_running(flow: Workflow) -> None:
    task = make_parent(flow, 100)
    held = claim(flow)
    operators.cancel_task(task.pk, actor=OPERATOR)
    sweep_until_quiet()
    assert len(list_children(task, states.CANCELLED)) == 99
    running = Task.objects.get(pk=held.task_id)
    assert (running.status, running.cancel_requested) == (states.RUNNING, True)
    unit_is_stored = sql.beat_leases(held.owner, [held.lease], LEASE)[0]
    assert unit_is_stored.cancel_requested
    holder.release_task(held, why="cancel")
    assert (read(running).status, read(running).status_reason) == (
        "cancelled",
        "cancelled_by_parent",
    )
    sweep_until_quiet()
    assert read(task).children_open == 0


def test_a_restart_ends_the_old_children_and_not_the_new_ones(flow: Workflow) -> None:
    task = make_parent(flow, 2)
    operators.restart_task(task.pk, to_step="a", note="other ones", actor=OPERATOR)
    old = {child.pk for child in list_children(task)}
    for child in old:  # they are not swept yet; the parent is quicker
        Task.objects.filter(pk=child).update(rank=2**60)
    spawn(claim(flow), flow, 2)
    sweep_until_quiet()
    assert {child.pk for child in list_children(task, states.CANCELLED)} == old
    assert len(list_children(task, states.QUEUED)) == 2
    assert read(task).status == states.WAITING


def test_a_child_that_is_set_going_again_is_waited_for_again(flow: Workflow) -> None:
    task = make_parent(flow, 2, max_failed=1)
    end_one(flow, good=False)
    sweeper.sweep()
    assert read(task).children_open == 1
    failed = list_children(task, states.FAILED)[0]
    operators.retry_task(failed.pk, actor=OPERATOR)
    assert read(task).children_open == 2
    end_one(flow)
    sweeper.sweep()
    assert read(task).status == states.WAITING
    end_one(flow)
    sweeper.sweep()
    assert read(task).status == states.QUEUED


def test_children_that_end_while_the_parent_is_dead_count_when_it_goes_on(flow: Workflow) -> None:
    soon = clock.read().isoformat()[:19] + "Z"
    task = make_parent(flow, 1)
    Task.objects.filter(pk=task.pk).update(deadline_at=soon)
    assert sweeps.enforce_limit(task.pk)
    end_one(flow)
    sweep_until_quiet()
    assert (read(task).status, read(task).children_open) == (states.DEAD, 0)
    later = {"deadline_at": "2999-01-01T00:00:00Z"}
    operators.extend_limits(task.pk, limits_given=later, actor=OPERATOR)
    assert read(task).status == states.WAITING
    sweep_until_quiet()
    assert read(task).status == states.QUEUED


def test_what_a_child_used_is_its_parents_too_and_counted_once(flow: Workflow) -> None:
    task = make_parent(flow, 2, max_failed=2)
    held = claim(flow)
    limits.record_spend(held, key="one", tokens_in=5, cost="0.10")
    holder.fail_task(held, attempt())
    sweeper.sweep()
    assert (read(task).used_tokens_in, read(task).used_cost) == (5, 100_000_000)
    operators.retry_task(held.task_id, actor=OPERATOR)
    Task.objects.filter(pk=held.task_id).update(rank=0)
    held = claim(flow)
    limits.record_spend(held, key="two", tokens_in=2)
    complete(held, flow)
    sweeper.sweep()
    assert read(task).used_tokens_in == 7
    assert sum(Spend.objects.filter(task=task).values_list("tokens_in", flat=True)) == 7


def test_a_child_has_no_more_units_and_time_than_its_parent_has_left(flow: Workflow) -> None:
    ends = clock.read() + dt.timedelta(hours=1)
    task = submit(flow, limits_given={"units": 7, "deadline_at": ends})
    held = claim(flow)
    spawn(held, flow)
    child = list_children(task)[0]
    assert (child.limit_units, child.deadline_at) == (7, ends)


def test_a_childs_own_limits_hold_within_that(flow: Workflow) -> None:
    submit(flow, limits_given={"units": 100})
    held = claim(flow)
    what = Spawn([Child(flow, limits=Limits(units=7, wall=60)), Child(flow, limits={"units": 500})])
    drafts = children.draft_children(held, what)
    assert [draft.columns["limit_units"] for draft in drafts] == [7, 100]
    assert drafts[0].columns["limit_wall"] == 60


def test_generations_have_an_end(flow: Workflow) -> None:
    submit(flow)
    for _ in range(children.MAX_DEPTH - 1):
        spawn(claim(flow), flow)
    with pytest.raises(InvalidInput, match="8 deep"):
        spawn(claim(flow), flow)


def test_nobody_answers_for_what_they_submitted_through_a_child(flow: Workflow) -> None:
    make_parent(flow, 1)
    request = ask(claim(flow), flow)
    with pytest.raises(NotAllowed):
        approvals.decide_approval(
            request.pk, decision="approve", actor=CLIENT, digest=request.digest
        )
    assert Approval.objects.get().status == "open"


@pytest.mark.django_db(transaction=True)
def test_ends_at_the_same_instant_are_each_counted_once() -> None:
    flow = make_workflow(steps=1)
    crew = Crew()
    with registered(flow):
        parents = make_workflow("parents", steps=2)
        with registered(parents):
            for _ in range(6):
                task = submit(parents)
                held = claim(parents)
                what = Spawn([Child(flow)] * 6)
                unit = sql.Unit("{}", None, 1, "b", 0)
                drafts = children.draft_children(held, what)
                children.spawn_children(held, unit, drafts, what, last=False)
                leases = [claim(flow) for _ in range(6)]
                acts: list[Callable[[], Any]] = [
                    lambda held=held: complete(held, flow)  # type: ignore[misc]
                    for held in leases
                ]
                crew(*acts, *[sweeper.sweep] * 3)
                sweep_until_quiet()
                assert (read(task).status, read(task).children_open) == (states.QUEUED, 0)
                complete(claim(parents), parents)
    crew.close()


def make_tree(fails: bool = False, **options: Any) -> tuple[Workflow, Workflow]:
    leaf = Workflow("leaf")
    root = Workflow("root")

    @leaf.step
    def think(ctx: Any) -> Any:
        if fails and ctx.input["n"] == 1:
            raise Fail("no idea")
        return AskApproval("Really?", then="next") if ctx.input["n"] == 0 else None

    @leaf.step
    def say(ctx: Any) -> Any:
        return {"said": ctx.input["n"]}

    @root.step
    def split(ctx: Any) -> Any:
        return Spawn([Child(leaf, {"n": n}, title=f"leaf {n}") for n in range(3)], **options)

    @root.step
    def gather(ctx: Any) -> Any:
        assert ctx.answer is None
        return {"all": [(one["title"], one["status"], one["result"]) for one in ctx.children]}

    @root.step
    def close(ctx: Any) -> Any:
        return {"left": ctx.children, **ctx.progress}

    return root, leaf


@pytest.mark.django_db(transaction=True)
def test_the_next_step_sees_its_children_in_order() -> None:
    root, leaf = make_tree()
    with registered(leaf):
        ended = run(root, {}, answers={"think": "approve"})
    assert ended.status == "completed"
    seen = [[f"leaf {n}", "completed", {"said": n}] for n in range(3)]
    assert ended.result == {"left": [], "all": seen}


@pytest.mark.django_db(transaction=True)
def test_a_copy_sees_the_children_of_its_original() -> None:
    root, leaf = make_tree()
    root.steps.pop()
    with registered(leaf):
        ended = run(root, {}, answers={"think": "approve"})
    with registered(root):
        copy = fork(ended.id, "gather")
        assert go_on(copy.pk, root).result == ended.result


@pytest.mark.django_db(transaction=True)
def test_a_failed_child_is_seen_where_it_may_fail() -> None:
    root, leaf = make_tree(fails=True, max_failed=1)
    with registered(leaf):
        ended = run(root, {}, answers={"think": "approve"})
    assert ended.result["all"][1] == ["leaf 1", "failed", None]
    root, leaf = make_tree(fails=True)
    with registered(leaf):
        assert run(root, {}, answers={"think": "approve"}).status == "failed"


@pytest.mark.django_db(transaction=True)
def test_no_child_is_no_wait_and_a_wrong_one_names_its_field() -> None:
    flow = Workflow("empty")
    flow.step(lambda ctx: Spawn([], data={"n": 0}), name="split")
    flow.step(lambda ctx: Spawn([{"workflow": "nowhere"}]), name="again")
    ended = run(flow, {})
    assert ended.units == [("split", 0)]
    assert (ended.status, ended.reason) == ("dead", "retries_exhausted")
    assert "children.0.workflow: nobody knows nowhere" in ended.task["error"]["message"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("more", [False, True])
def test_a_step_that_spawns_and_runs_again_sees_its_children_in_that_turn_only(more: bool) -> None:
    root, leaf = Workflow("root"), Workflow("leaf")
    leaf.step(lambda ctx: {"n": ctx.input["n"]}, name="say")

    @root.step
    def work(ctx: Any) -> Any:
        seen = [*ctx.progress.get("seen", []), [one["result"]["n"] for one in ctx.children]]
        if ctx.turn in {0, 1}:
            tasks = [Child(leaf, {"n": n}) for n in range(ctx.turn + 1)]
            return Spawn(tasks, then="again", data={"seen": seen})
        if ctx.turn == 2:
            return Spawn([], then="again", data={"seen": seen})
        return {"seen": seen}

    if more:
        root.step(lambda ctx: {"left": ctx.children, "seen": ctx.progress["seen"]}, name="close")
    with registered(leaf):
        ended = run(root)
    assert (ended.status, ended.result["seen"]) == ("completed", [[], [0], [0, 1], []])
    assert ended.units[:4] == [("work", n) for n in range(4)]
    assert ended.result.get("left", []) == []


@pytest.mark.django_db(transaction=True)
def test_a_step_that_is_to_run_again_after_its_children_is_reached_while_they_run() -> None:
    root, leaf = Workflow("root"), Workflow("leaf")
    leaf.step(lambda ctx: AskApproval("Really?"), name="say")
    root.step(lambda ctx: Spawn([Child(leaf)], then="again"), name="work")
    root.step(lambda ctx: None, name="close")
    with registered(leaf), registered(root):
        ended = run(root)
        assert (ended.status, ended.reason, ended.task["step"]["turn"]) == (
            "waiting",
            "children",
            1,
        )
        operators.restart_task(ended.id, to_step="work", note="anew", actor=OPERATOR)
    assert Task.objects.get(pk=ended.id).status == "queued"
