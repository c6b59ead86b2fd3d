"""Work that never gets better: every counter holds, whoever restarts what in between."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import pytest

from ledger import clock, states
from ledger.models import Spend, Task
from ledger.runner import Engine, run_attempt
from ledger.sweeper import sweep
from ledger.transitions import operators
from ledger.workflows import AskApproval, Repair, RetryLater, Workflow, registered
from tests.factories import LEASE, OPERATOR, OWNER, submit
from tests.ledger.stages import decide

REPAIRS, RETRIES = 3, 5
Between = Callable[[Task], None]


class Loop:
    """draft, review (asks), verify, which never finds it good; each call of the model is paid."""

    def __init__(self, *, stumbles: int = 0) -> None:
        self.calls: collections.Counter[str] = collections.Counter()
        self.stumbles = stumbles
        self.flow = Workflow("loop", max_repairs=REPAIRS, self_approval=True)
        for step in (self.draft, self.review, self.verify):
            self.flow.step(step, name=step.__name__, retries=RETRIES)
        self.engines = 0

    def call_model(self, ctx: Any) -> None:
        """The provider's list, and the ledger's."""
        self.calls[ctx.step] += 1
        ctx.spend(tokens_in=10)

    def draft(self, ctx: Any) -> dict[str, str]:
        """The same wrong text each time."""
        self.call_model(ctx)
        if ctx._claimed.attempts < self.stumbles:
            raise ValueError("the model is away")
        return {"draft": "wrong"}

    def review(self, ctx: Any) -> AskApproval:
        """People say yes."""
        return AskApproval("Good?")

    def verify(self, ctx: Any) -> Repair:
        """No."""
        self.call_model(ctx)
        return Repair("draft", "still wrong")

    def run(self, task: Task, between: Between) -> Task:
        """Unit after unit, each by a worker that has just been started."""
        for _ in range(200):
            clock.offset += 40  # backoffs are over
            sweep()
            between(task)
            self.engines += 1
            engine = Engine(f"{OWNER}-{self.engines}")
            held = engine.claim()
            while held is not None:
                held = run_attempt(engine, held)
            task.refresh_from_db()
            if request := task.approvals.filter(status="open").first():
                decide(request)
            if task.status in states.FINISHED:
                return task
        raise AssertionError("it goes round for ever")


def lose_a_worker(task: Task) -> None:
    """A worker takes it and is gone."""
    if Engine(f"{OWNER}-lost").claim() is not None:
        clock.offset += LEASE + 1
        sweep()


def pause_and_resume(task: Task) -> None:
    """A person's."""
    operators.pause_task(task.pk, actor=OPERATOR)
    operators.resume_task(task.pk, actor=OPERATOR)


def take_and_requeue(task: Task) -> None:
    """A person takes it from the worker that has it."""
    if Engine(f"{OWNER}-slow").claim() is not None:
        operators.retry_task(task.pk, actor=OPERATOR)


BETWEEN: dict[str, Between] = {
    "nothing": lambda task: None,
    "a worker is lost": lose_a_worker,
    "paused and resumed": pause_and_resume,
    "taken and queued again": take_and_requeue,
}


@pytest.mark.case(55)
@pytest.mark.django_db
@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN)
def test_no_restart_gives_a_repair_loop_more_rounds(between: Between, settings: Any) -> None:
    settings.LONGWATCH_SLICE_SECONDS = 0
    loop = Loop()
    with registered(loop.flow):
        task = loop.run(submit(loop.flow), between)
        assert (task.status, task.status_reason) == (states.DEAD, states.REPAIRS_EXHAUSTED)
        assert task.repair_count == REPAIRS
        assert loop.calls == {"draft": REPAIRS + 1, "verify": REPAIRS + 1}
        assert task.outputs.filter(step_name="verify").count() == REPAIRS + 1, "each try is listed"
        assert task.events.filter(kind="repaired").count() == REPAIRS
        # A person who retries it gets that one try and no new rounds.
        operators.retry_task(task.pk, actor=OPERATOR)
        task = loop.run(task, lambda task: None)
    assert (task.status, task.status_reason) == (states.DEAD, states.REPAIRS_EXHAUSTED)
    assert sum(loop.calls.values()) <= 2 * (REPAIRS + 2)
    assert task.used_tokens_in == 10 * sum(loop.calls.values())


@pytest.mark.case(55)
@pytest.mark.django_db
def test_failures_within_a_repair_loop_are_bounded_by_the_product_of_both(settings: Any) -> None:
    settings.LONGWATCH_SLICE_SECONDS = 0
    loop = Loop(stumbles=RETRIES)
    with registered(loop.flow):
        task = loop.run(submit(loop.flow), lambda task: None)
    assert task.status_reason == states.REPAIRS_EXHAUSTED
    assert loop.calls == {"draft": (REPAIRS + 1) * (RETRIES + 1), "verify": REPAIRS + 1}
    assert task.events.filter(kind="attempt_failed").count() == (REPAIRS + 1) * RETRIES
    assert task.used_tokens_in == 10 * sum(loop.calls.values())


@pytest.mark.case(58)
@pytest.mark.django_db
def test_every_attempt_is_paid_whatever_came_of_it(settings: Any) -> None:
    """Failed, released, repaired, cut short by a cancel, given up: attempt by attempt, the
    ledger's amounts are the provider's."""
    settings.LONGWATCH_SLICE_SECONDS = 0
    stub: dict[tuple[Any, int], int] = collections.defaultdict(int)
    flow = Workflow("paid", max_repairs=1)

    @flow.step(retries=1)
    def work(ctx: Any) -> Any:
        for tokens in (40, 60):
            stub[ctx.task_id, ctx._claimed.fence] += tokens
            ctx.spend(tokens_in=tokens, cost="0.25")
        ending = ctx.input["endings"][min(ctx.attempt - 1, len(ctx.input["endings"]) - 1)]
        if ending == "cancel":
            operators.cancel_task(ctx.task_id, actor=OPERATOR)
        elif ending == "fail":
            raise ValueError("it broke")
        elif ending == "later":
            raise RetryLater(1)
        return Repair("work") if ending == "repair" else {}

    endings = [["ok"], ["fail", "ok"], ["fail", "fail"], ["later", "ok"], ["repair"],
               ["later", "cancel"]]  # fmt: skip
    with registered(flow):
        tasks = [submit(flow, input={"endings": one}) for one in endings]
        engine = Engine(OWNER)
        while Task.objects.filter(finished_at__isnull=True).exists():
            held = engine.claim()
            while held is not None:
                held = run_attempt(engine, held)
            clock.offset += 40
            sweep()
    found: dict[tuple[Any, int], int] = collections.defaultdict(int)
    for spend in Spend.objects.all():
        found[spend.task_id, spend.fence] += spend.tokens_in
        assert not spend.stale
    assert found == stub
    assert len(stub) == 11
    for task in tasks:
        task.refresh_from_db()
        used = sum(tokens for (key, _), tokens in stub.items() if key == task.pk)
        assert (task.used_tokens_in, task.used_cost) == (used, used // 50 * 250_000_000)
    statuses = [task.status for task in tasks]
    assert statuses == ["completed", "completed", "dead", "completed", "dead", "completed"]
