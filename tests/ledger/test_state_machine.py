"""The diagram: docs, `states.EDGES` and functions say the same; every function in every status."""

from __future__ import annotations

import ast
import datetime as dt
import re
from pathlib import Path
from typing import Any

import pytest

from ledger import clock, sql, states
from ledger.errors import LeaseLost, LedgerError
from ledger.models import Approval, ApprovalVote, Event, StepOutput, Task
from ledger.queries.marks import mark_ledger
from ledger.sql import Claimed
from ledger.transitions import (
    approvals,
    asking,
    budgets,
    children,
    edits,
    effects,
    endings,
    forks,
    holder,
    limit_answers,
    operators,
    outputs,
    overdue,
    steering,
    submit,
    sweeps,
    waits,
)
from ledger.workflows import Workflow
from tests.factories import submit as submit_one
from tests.ledger.stages import Stage, call, set_stage, take_edge

ROOT = Path(__file__).resolve().parents[2]
DOC = (ROOT / "docs" / "state-machine.md").read_text()
MODULES = (
    approvals, budgets, asking, children, edits, effects, endings, forks, holder, limit_answers,
    operators, outputs, overdue, steering, submit, sweeps, waits, sql,
)  # fmt: skip
FUNCTIONS = sorted({edge.function for edge in states.EDGES} - {"submit_task"})
HOLDERS = sorted({edge.function for edge in states.EDGES if edge.by == "holder"})
FULFILLED = {
    ("cancel_task", states.CANCELLED),
    ("pause_task", states.PAUSED),
    ("resume_task", states.QUEUED),
}
"""What is asked for is so already: no error, and nothing is written."""
TAKEN_BACK = {"release_task", "reclaim_task", "retry_task"}

MOVES = [edge for edge in states.EDGES if edge.source]
STAYS_OUT = [
    (function, status)
    for function in FUNCTIONS
    for status in states.STATUSES
    if not any(e.function == function and e.source == status for e in states.EDGES)
]


