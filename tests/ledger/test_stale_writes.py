"""A worker that lost its task while its step ran: whatever it writes then is refused, and seen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import OperationalError

from ledger import clock, settling, sql, states
from ledger.models import Approval, Artifact, Event, Spend, StepOutput, Task
from ledger.runner import Engine, run_attempt
from ledger.transitions import holder, operators, sweeps
from ledger.workflows import (
    Again,
    AskApproval,
    Child,
    Fail,
    Repair,
    RetryLater,
    Sleep,
    Spawn,
    WaitFor,
    Workflow,
    registered,
)
from tests.factories import LEASE, OPERATOR, OTHER, OWNER, attempt, claim, submit

pytestmark = [pytest.mark.django_db(transaction=True)]

Body = Callable[[Any], Any]


class Play:
    """A task of three steps whose first holder loses it in the middle of the second.

    `before` and `body` are what that step does until then and afterwards; `second` is what the
    second holder does, which is in the same step meanwhile.
    """

    def __init__(self) -> None:
        self.flow = Workflow("play", max_repairs=5)
        for name in ("begin", "work", "end"):
            self.flow.step(lambda ctx: self.run(ctx), name=name)
        self.engine = Engine(OWNER)
        self.before = self.body = self.second = lambda ctx: {}
        self.fresh: Any = None

    def run(self, ctx: Any) -> Any:
        """One step."""
        if ctx.step != "work":
            return {}
        if self.fresh is not None:
            return self.second(ctx)
        self.before(ctx)
        self.displace(ctx)
        return self.body(ctx)

    def displace(self, ctx: Any) -> None:
        """The lease is over, a sweep takes the task, another worker has it."""
        Task.objects.filter(pk=ctx.task_id).update(lease_until=clock.now(-1))
        assert sweeps.reclaim_task(ctx.task_id, LEASE) == states.QUEUED
        self.fresh = claim(self.flow, OTHER)
        self.row = self.read()

    def read(self) -> dict[str, Any]:
        """The task's row, but for what counts money and numbers the record."""
        (row,) = Task.objects.values()
        counts = ("event_seq", "revision", "beat", "updated_at")
        return {k: v for k, v in row.items() if k not in counts and not k.startswith("used_")}

    def act(self) -> None:
        """The whole of it, up to what the first holder's settle comes to."""
        submit(self.flow)
        held = run_attempt(self.engine, claim(self.flow))
        assert held is not None
        assert run_attempt(self.engine, held) is None

    def go_on(self) -> Task:
        """The second holder works on until the task has come to its end."""
        engine, held = Engine(OTHER), self.fresh
        while held is not None:
            held = run_attempt(engine, held)
        return Task.objects.get()


@pytest.fixture
def play() -> Iterator[Play]:
    """The stage for one late write."""
    made = Play()
    with registered(made.flow):
        yield made


def fail(error: BaseException) -> Body:
    """A step that ends in `error`."""

    def body(ctx: Any) -> None:
        raise error

    return body


def hear_of_it(ctx: Any, play: Play) -> None:
    """The next heartbeat is due, and is refused; the step is ended by that."""
    play.engine.heart.held.next_beat = 0.0  # type: ignore[union-attr]
    play.engine.heart.tick()
    time.sleep(30)


def leave_when_told(sign: str) -> Callable[[Any, Play], None]:
    """The step sees that it is to end, and gives the task back."""

    def body(ctx: Any, play: Play) -> None:
        setattr(play.engine.heart.held, sign, True)
        ctx.check()

    return body


LATE: dict[str, Callable[[Any, Play], Any]] = {
    "output": lambda ctx, play: {"late": True},
    "log line": lambda ctx, play: ctx.log.warning("late"),
    "next turn": lambda ctx, play: Again(),
    "pause": lambda ctx, play: Sleep(5),
    "repair": lambda ctx, play: Repair("begin", "late"),
    "wait for a signal": lambda ctx, play: WaitFor("late"),
    "children": lambda ctx, play: Spawn([Child(play.flow)]),
    "approval request": lambda ctx, play: AskApproval("Late?"),
    "large output": lambda ctx, play: {"late": "x" * 100_000},
    "failure": lambda ctx, play: fail(ValueError("late"))(ctx),
    "final failure": lambda ctx, play: fail(Fail("late"))(ctx),
    "output that can't be stored": lambda ctx, play: {"late": object()},
    "release": lambda ctx, play: fail(RetryLater(5))(ctx),
    "progress": lambda ctx, play: ctx.report(9, 9, "late"),
    "artifact": lambda ctx, play: ctx.save_artifact("late", b"late"),
    "workspace": lambda ctx, play: (ctx.workspace / "late").write_text("late") and {},
    "heartbeat": hear_of_it,
    "acknowledged cancel": leave_when_told("cancel"),
    "drain": leave_when_told("stop"),
    "limit": lambda ctx, play: ctx.spend(tokens_in=10**9),
}
"""Everything that a worker writes, as the end of a step."""


