"""What must hold of every task at every moment, read from its rows alone.

`replay` derives where a task stands from its events and outputs, as a reader of the record would.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from ledger import conf, states
from ledger.models import Approval, Effect, Event, Spend, StepOutput, Task
from ledger.transitions.moves import KEEP_WAIT

STEPS = ("a", "b", "c")
READY = {states.QUEUED, states.RUNNING}
"""A claim leaves no event, so the record can't tell these two apart."""


@dataclasses.dataclass
class Record:
    """All rows of one task."""

    task: Task
    outputs: list[StepOutput]
    events: list[Event]
    spends: list[Spend]
    approvals: list[Approval]
    effects: list[Effect]


def read_records(keys: list[Any] | None = None) -> dict[Any, Record]:
    """The rows as they are now, by task; of all tasks, or of those of `keys`."""
    only = {} if keys is None else {"task__in": keys}
    tasks = Task.objects.all() if keys is None else Task.objects.filter(pk__in=keys)
    records = {task.pk: Record(task, [], [], [], [], []) for task in tasks}
    for output in StepOutput.objects.filter(**only).order_by("seq"):
        records[output.task_id].outputs.append(output)
    for event in Event.objects.filter(**only).order_by("seq"):
        records[event.task_id].events.append(event)
    for spend in Spend.objects.filter(**only):
        records[spend.task_id].spends.append(spend)
    for request in Approval.objects.filter(**only).order_by("requested_at", "id"):
        records[request.task_id].approvals.append(request)
    for effect in Effect.objects.filter(**only).order_by("pk"):
        records[effect.task_id].effects.append(effect)
    return records


def check_columns(task: Task) -> None:
    """Lease, finish, wall limit and flags fit the status; counters keep to their bounds."""
    running, finished = task.status == states.RUNNING, task.status in states.FINISHED
    assert (bool(task.lease_owner), task.lease_until is not None) == (running, running)
    assert (task.finished_at is not None) == finished
    counts = states.counts_wall(task.status, task.status_reason)
    assert (task.wall_until is not None, task.wall_left is None) == (counts, counts)
    if task.status != states.RUNNING:
        assert not task.cancel_requested
    if finished or task.status in {states.QUEUED, states.PAUSED}:
        assert not task.pause_requested
    assert task.repair_count <= min(task.max_repairs, task.round)
    bounds = conf.load()
    assert task.reclaims <= bounds.max_reclaims + 1
    assert task.releases <= bounds.max_releases + bounds.retries + 1
    assert 0 <= task.step_index < task.total_steps


def check_record(record: Record) -> None:
    """Numbers without a gap, sums that add up, one live output a unit, and a replay to the row."""
    task = record.task
    numbers = sorted([e.seq for e in record.events] + [o.seq for o in record.outputs])
    assert numbers == list(range(1, task.event_seq + 1))
    live = [(o.step_index, o.turn) for o in record.outputs if o.superseded_in_round is None]
    assert len(live) == len(set(live))
    fences = [o.fence for o in record.outputs if o.fence]
    assert len(set(fences)) == len(fences) == task.used_units
    assert task.used_tokens_in == sum(s.tokens_in for s in record.spends)
    assert task.used_tokens_out == sum(s.tokens_out for s in record.spends)
    assert task.used_cost == sum(s.cost for s in record.spends)
    check_questions(record)
    where = replay(record)
    assert (task.ending is not None) == where.undoes
    assert task.status in (READY if where.status == "ready" else {where.status})
    assert (task.step_index, task.turn, task.round) == (where.step, where.turn, where.round)
    assert where.live == set(live)


def list_undone(record: Record) -> list[Effect]:
    """What is undone, or may be, though a live output stands on it: that of its unit, or the one
    that a person wrote in its place."""
    units = [find_unit(record, o) for o in record.outputs if o.superseded_in_round is None]
    return [
        e for e in record.effects
        if e.compensation and (e.step, e.turn, e.round) in units
        and (e.status == "compensated" or (e.status in {"done", "intent"} and is_doubted(e)))
    ]  # fmt: skip


def is_doubted(effect: Effect) -> bool:
    """Whether an attempt to undo it told nothing, and no person has."""
    return bool(effect.undo_fences) and not effect.undo_fences[-1].startswith("user:")


def find_unit(record: Record, output: StepOutput) -> tuple[str, int, int]:
    """The unit that a worker ran for a live output, however often it was edited since."""
    while output.fence == 0 and output.copied_from is None:
        [output] = [
            o for o in record.outputs if o.superseded_in_round == output.round
            and (o.step_index, o.turn) == (output.step_index, output.turn)
        ]  # fmt: skip
    return output.step_name, output.turn, output.round


def check_questions(record: Record) -> None:
    """A question is open, or decided and not yet applied, just while the task waits for it."""
    task = record.task
    opened = [a for a in record.approvals if a.status == "open"]
    decided = [
        a for a in record.approvals
        if a.status in {"approved", "rejected", "sent_back"} and a.applied_at is None
    ]  # fmt: skip
    waits = task.status == states.WAITING
    for_others = task.status_reason in {states.SIGNAL, states.CHILDREN}
    assert (task.waits is not None) >= (waits and for_others)
    assert (task.waits is not None) <= (task.status in KEEP_WAIT or task.ending is not None)
    assert len(opened) == (waits and task.status_reason == states.APPROVAL)
    assert len(decided) == (waits and task.status_reason == states.DECIDED)