def read_table(heading: str) -> list[list[str]]:
    """The rows of the document's table under `heading`, as cells."""
    part = DOC.split(f"## {heading}")[1].split("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("| `")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


def test_the_document_has_every_edge_and_no_other() -> None:
    written = {
        states.Edge(function, source, source if target == "stays" else target, by)
        for function, sources, targets, by in read_table("Edges")
        for source in sources.replace("nothing", "").split(", ")
        for target in targets.split(", ")
    }
    assert written == set(states.EDGES)


def test_the_diagram_shows_every_move_but_an_admins() -> None:
    arrows = re.findall(r"^ +(\S+) --> (\w+): (.+)$", DOC, re.M)
    drawn = {
        (source.replace("[*]", ""), target, function)
        for source, target, functions in arrows
        for function in functions.split(", ")
    }
    moves = {
        (e.source, e.target, e.function)
        for e in states.EDGES
        if e.source != e.target and e.function != "edit_task"
    }
    assert drawn == moves


def test_the_document_explains_every_reason() -> None:
    names = [name for name in vars(states) if name.isupper() and not name.startswith("_")]
    constants = {vars(states)[name] for name in names if isinstance(vars(states)[name], str)}
    assert {row[0] for row in read_table("Reasons")} == constants - set(states.STATUSES)
    assert {row[1] for row in read_table("Reasons")} <= set(states.STATUSES)


@pytest.mark.parametrize("function", [*FUNCTIONS, "submit_task"])
def test_every_edge_names_a_function_that_says_what_it_does(function: str) -> None:
    found = [vars(module)[function] for module in MODULES if function in vars(module)]
    assert found, function
    assert found[0].__doc__


def test_every_edge_that_the_code_names_is_on_the_diagram() -> None:
    place = {"move_task": 2, "leave_running": 3, "act_on": 3, "go_on_after_limit": 2,
             "_cancel": 2, "_go_on": 2, "requeue_task": 2, "end_task": 2}  # fmt: skip
    named = {
        node.args[place[node.func.id]].value
        for path in (ROOT / "ledger" / "transitions").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in place
        and isinstance(node.args[place[node.func.id]], ast.Constant)
    }
    assert named == set(FUNCTIONS) - {
        "claim_task", "checkpoint_unit", "fork_task", "change_task", "mark_effect",
        "steer_task", "withdraw_message",
    }  # fmt: skip


def read_all(task: Task) -> dict[str, Any]:
    """Everything on record of the task."""
    return {
        "task": Task.objects.filter(pk=task.pk).values().get(),
        "outputs": list(StepOutput.objects.filter(task=task).order_by("seq").values()),
        "events": list(Event.objects.filter(task=task).order_by("seq").values()),
        "approvals": list(Approval.objects.filter(task=task).order_by("id").values()),
        "votes": list(ApprovalVote.objects.filter(approval__task=task).order_by("id").values()),
    }


def name_edge(edge: states.Edge) -> str:
    return f"{edge.function}-{edge.source}-{edge.target}"


@pytest.mark.parametrize("edge", MOVES, ids=name_edge)
def test_what_the_diagram_allows_moves(edge: states.Edge, flow: Workflow) -> None:
    stage, act = take_edge(edge, flow)
    before, mark = Task.objects.get(pk=stage.task.pk), mark_ledger()
    act()
    assert mark_ledger() != mark, "a page that polls would not see it"
    after = Task.objects.get(pk=stage.task.pk)
    assert after.status == edge.target
    check_columns(after)
    check_fence(edge, before, after)
    check_record(edge, before, after)
    assert after.revision > before.revision
    if edge.target == states.QUEUED and edge.source != states.QUEUED:
        kept = edge.function in TAKEN_BACK and edge.source == states.RUNNING
        kept = kept or (edge.function, edge.source) == ("edit_task", states.RUNNING)
        assert (after.rank == before.rank) == kept


def check_columns(task: Task) -> None:
    """Lease, finish, wall limit and flags fit the status."""
    running = task.status == states.RUNNING
    assert (bool(task.lease_owner), task.lease_until is not None) == (running, running)
    assert (task.finished_at is not None) == (task.status in states.FINISHED)
    counts = states.counts_wall(task.status, task.status_reason)
    assert (task.wall_until is not None, task.wall_left is None) == (counts, counts)
    if task.status in states.FINISHED:
        assert not task.cancel_requested
        assert not task.pause_requested
    if task.status in {states.QUEUED, states.PAUSED}:
        assert not task.cancel_requested
        assert not task.pause_requested


def check_fence(edge: states.Edge, before: Task, after: Task) -> None:
    """+1 at a claim, at a checkpoint that keeps, and where the holder did not let go itself."""
    kept = edge.function == "checkpoint_unit" and edge.target == states.RUNNING
    thrown_out = before.status == states.RUNNING != after.status and edge.by != "holder"
    rises = edge.function in {"claim_task", "edit_task"} or kept or thrown_out
    assert after.fence == before.fence + rises


def check_record(edge: states.Edge, before: Task, after: Task) -> None:
    """Events and outputs number on without a gap, and a move has left the event of its target."""
    events = list(after.events.order_by("seq"))
    numbers = sorted([e.seq for e in events] + [o.seq for o in after.outputs.all()])
    assert numbers == list(range(1, after.event_seq + 1))
    kinds = [e.kind for e in events if e.seq > before.event_seq]
    plain = edge.function in {"claim_task", "checkpoint_unit", "settle_unit"}
    if plain and edge.target in {states.RUNNING, states.QUEUED}:
        assert kinds == []
    elif edge.function == "edit_task":
        assert kinds[-1] == "edited"
    elif edge.target in {*states.FINISHED, states.PAUSED} - {edge.source}:
        assert kinds[-1] == edge.target
    else:
        assert kinds


@pytest.mark.parametrize(("function", "status"), STAYS_OUT)
def test_what_the_diagram_lacks_raises_and_writes_nothing(
    function: str, status: str, flow: Workflow
) -> None:
    stage = set_stage(status, flow, {})
    before = read_all(stage.task)
    refused = try_call(function, stage)
    assert refused or (function, status) in FULFILLED
    assert type(refused) is not LedgerError  # but one with a name
    after = read_all(stage.task)
    if isinstance(refused, LeaseLost):
        forget_refusal(before, after)
    assert after == before


def try_call(function: str, stage: Stage) -> LedgerError | bool:
    """How it was refused: a named error, or the nothing that a claim, a sweep or a hot
    checkpoint returns."""
    try:
        found = call(function, stage)
    except LedgerError as error:
        return error
    return function in {
        "claim_task", "checkpoint_unit", "reclaim_task", "promote_due", "apply_decision",
        "remind_approval", "expire_approval", "expire_signal", "enforce_limit",
        "join_children", "cancel_child", "go_on_with_budget",
    } and not found  # fmt: skip


def forget_refusal(before: dict[str, Any], after: dict[str, Any]) -> None:
    """A stale holder's refusal is on record, once, and is all that may differ."""
    refusal = after["events"].pop()
    assert refusal["kind"] == "stale_write_refused"
    assert refusal["seq"] == before["task"]["event_seq"] + 1
    for column in ("event_seq", "revision"):
        assert after["task"].pop(column) == before["task"].pop(column) + 1


@pytest.mark.case(2)
@pytest.mark.parametrize("function", HOLDERS)
@pytest.mark.parametrize(
    "wrong", [{"owner": "host:3:boot-3"}, {"fence": -1}, {"fence": 1}], ids=str
)
def test_only_the_holder_itself_settles(
    function: str, wrong: dict[str, Any], flow: Workflow
) -> None:
    stage = set_stage(states.RUNNING, flow, {})
    stage.held = take_wrong(stage.held, wrong)
    before = read_all(stage.task)
    assert try_call(function, stage)
    after = read_all(stage.task)
    if len(after["events"]) > len(before["events"]):
        forget_refusal(before, after)
    assert after == before


def take_wrong(held: Claimed, wrong: dict[str, Any]) -> Claimed:
    """The same claim under another owner, or under a fence that is past or to come."""
    held.owner = wrong.get("owner", held.owner)
    held.fence += wrong.get("fence", 0)
    return held


@pytest.mark.parametrize("status", [states.QUEUED, states.SCHEDULED])
def test_a_submission_makes_a_whole_row(status: str, flow: Workflow) -> None:
    later = clock.read() + dt.timedelta(days=30) if status == states.SCHEDULED else None
    task = submit_one(flow, not_before=later)
    assert task.status == status
    check_columns(task)
    assert [e.kind for e in task.events.all()] == ["submitted"]
    assert (task.event_seq, task.fence, task.revision) == (1, 0, 1)
