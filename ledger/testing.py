"""For authors' tests: run a workflow to its end in this process, on the real ledger.

    from ledger.testing import run

    def test_a_rejected_draft_ends_the_task(transactional_db):
        ended = run(report, {"subject": "tea"}, answers={"review": "reject"})
        assert (ended.status, ended.reason) == ("failed", "approval_rejected")

Everything but the waiting is real: the claim, the fences, the checkpoints and the sweeps run on
the configured (test) database. Timers are skipped by moving the ledger's clock; it is set back
afterwards.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from ledger import artifacts, clock, conf, queries, states
from ledger.context import Context
from ledger.durability import write_blocking
from ledger.events import Actor
from ledger.ids import make_id
from ledger.isolation import run_isolated
from ledger.models import Approval, Task
from ledger.picking import Picker
from ledger.registry import registered
from ledger.runner import Engine, run_attempt
from ledger.sql import Group, list_groups
from ledger.sweeper import sweep
from ledger.transitions.approvals import decide_approval
from ledger.transitions.submit import submit_task
from ledger.transitions.sweeps import reclaim_task
from ledger.transitions.waits import send_signal
from ledger.workflows import Step, Workflow

LOST = "lost"
"""A fault: the worker is lost after the step has run and before its output is stored."""

EXPIRE = "expire"
"""An answer, or a signal: nobody answers until the question's time is over (the next people are
asked then, if it names any), and no signal comes."""

MAX_ROUNDS = 10_000

type Answer = str | Mapping[str, Any]
"""`approve`, `reject`, `send_back` or EXPIRE, or a dict of `decision`, `values`, `comment`."""

type Fault = BaseException | type[BaseException] | str | None
"""An exception that the step raises instead of running, LOST, or None for none."""


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a run ended: the public JSON of the task, its outputs and its events."""

    task: dict[str, Any]
    outputs: list[dict[str, Any]]
    events: list[dict[str, Any]]

    @property
    def id(self) -> UUID:
        """The task's id."""
        return UUID(self.task["id"])

    @property
    def status(self) -> str:
        """The task's status; `waiting` when an answer was needed and none was given."""
        return str(self.task["status"])

    @property
    def reason(self) -> str:
        """The reason code of the status."""
        return str(self.task["status_reason"])

    @property
    def result(self) -> Any:
        """The task's result, opened when it is large."""
        return artifacts.resolve(self.task["result"], self.id)

    @property
    def progress(self) -> dict[str, Any]:
        """The task's progress, its large values opened."""
        return dict(artifacts.resolve(self.task["progress"], self.id))

    @property
    def units(self) -> list[tuple[str, int]]:
        """Step and turn of every accepted unit in order, the superseded ones too."""
        return [(output["step"]["name"], output["turn"]) for output in self.outputs]

    @property
    def kinds(self) -> list[str]:
        """The kinds of the task's events in order."""
        return [event["kind"] for event in self.events]

    def read_artifact(self, name: str) -> bytes:
        """The content of the task's newest artifact of this name. Raises NotFound."""
        with artifacts.open_content(artifacts.find_artifact(name, self.id)) as file:
            return file.read()


def run(
    workflow: Workflow,
    input: Any = None,
    *,
    answers: Mapping[str, Answer | list[Answer]] | None = None,
    signals: Mapping[str, Any] | None = None,
    faults: Mapping[str, Fault | list[Fault]] | None = None,
    **options: Any,
) -> Ended:
    """Submit a task and run it until it is finished, or waits for what is not given.

    `answers` and `faults` are keyed by step (answers about a used-up limit by "limit"), `signals`
    (what they carry) by name. A list holds one
    for each time that the step asks or runs (None: no fault); a single answer or signal is given
    every time, a single fault happens once.
    `options` are those of `submit_task` (title, key, limits_given, max_repairs …). Raises
    InvalidInput, and what the submit or an answer is refused with.
    """
    accident = _Faults(workflow, faults or {})
    replies = _Replies(answers or {}, signals or {})
    # Whatever else is queued in this database is left alone.
    lane = f"testing-{make_id()}"
    with registered(accident.workflow), _restore_clock():
        options.setdefault("actor", Actor("cli", "testing"))
        task, _ = submit_task(
            workflow=accident.workflow, input={} if input is None else input, lane=lane, **options
        )
        engine = Engine(f"testing:{os.getpid()}:{make_id()}")
        engine.picker = _OwnLane(lane)
        for _ in range(MAX_ROUNDS):
            held = engine.claim()
            while held is not None:
                held = run_attempt(engine, held)
            if not _move_all_on(lane, replies):
                break
        return _describe(task.pk)


class _Replies:
    """What people and others will say, in order."""

    def __init__(self, answers: Mapping[str, Any], signals: Mapping[str, Any]) -> None:
        self.answers, self.signals = (
            {
                name: iter(one) if isinstance(one, list) else itertools.repeat(one)
                for name, one in given.items()
            }
            for given in (answers, signals)
        )


