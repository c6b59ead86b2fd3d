"""A cancel at any moment: what is shown is what happened, and nothing runs later."""

from __future__ import annotations

import os
import random
import threading
import time
from typing import Any

import pytest
from django.db import connections

from ledger import client, clock, states
from ledger.errors import WrongStatus
from ledger.models import Task
from ledger.queries import show_task
from ledger.runner import Engine, run_attempt
from ledger.sweeper import sweep
from ledger.transitions import operators
from ledger.workflows import Again, Repair, RetryLater, Workflow, registered
from tests.factories import OPERATOR, OTHER, OWNER, submit
from tests.ledger.replay import check_columns

pytestmark = [pytest.mark.case(53), pytest.mark.django_db(transaction=True)]

TRIALS = 300 if os.environ.get("LONGWATCH_TEST_PROOF") else 30


class Life:
    """A task of three steps that is released, repaired, repeated and lost on its way; `sink` is
    when each step of it began, by this process's clock."""

    def __init__(self) -> None:
        self.sink: list[tuple[str, float]] = []
        self.ended = False
        self.flow = Workflow("life")
        for name in ("begin", "work", "end"):
            self.flow.step(lambda ctx: self.run(ctx), name=name)
        self.shown: float | None = None

    def run(self, ctx: Any) -> Any:
        """One attempt, of two milliseconds."""
        self.sink.append((ctx.step, time.monotonic()))
        time.sleep(0.002)
        if ctx.step == "work" and ctx.round == 0:
            if ctx.attempt == 1:
                raise RetryLater(0)
            return Again() if ctx.turn == 0 else Repair("begin")
        self.ended = self.ended or ctx.step == "end"
        return {}

    def live(self, task: Task, lose: int) -> None:
        """Two workers by turns until the end; whoever has it in round `lose` is lost."""
        engines, held, number = [Engine(OWNER), Engine(OTHER)], None, 0
        until = time.monotonic() + 60
        while Task.objects.filter(pk=task.pk, finished_at__isnull=True).exists():
            assert time.monotonic() < until, "it has no end"
            number += 1
            if held is None:
                engines.reverse()
                held = engines[0].claim()
            if held is not None and number == lose:
                Task.objects.filter(pk=task.pk).update(lease_until=clock.now(-1))
                held = None
            elif held is not None:
                held = run_attempt(engines[0], held)
            sweep()

    def cancel(self, task: Task, delay: float) -> None:
        """In a thread of its own, after so many seconds; notes when `cancelled` is shown."""
        time.sleep(delay)
        try:
            client.cancel(task.pk, actor=OPERATOR)
            while Task.objects.filter(pk=task.pk, finished_at__isnull=True).exists():
                time.sleep(0.001)
            if Task.objects.get(pk=task.pk).status == states.CANCELLED:
                self.shown = time.monotonic()
        except WrongStatus:
            pass  # it has completed
        finally:
            connections.close_all()


@pytest.mark.timeout(120 + TRIALS)
def test_a_cancel_at_any_moment_ends_the_task_or_comes_too_late(settings: Any) -> None:
    settings.LONGWATCH_SLICE_SECONDS = 0
    dice, seen = random.Random(53), set()
    for trial in range(TRIALS):
        life = Life()
        with registered(life.flow):
            task = submit(life.flow)
            delay = dice.uniform(0, 0.15) if trial else 0
            canceller = threading.Thread(target=life.cancel, args=[task, delay])
            canceller.start()
            life.live(task, lose=dice.randrange(1, 12))
            canceller.join(60)
        task.refresh_from_db()
        seen.add(task.status)
        assert task.status in {states.CANCELLED, states.COMPLETED}
        assert (task.status == states.COMPLETED) == (
            life.ended and task.outputs.filter(step_name="end").exists()
        )
        assert task.events.filter(kind="cancelled").count() == (life.shown is not None)
        assert life.shown is None or all(began < life.shown for _, began in life.sink)
        check_columns(task)
    assert states.CANCELLED in seen


def test_a_cancel_is_asked_for_while_the_unit_runs_and_no_retry_follows_it() -> None:
    """The unit hears nothing and runs into its own deadline, which is its end as well."""
    flow = Workflow("deaf")
    shown: list[Any] = []

    @flow.step(timeout=0.5)
    def sleep(ctx: Any) -> None:
        operators.cancel_task(ctx.task_id, actor=OPERATOR)
        shown.append(show_task(ctx.task_id))
        time.sleep(30)

    with registered(flow):
        task = submit(flow)
        engine = Engine(OWNER)
        held = engine.claim()
        assert held is not None
        assert run_attempt(engine, held) is None
        assert engine.claim() is None
    assert [(one["status"], one["cancel_requested"]) for one in shown] == [("running", True)]
    task.refresh_from_db()
    kinds = list(task.events.values_list("kind", flat=True))
    assert kinds == ["submitted", "cancel_requested", "attempt_failed", "cancelled"]


def test_a_unit_that_listens_ends_at_its_next_look() -> None:
    flow = Workflow("listening")

    @flow.step
    def listen(ctx: Any) -> None:
        operators.cancel_task(ctx.task_id, actor=OPERATOR)
        engine.heart.held.next_beat = 0.0  # type: ignore[union-attr]
        engine.heart.tick()
        while True:
            ctx.check()
            time.sleep(0.01)

    with registered(flow):
        task = submit(flow)
        engine = Engine(OWNER)
        held = engine.claim()
        assert held is not None
        assert run_attempt(engine, held) is None
    task.refresh_from_db()
    assert (task.status, task.status_reason) == (states.CANCELLED, states.CANCELLED_BY_OPERATOR)
