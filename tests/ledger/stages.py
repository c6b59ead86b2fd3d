"""How to bring a task into each status, and to take each edge of the diagram from there."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
from collections.abc import Callable
from typing import Any

from django.test import override_settings

from ledger import clock, sql, states
from ledger.errors import LimitReached
from ledger.events import Actor
from ledger.models import Approval, Task
from ledger.sql import Claimed
from ledger.transitions import (
    approvals,
    budgets,
    children,
    edits,
    effects,
    endings,
    forks,
    holder,
    operators,
    outputs,
    overdue,
    sweeps,
    waits,
)
from ledger.workflows import Workflow, registered
from tests.factories import (
    LEASE,
    OPERATOR,
    OWNER,
    ask,
    attempt,
    claim,
    complete,
    make_effect,
    make_unit,
    make_workflow,
    spawn,
    submit,
    wait_for,
)
from tests.ledger.messages import steer_some, withdraw_some

APPROVER = Actor("user", "2")
PLAIN = 2
"""The number of the stage's first output; about the second one people are asked."""


type Wait = Callable[[Claimed, Workflow], Any]


@dataclasses.dataclass
class Stage:
    """A task in some status, with what every function needs to be called on it.

    `held` is the claim that it is in, or came out of; `request` its latest question, which is open
    only while it waits.
    """

    flow: Workflow
    task: Task
    held: Claimed
    request: Approval


def set_stage(
    status: str,
    flow: Workflow,
    asking: dict[str, Any],
    wait: Wait | None = None,
    *,
    of_parent: bool = False,
    **options: Any,
) -> Stage:
    """A task in `status` at its second step: the first went on once, asked and was approved.

    `options` go to the submission, `asking` to the question of a task that waits; or `wait` is
    what it does instead of asking.
    """
    task = submit(flow, **options)
    if of_parent:
        Task.objects.filter(pk=task.pk).update(parent=submit(flow, lane="elsewhere"), parent_seq=2)
    held = claim(flow)
    again = make_unit(held, flow, next_index=0, next_name="a", next_turn=1)
    holder.settle_unit(held, again)
    request = ask(claim(flow), flow)
    decide(request)
    held = claim(flow)
    if status == states.PAUSED:
        operators.pause_task(task.id, actor=OPERATOR)
    if status == states.CANCELLED:
        operators.cancel_task(task.id, actor=OPERATOR)
    leave: dict[str, Callable[[], Any]] = {
        states.RUNNING: lambda: None,
        states.QUEUED: lambda: holder.release_task(held, why="drain"),
        states.PAUSED: lambda: holder.release_task(held, why="drain"),
        states.CANCELLED: lambda: holder.release_task(held, why="drain"),
        states.SCHEDULED: lambda: holder.record_failure(held, attempt(), retries=3, backoff=30),
        states.FAILED: lambda: (
            holder.fail_task(held, attempt()) if wait is None else fail_by_child(held, flow)
        ),
        states.DEAD: lambda: (
            holder.bury_task(held, attempt(), states.LIMIT_UNITS)
            if wait is None
            else die_waiting(held, flow)
        ),
        states.WAITING: lambda: ask(held, flow, **asking) if wait is None else wait(held, flow),
        states.COMPLETED: lambda: complete(held, flow),
    }
    asked = leave[status]()
    task.refresh_from_db()
    assert task.status == status
    return Stage(flow, task, held, asked or request)


def fail_by_child(held: Claimed, flow: Workflow) -> None:
    """The task waits for a child, which is cancelled."""
    spawn(held, flow)
    operators.cancel_task(Task.objects.get(parent=held.task_id).pk, actor=OPERATOR)
    assert children.tell_parent(held.task_id)


def die_waiting(held: Claimed, flow: Workflow) -> None:
    """The task's deadline passes while it waits for a signal."""
    wait_for(held, flow)
    clock.offset += 31
    assert sweeps.enforce_limit(held.task_id)


def run_out(held: Claimed, flow: Workflow, settle: Wait | None = None) -> Approval:
    """The task has used its units, and people are asked about that."""
    Task.objects.filter(pk=held.task_id).update(on_limit="ask", limit_units=1)
    if settle is None:
        holder.bury_task(held, attempt(), states.LIMIT_UNITS)
    else:
        settle(held, flow)
    return Approval.objects.get(task=held.task_id, status="open")