class _OwnLane(Picker):
    """Sees the task that is run here, and its children."""

    def __init__(self, lane: str) -> None:
        super().__init__()
        self.lane = lane

    def choose(self, took: float = 0.0, *, fresh: bool = False, woken: bool = False) -> list[Group]:
        """What is queued in that lane."""
        return [group for group in list_groups() if group[0] == self.lane]


class _Faults:
    """A copy of a workflow whose steps have accidents first."""

    def __init__(self, workflow: Workflow, faults: Mapping[str, Fault | list[Fault]]) -> None:
        self.left = {
            workflow.steps[workflow.index_of(name)].name: iter(_make_list(given))
            for name, given in faults.items()
        }
        self.workflow = copy.copy(workflow)
        self.workflow.steps = [self._wrap(step) for step in workflow.steps]
        self.workflow._digest = workflow.digest()

    def _wrap(self, step: Step) -> Step:
        if step.name not in self.left:
            return step

        def call_plain(ctx: Context) -> Any:
            fault = self._take(step)
            isolated = step.isolation is not None
            value = run_isolated(self.workflow, step, ctx) if isolated else step.fn(ctx)
            _suffer(fault, ctx)
            return value

        async def call_async(ctx: Context) -> Any:
            fault = self._take(step)
            value = await step.fn(ctx)
            _suffer(fault, ctx)
            return value

        here = step.is_async and step.isolation is None
        for wrapper in (call_plain, call_async):
            vars(wrapper).update(getattr(step.fn, "__dict__", {}))
        return dataclasses.replace(step, fn=call_async if here else call_plain, isolation=None)

    def _take(self, step: Step) -> Fault | None:
        fault = next(self.left[step.name], None)
        if isinstance(fault, BaseException | type):
            raise fault
        return fault


def _suffer(fault: Fault | None, ctx: Context) -> None:
    """LOST: let the lease end and a sweeper notice; this attempt is a stale holder's from here."""
    if fault == LOST:
        with write_blocking():
            lease = conf.load().lease_seconds
            clock.offset += lease + 1
            reclaim_task(ctx.task_id, lease)


def _move_all_on(lane: str, replies: _Replies) -> bool:
    """Bring every task that waits to its next unit; False when nothing more can happen here."""
    left = list(Task.objects.filter(lane=lane, finished_at__isnull=True).order_by("id"))
    moved = sum(_move_on(task, replies) for task in left)
    return sweep(reclaim=False).related + moved > 0


def _move_on(task: Task, replies: _Replies) -> bool:
    if task.status == states.SCHEDULED:
        _skip_to(task.available_at)
    if task.status_reason == states.SIGNAL:
        return _signal(task, replies)
    if task.status_reason == states.BUDGET:
        _pass_time(task.available_at)  # the sweep that follows looks, and counts
        return False
    request = Approval.objects.filter(task=task, status="open").first()
    if request is None:
        return task.status in {states.QUEUED, states.SCHEDULED}
    asked = "limit" if request.kind == "limit" else request.step
    answer = next(replies.answers.get(asked, iter(())), None)
    if answer == EXPIRE:
        _skip_to(request.expires_at)
    elif answer is not None:
        said = {"decision": answer} if isinstance(answer, str) else answer
        by = {"actor": Actor("user", "testing"), "digest": request.digest}
        decide_approval(request.pk, **{**by, **said})
        sweep(reclaim=False)
    return answer is not None


def _signal(task: Task, replies: _Replies) -> bool:
    assert task.waits is not None
    name, nothing = task.waits["name"], object()
    data = next(replies.signals.get(name, iter(())), nothing)
    if data == EXPIRE:
        _skip_to(task.available_at)
    elif data is not nothing:
        send_signal(task.pk, name=name, data=data, actor=Actor("user", "testing"))
    return data is not nothing


def _skip_to(moment: dt.datetime) -> None:
    _pass_time(moment)
    sweep(reclaim=False)


def _pass_time(moment: dt.datetime) -> None:
    wait = (moment - clock.read()).total_seconds()
    clock.offset += max(0.0, wait) + 0.01


def _make_list[T](given: T | list[T]) -> list[T]:
    return list(given) if isinstance(given, list) else [given]


@contextmanager
def _restore_clock() -> Iterator[None]:
    before = clock.offset
    try:
        yield
    finally:
        clock.offset = before


def _describe(task_id: UUID) -> Ended:
    return Ended(
        queries.show_task(task_id),
        _read_pages(functools.partial(queries.list_outputs, task_id, superseded=True)),
        _read_pages(functools.partial(queries.list_events, task_id)),
    )


def _read_pages(read: Callable[..., queries.Page[dict[str, Any]]]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None:
        page = read(cursor=cursor, limit=queries.MAX_LIMIT)
        items += page.items
        cursor = page.next_cursor
    return items