@pytest.mark.case(2)
@pytest.mark.parametrize("late", LATE.values(), ids=LATE)
def test_no_late_write_of_any_kind_touches_the_next_holder(
    late: Callable[[Any, Play], Any], play: Play
) -> None:
    play.body = lambda ctx: late(ctx, play)
    play.act()
    assert play.read() == play.row
    (refusal,) = Event.objects.filter(kind="stale_write_refused")
    assert (refusal.fence, refusal.actor) == (play.fresh.fence - 2, f"worker:{OWNER}")
    assert refusal.data["what"]
    assert StepOutput.objects.count() == 1
    assert Task.objects.count() == 1
    assert not Artifact.objects.exists()
    assert not Approval.objects.exists()
    assert not Event.objects.exclude(
        kind__in=["submitted", "reclaimed", "stale_write_refused", "limit_warned"]
    ).exists()
    # What was spent was spent, and the bound of money is the task's.
    assert play.go_on().status == (states.DEAD if Spend.objects.exists() else states.COMPLETED)
    assert Event.objects.filter(kind="stale_write_refused").count() == 1


@pytest.mark.case(2)
def test_many_late_writes_of_one_attempt_are_one_line_on_record(play: Play) -> None:
    def write_all(ctx: Any) -> Any:
        for write in (lambda: ctx.report(1, 2), lambda: ctx.save_artifact("late", b"late")):
            with pytest.raises(Exception, match="lost"):
                write()
        return {"late": True}

    play.body = write_all
    play.act()
    assert Event.objects.filter(kind="stale_write_refused").count() == 1


@pytest.mark.case(2)
def test_a_result_that_waited_out_an_outage_is_refused_on_record(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker was cut off when it finished, and the task went to another meanwhile."""
    tries: list[int] = []
    real = sql.checkpoint_unit

    def lose_contact(*args: Any, **named: Any) -> Any:
        tries.append(1)
        if len(tries) == 2:
            raise OperationalError("the server is away")
        return real(*args, **named)

    monkeypatch.setattr(settling.sql, "checkpoint_unit", lose_contact)
    play.act()
    assert Event.objects.filter(kind="stale_write_refused").count() == 1
    assert play.read() == play.row


def test_a_worker_that_asks_twice_for_its_own_end_is_no_stale_one(play: Play) -> None:
    """The answer to its first write was lost: the second finds it done, and nothing is wrong."""
    ends: list[Callable[[Any], None]] = [
        lambda held: holder.record_failure(held, attempt(), retries=3, backoff=1),
        lambda held: holder.fail_task(held, attempt()),
        lambda held: holder.bury_task(held, attempt(), states.LIMIT_COST),
        lambda held: holder.release_task(held, why="drain"),
        lambda held: holder.misfit_task(held, problem="no such step"),
    ]
    for end in ends:
        task = submit(play.flow)
        held = claim(play.flow)
        end(held)
        settling.settle(play.engine, held, lambda: end(held))  # noqa: B023
        task.refresh_from_db()
        assert not task.events.filter(kind="stale_write_refused").exists()
        operators.cancel_task(task.pk, actor=OPERATOR)


@pytest.mark.case(58)
@pytest.mark.case(2)
def test_what_a_displaced_worker_spent_is_money_whoever_has_the_task(play: Play) -> None:
    """40 tokens before it lost the task and 60 after; its successor spends as much again."""
    stub: list[int] = []

    def spend(ctx: Any, tokens: int) -> None:
        stub.append(tokens)
        ctx.spend(tokens_in=tokens, cost="0.01")

    play.before = lambda ctx: spend(ctx, 40)
    play.body = lambda ctx: spend(ctx, 60)
    play.second = lambda ctx: spend(ctx, 40) or spend(ctx, 60)
    play.act()
    task = play.go_on()
    assert (task.status, task.used_tokens_in) == (states.COMPLETED, sum(stub))
    assert task.used_cost == 40_000_000
    spends = Spend.objects.order_by("at", "id").values_list("fence", "tokens_in", "stale")
    assert list(spends) == [(2, 40, False), (2, 60, True), (4, 40, False), (4, 60, False)]
    assert StepOutput.objects.get(step_name="work").tokens == 100