def run_out_sleeping(held: Claimed, flow: Workflow) -> Approval:
    """So does one whose unit wants to sleep."""
    return run_out(held, flow, lambda *_: holder.settle_unit(held, make_unit(held, flow), delay=90))


def run_out_waiting(held: Claimed, flow: Workflow) -> Approval:
    """The deadline passes while the task waits for a signal, and people are asked about that."""
    wait_for(held, flow)
    past = clock.read() - dt.timedelta(seconds=1)
    Task.objects.filter(pk=held.task_id).update(on_limit="ask", deadline_at=past)
    assert sweeps.enforce_limit(held.task_id)
    return Approval.objects.get(task=held.task_id, status="open")


def want_budget(held: Claimed, flow: Workflow) -> None:
    """The task finds that a task above it has no money left."""
    budgets.await_budget(held, attempt(), LimitReached(states.LIMIT_COST, "no money left"))


def ask_about_limits(stage: Stage) -> None:
    """The units are used up, and people are to be asked about limits."""
    Task.objects.filter(pk=stage.task.pk).update(on_limit="ask", limit_units=1)


def decide(
    request: Approval, decision: str = "approve", undo: float = 0.0, values: Any = None
) -> Approval:
    """An approver's answer."""
    return approvals.decide_approval(
        request.id, decision=decision, actor=APPROVER, digest=request.digest, undo_seconds=undo,
        values=values,
    )  # fmt: skip


def call(function: str, stage: Stage, **given: Any) -> Any:
    """Call the edge's function on the stage's task, however little sense that makes there."""
    held, flow, key, by = stage.held, stage.flow, stage.task.id, {"actor": OPERATOR}
    groups = [("default", flow.name, flow.version)]
    unit = make_unit(held, flow)
    if given.pop("finish", False):
        here = {"next_index": held.step_index, "next_name": held.step_name, "next_turn": held.turn}
        unit = make_unit(held, flow, result='{"done":true}', **here)
    given |= {"groups": groups} if given.get("groups") else {}
    calls: dict[str, Callable[[], Any]] = {
        "claim_task": lambda: sql.claim_task(OWNER, groups, LEASE),
        "checkpoint_unit": lambda: sql.checkpoint_unit(
            held, unit, **{"lease_seconds": LEASE, "groups": None, **given}
        ),
        "settle_unit": lambda: holder.settle_unit(held, unit, **given),
        "await_signal": lambda: wait_for(held, flow),
        "send_signal": lambda: waits.send_signal(key, name="go", **by),
        "expire_signal": lambda: waits.expire_signal(key),
        "ask_approval": lambda: ask(held, flow), "spawn_children": lambda: spawn(held, flow),
        "join_children": lambda: children.join_children(key),
        "await_budget": lambda: want_budget(held, flow),
        "go_on_with_budget": lambda: budgets.go_on_with_budget(key),
        "cancel_child": lambda: children.cancel_child(key),
        "fail_task": lambda: holder.fail_task(held, attempt()),
        "bury_task": lambda: holder.bury_task(held, attempt(), states.LIMIT_COST),
        "record_failure": lambda: holder.record_failure(
            held, attempt(), **{"retries": 3, "backoff": 5.0, **given}),
        "repair_task": lambda: holder.repair_task(held, unit, to_index=0, to_name="a", feedback=""),
        "release_task": lambda: holder.release_task(held, why="drain", **given),
        "misfit_task": lambda: holder.misfit_task(held, problem="no such step"),
        "reclaim_task": lambda: sweeps.reclaim_task(key, LEASE),
        "promote_due": sweeps.promote_due, "settle_undo": lambda: undo_last(stage),
        "apply_decision": lambda: approvals.apply_decision(key),
        "expire_approval": lambda: overdue.expire_approval(stage.request.id),
        "enforce_limit": lambda: sweeps.enforce_limit(key),
        "go_on_after_limit": lambda: decide(stage.request, **{"values": {"units": 90}, **given}),
        "end_by_limit": lambda: decide(stage.request, "reject"),
        "remind_approval": lambda: overdue.remind_approval(stage.request.id),
        "decide_approval": lambda: decide(stage.request, undo=8.0),
        "undo_decision": lambda: approvals.undo_decision(stage.request.id, actor=APPROVER),
        **{name: functools.partial(getattr(operators, name), key, **by) for name in (
            "cancel_task", "stop_task", "pause_task", "resume_task", "retry_task")},
        "restart_task": lambda: operators.restart_task(key, to_step="a", note="once more", **by),
        "change_task": lambda: operators.change_task(key, priority=7, **by),
        "edit_output": lambda: outputs.edit_output(
            key, PLAIN, output={"by": "hand"}, reason="why not", **by),
        "mark_effect": lambda: settle_effect(stage),
        "steer_task": lambda: steer_some(stage.task, flow),
        "withdraw_message": lambda: withdraw_some(stage.task),
        "compensate_task": lambda: effects.compensate_task(key, **by),
        "extend_limits": lambda: operators.extend_limits(
            key, **{"limits_given": {"units": 50}, **given, **by}),
        "fork_task": lambda: forks.fork_task(key, from_step="a", **by),
        "edit_task": lambda: edits.edit_task(
            key, changes=given or {"title": "by hand"}, reason="why not",
            revision=Task.objects.get(pk=key).revision, **by,
        ),
    }  # fmt: skip
    return calls[function]()