HARMLESS = {"signalled", "steered", "steer_withdrawn", "steer_heard",
            "dead", "failed", "cancelled", "retried", "limits_changed",
            "limit_warned", "tool_denied", "circling",
            "pause_requested", "resumed", "edited", "stale_write_refused", "approval_requested",
            "approval_voted",
            "approval_decided", "approval_expired", "approval_voided", "effect_marked",
            "compensating", "compensated"}  # fmt: skip
"""Events that do not end a wait."""


@dataclasses.dataclass
class Where:
    """A task as its record tells it."""

    status: str = ""
    step: int = 0
    turn: int = 0
    round: int = 0
    live: set[tuple[int, int]] = dataclasses.field(default_factory=set)
    waits: bool = False
    """For a signal, also after it died of that."""
    undoes: bool = False
    """Undoes its effects, or gave that up: its end is before it."""

    def go_to(self, step: int, turn: int) -> None:
        """A new position."""
        self.step, self.turn = step, turn

    def restart(self, step: int, turn: int, round_: int) -> None:
        """A new position in a new round: what is live from there on is superseded."""
        self.go_to(step, turn)
        self.round = round_
        self.live = {unit for unit in self.live if unit < (step, turn)}

    def leave_stored_unit(self) -> None:
        """A unit that is stored is not run again; its step is, as the next turn."""
        if (self.step, self.turn) in self.live:
            self.turn += 1


def replay(record: Record) -> Where:
    """Fold events and outputs, in the order of their numbers.

    An output says itself, in `next`, which unit its outcome led to: that is what the workflow's
    code knows, and the only thing that is not in the rows.
    """
    where = Where()
    approvals = {str(a.id): a for a in record.approvals}
    rows: list[Event | StepOutput] = sorted([*record.events, *record.outputs], key=lambda r: r.seq)
    for row in rows:
        if isinstance(row, StepOutput):
            _take_output(where, row)
        else:
            _take_event(where, row, approvals)
    return where


def _take_output(where: Where, row: StepOutput) -> None:
    if row.copied_from is not None:
        assert (row.step_index, row.turn, row.round) < (where.step, where.turn, 1)
        where.live.add((row.step_index, row.turn))
        return
    if not row.fence:  # a person's, in place of one that was live
        assert (row.step_index, row.turn) in where.live
        where.restart(row.step_index, row.turn, where.round + 1)
        where.waits = where.undoes = False
    assert (row.step_index, row.turn, row.round) == (where.step, where.turn, where.round)
    where.status = "ready"
    if row.output["kind"] != "repair":
        where.live.add((row.step_index, row.turn))
        where.go_to(*row.output["next"])


def _take_event(where: Where, event: Event, approvals: dict[str, Approval]) -> None:
    kind, data = event.kind, event.data
    waited = where.waits
    by_limit = data.get("reason") in states.LIMIT_REASONS
    harmless = kind in HARMLESS or by_limit or where.undoes
    where.waits = kind == "waiting" or (waited and harmless and not data.get("taken"))
    if kind == "submitted":
        where.status = states.SCHEDULED if data["until"] else "ready"
    elif kind in {"scheduled", "paused", "completed", "failed", "dead", "cancelled"}:
        where.status = kind
        if kind in {"failed", "cancelled"} or "compensated" in data:
            where.undoes = False
    elif kind == "compensating":
        where.status, where.undoes = "ready", True
    elif kind in {"released", "reclaimed"}:
        where.status = "ready"
    elif kind == "resumed":
        where.status = "ready" if where.status == states.PAUSED else where.status
    elif kind == "promoted":
        where.status = "ready"
        if data["reason"] == states.DECIDED:
            _take_decision(where, approvals[data["approval"]])
        elif by_limit and not where.waits:
            where.leave_stored_unit()
    elif kind == "repaired":
        where.status = "ready"
        where.restart(STEPS.index(data["to"]), 0, data["round"])
        where.waits = where.undoes = False
    elif kind == "waiting":
        where.status = states.WAITING
    elif (kind == "signalled" and data["taken"]) or (kind == "retried" and where.undoes):
        where.status = "ready"
    elif kind == "retried" or (kind == "limits_changed" and where.status == states.DEAD):
        if where.waits and where.status in {states.DEAD, states.FAILED}:
            where.status = states.WAITING
        else:
            where.status = "ready"
            where.leave_stored_unit()
    elif kind in {"approval_requested", "approval_undone"}:
        where.status = states.WAITING
    elif kind == "approval_decided" and not data["until"]:
        where.status = "ready"
        _take_decision(where, approvals[data["approval"]])
    elif kind == "forked" and "copied_from" in data:
        where.go_to(STEPS.index(data["from_step"]), 0)
    elif kind == "edited":
        _take_edit(where, data)


def _take_decision(where: Where, request: Approval) -> None:
    """Where an approval leads; a no and a sending back leave an event of their own."""
    if request.status != "approved" or request.kind == "limit":
        return
    if request.then == "again":
        where.turn += 1
    elif request.next_step:
        where.go_to(where.step + 1, 0)


def _take_edit(where: Where, data: dict[str, Any]) -> None:
    after = data["after"]
    if "status" not in after or "replaces" in data:
        return  # labels, which lead nowhere, or an output, which leads there itself
    status = after["status"]
    where.status = "ready" if status in READY else status
    where.undoes = where.undoes and "ending" not in after
    where.waits = where.waits and (status in KEEP_WAIT or where.undoes)
    step, turn = after.get("step_index", where.step), after.get("turn", where.turn)
    if data["superseded"]:
        where.restart(step, turn, where.round + 1)
    else:
        where.go_to(step, turn)


def write_output(kind: str, step: int, turn: int) -> str:
    """The output of a test's unit, which names the unit that comes next."""
    return json.dumps({"kind": kind, "next": [step, turn]})