def settle_effect(stage: Stage) -> None:
    """A person's word on what a lost attempt began."""
    effect = make_effect(stage.task)
    effects.mark_effect(stage.task.id, effect.pk, to="done", actor=OPERATOR)


def undo_last(stage: Stage) -> None:
    """The unit of a compensation, if there is one to call."""
    effect = endings.list_open(stage.task.id).first()
    if effect is not None:
        effects.begin_undo(stage.held, effect.pk)
        effects.finish_undo(stage.held, effect.pk, "undone")
    endings.settle_undo(stage.held)


def owe(stage: Stage, name: str = "pay") -> None:
    """The task has done what it can undo."""
    make_effect(stage.task, name, compensation="refund")


def owe_and_cancel(stage: Stage) -> None:
    """And is asked to end."""
    owe(stage)
    cancel(stage)


def undo_before(end: Callable[[Stage], Any], *names: str) -> Callable[[Stage], None]:
    """Its unit undoes the last of what it did, and then it has that end."""

    def begin(stage: Stage) -> None:
        for name in names or ("pay",):
            owe(stage, name)
        end(stage)
        stage.held = claim(stage.flow)
        assert stage.held.ending is not None

    return begin


def fail(stage: Stage) -> None:
    """The workflow ends it."""
    holder.fail_task(stage.held, attempt())


def cancel_running(stage: Stage) -> None:
    """A person does."""
    cancel(stage)
    operators.stop_task(stage.task.id, actor=OPERATOR)


def die(stage: Stage) -> None:
    """It gave up, and a person has it undo what it did."""
    holder.bury_task(stage.held, attempt(), states.LIMIT_COST)
    effects.compensate_task(stage.task.id, actor=OPERATOR)


@dataclasses.dataclass(frozen=True)
class Way:
    """What it takes to make a function lead to a certain target."""

    submit: dict[str, Any] = dataclasses.field(default_factory=dict)
    asking: dict[str, Any] = dataclasses.field(default_factory=dict)
    before: Callable[[Stage], Any] = lambda stage: None
    given: dict[str, Any] = dataclasses.field(default_factory=dict)
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    steps: int = 3
    wait: Wait | None = None
    """What a task that waits for something else than an answer did."""


def pause(stage: Stage) -> None:
    """An operator's wish, before the call."""
    operators.pause_task(stage.task.id, actor=OPERATOR)


def cancel(stage: Stage) -> None:
    """An operator's wish, before the call."""
    operators.cancel_task(stage.task.id, actor=OPERATOR)


def approve(stage: Stage) -> None:
    """The open question is answered, with time to undo it."""
    decide(stage.request, undo=8.0)


def approve_and_pause(stage: Stage) -> None:
    """Both."""
    approve(stage)
    pause(stage)


def _do_nothing(stage: Stage) -> None:
    pass


def send(stage: Stage) -> None:
    """The signal is in the mailbox, or ends the wait."""
    waits.send_signal(stage.task.id, name="go", actor=OPERATOR)


def send_and_pause(stage: Stage) -> None:
    """Both."""
    send(stage)
    pause(stage)


def end_child(stage: Stage, good: bool = True) -> None:
    """The child ends and is counted, but its parent does not go on by that yet."""
    child = Task.objects.get(parent=stage.task)
    if good:
        held = claim(stage.flow)
        assert held.task_id == child.pk
        for _ in stage.flow.steps:
            unit = make_unit(held, stage.flow)
            assert sql.checkpoint_unit(held, unit, lease_seconds=LEASE, groups=None)
            held = sql.read_task(Task.objects.get(pk=child.pk)) if unit.result is None else held
    else:
        operators.cancel_task(child.pk, actor=OPERATOR)
    Task.objects.filter(pk=child.pk).update(parent_told=True)
    Task.objects.filter(pk=stage.task.pk).update(children_open=0, available_at=clock.now())


def let_a_week_pass(stage: Stage) -> None:
    """Longer than a wait without a time of its own."""
    clock.offset += 8 * 86_400


DELAY = {"delay": 30.0}
wait_briefly = functools.partial(wait_for, timeout=30.0)
WAYS: dict[tuple[str, str], Way] = {
    ("checkpoint_unit", states.QUEUED): Way(
        before=lambda stage: submit(stage.flow), given={"groups": True}
    ),
    ("checkpoint_unit", states.COMPLETED): Way(given={"finish": True}),
    ("settle_unit", states.SCHEDULED): Way(given=DELAY),
    ("settle_unit", states.DEAD): Way(submit={"limits_given": {"units": 3}}),
    ("record_failure", states.DEAD): Way(given={"retries": 0}),
    ("repair_task", states.DEAD): Way(submit={"max_repairs": 0}),
    ("release_task", states.SCHEDULED): Way(given=DELAY),
    ("release_task", states.DEAD): Way(
        given={"retries": 0}, settings={"LONGWATCH_MAX_RELEASES": 0}
    ),
    ("misfit_task", states.PAUSED): Way(),
    ("reclaim_task", states.DEAD): Way(settings={"LONGWATCH_MAX_RECLAIMS": 0}),
    ("apply_decision", states.QUEUED): Way(before=approve),
    ("apply_decision", states.PAUSED): Way(before=approve_and_pause),
    ("apply_decision", states.COMPLETED): Way(before=approve, steps=2),
    ("apply_decision", states.FAILED): Way(
        before=lambda stage: decide(stage.request, "reject", undo=8.0)
    ),
    ("expire_approval", states.QUEUED): Way(asking={"on_expiry": "a"}),
    ("expire_approval", states.PAUSED): Way(asking={"on_expiry": "a"}, before=pause),
    ("expire_approval", states.FAILED): Way(asking={"on_expiry": "reject"}),
    ("go_on_after_limit", states.QUEUED): Way(wait=run_out),
    ("go_on_after_limit", states.PAUSED): Way(wait=run_out, before=pause),
    ("go_on_after_limit", states.SCHEDULED): Way(wait=run_out_sleeping),
    ("go_on_after_limit", states.WAITING): Way(
        wait=run_out_waiting, given={"values": {"deadline_at": "2999-01-01T00:00:00Z"}}
    ),
    ("end_by_limit", states.DEAD): Way(wait=run_out),
    ("enforce_limit", states.WAITING): Way(wait=wait_for, before=ask_about_limits),
    **{(function, states.WAITING): Way(before=ask_about_limits)
       for function in ("settle_unit", "bury_task", "record_failure", "repair_task",
                        "release_task")},
    ("expire_approval", states.WAITING): Way(asking={"escalate": [("group:leads", 3600)]}),
    ("remind_approval", states.WAITING): Way(asking={"remind": 60, "expires": 3600}),
    ("undo_decision", states.WAITING): Way(before=approve),
    ("await_signal", states.QUEUED): Way(before=send),
    ("await_signal", states.PAUSED): Way(before=send_and_pause),
    ("await_signal", states.COMPLETED): Way(before=send, steps=2),
    ("send_signal", states.QUEUED): Way(wait=wait_for),
    ("send_signal", states.PAUSED): Way(wait=wait_for, before=pause),
    ("send_signal", states.COMPLETED): Way(wait=wait_for, steps=2),
    ("send_signal", states.WAITING): Way(),
    ("expire_signal", states.QUEUED): Way(wait=wait_briefly),
    ("expire_signal", states.PAUSED): Way(wait=wait_briefly, before=pause),
    ("expire_signal", states.COMPLETED): Way(wait=wait_briefly, steps=2),
    ("expire_signal", states.DEAD): Way(wait=wait_for, before=let_a_week_pass),
    ("join_children", states.QUEUED): Way(wait=spawn, before=lambda stage: end_child(stage)),
    ("join_children", states.PAUSED): Way(
        wait=spawn, before=lambda stage: (end_child(stage), pause(stage))
    ),
    ("join_children", states.COMPLETED): Way(
        wait=spawn, before=lambda stage: end_child(stage), steps=2
    ),
    ("join_children", states.FAILED): Way(
        wait=spawn, before=lambda stage: end_child(stage, good=False)
    ),
    ("cancel_child", states.CANCELLED): Way(),
    **{(function, states.QUEUED): Way(before=owe)
       for function in ("fail_task", "cancel_child", "cancel_task", "compensate_task")},
    **{(function, states.QUEUED): Way(before=owe_and_cancel)
       for function in ("ask_approval", "spawn_children", "await_budget", "bury_task",
                        "record_failure", "misfit_task", "stop_task")},
    ("settle_undo", states.FAILED): Way(before=undo_before(fail)),
    ("settle_undo", states.CANCELLED): Way(before=undo_before(cancel_running)),
    ("settle_undo", states.DEAD): Way(before=undo_before(die)),
    ("settle_undo", states.QUEUED): Way(before=undo_before(fail, "pay", "ship")),
    ("settle_undo", states.PAUSED): Way(
        before=lambda stage: (undo_before(fail, "pay", "ship")(stage), pause(stage))
    ),
    ("go_on_with_budget", states.QUEUED): Way(wait=want_budget),
    ("go_on_with_budget", states.PAUSED): Way(wait=want_budget, before=pause),
    ("retry_task", states.WAITING): Way(wait=wait_for),
    ("extend_limits", states.WAITING): Way(
        wait=wait_for, given={"limits_given": {"deadline_at": "2999-01-01T00:00:00Z"}}
    ),
    ("stop_task", states.CANCELLED): Way(before=cancel),
    **{("resume_task", status): Way(before=pause)
       for status in (states.RUNNING, states.SCHEDULED, states.WAITING)},
}  # fmt: skip
BY_TIME = {"reclaim_task", "promote_due", "apply_decision", "expire_approval", "expire_signal",
           "remind_approval", "enforce_limit", "join_children", "go_on_with_budget"}  # fmt: skip


def take_edge(edge: states.Edge, flow: Workflow) -> tuple[Stage, Callable[[], Any]]:
    """A stage in the edge's source, and the call that should bring it to the target."""
    function, source, target, by = edge
    given: dict[str, Any] = {}
    before = _do_nothing
    if by in {"holder", "sweeper"}:
        before = {states.PAUSED: pause, states.CANCELLED: cancel}.get(target, before)
    if function == "edit_task" and target != source:
        given = {"status": target}
        if target == states.SCHEDULED:
            given["available_at"] = clock.read() + dt.timedelta(seconds=60)
    way = WAYS.get((function, target), Way(before=before, given=given))
    options, asking = dict(way.submit), {"expires": 30, **way.asking}
    if function == "enforce_limit" or (source == states.DEAD and way.wait is not None):
        options["limits_given"] = {"deadline_at": clock.read() + dt.timedelta(seconds=30)}
    if way.steps != len(flow.steps):
        flow = make_workflow("short", steps=way.steps)
    with registered(flow):  # a short one is its own child
        stage = set_stage(
            source, flow, asking, way.wait, of_parent=function == "cancel_child", **options
        )
        way.before(stage)
    if function in BY_TIME:
        clock.offset += LEASE + 1
    stage.task.refresh_from_db()

    def act() -> Any:
        with override_settings(**way.settings):
            return call(function, stage, **way.given)

    return stage, act
