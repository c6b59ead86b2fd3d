"""A workflow that acts outside and undoes it, for tests of what undoing means."""

from __future__ import annotations

from typing import Any

from ledger import queries
from ledger.events import Actor
from ledger.models import Task
from ledger.runner import Engine, run_attempt
from ledger.transitions import holder
from ledger.workflows import Again, Fail, PastEffect, Workflow, registered
from tests.factories import attempt
from tests.held import OWNER, claim, claim_new, make_context

ANN = Actor("user", "1")


class Shop:
    """A workflow that pays and ships, and then ends as it is told; the world outside counts."""

    def __init__(self, **options: Any) -> None:
        self.flow = Workflow("shop", **options)
        self.done: list[str] = []
        self.undone: list[PastEffect] = []
        self.asked: list[str] = []
        self.accidents: list[BaseException] = []
        self.end: Any = Fail("out of stock")

        @self.flow.compensation(verify=self.find, retries=1)
        def refund(ctx: Any, effect: PastEffect) -> Any:
            ctx.spend(cost="0.01")
            self.undone.append(effect)
            if self.accidents:
                raise self.accidents.pop(0)
            return {"refunded": effect.result}

        @self.flow.compensation(name="call-back")
        async def call_back(ctx: Any, effect: PastEffect) -> Any:
            self.undone.append(effect)
            return ctx.idempotency_key("note")

        @self.flow.step
        def pay(ctx: Any) -> Any:
            for name in ("deposit", "rest")[ctx.turn :][:1]:
                ctx.once(name, lambda key: self.act(key), compensate=refund, args={"cents": 5})
            return Again() if ctx.turn == 0 else None

        @self.flow.step
        def ship(ctx: Any) -> Any:
            ctx.once("tell", lambda: "told")
            ctx.once("parcel", lambda key: self.act(key), compensate="call-back")

        @self.flow.step(retries=0)
        def close(ctx: Any) -> Any:
            if isinstance(self.end, BaseException):
                raise self.end
            return self.end

    def act(self, key: str) -> str:
        self.done.append(key)
        return f"number {len(self.done)}"

    def find(self, ctx: Any, effect: PastEffect) -> Any:
        self.asked.append(effect.undo_key)
        return None

    def list_undone(self) -> list[str]:
        return [one.name for one in self.undone]


def list_states(task: Any) -> dict[str, str]:
    return {one["name"]: one["state"] for one in queries.list_effects(task).items}


def act_in(shop: Shop, *names: str, **options: Any) -> Any:
    """The ctx of a running unit that has done these things."""
    ctx = make_context(claim_new(shop.flow, **options), shop.flow)
    for name in names:
        ctx.once(name, shop.act, compensate="refund")
    return ctx


def fail_after(shop: Shop, *names: str, **options: Any) -> Task:
    """A task that did these things, and is about to undo them."""
    ctx = act_in(shop, *names, **options)
    holder.fail_task(ctx._claimed, attempt())
    task = Task.objects.get(pk=ctx.task_id)
    assert (task.status, task.status_reason) == ("queued", "compensating")
    return task


def work(shop: Shop, task: Task, units: int = 1) -> Task:
    """So many units of the task are run, each by a claim of its own."""
    with registered(shop.flow):
        for _ in range(units):
            assert run_attempt(Engine(OWNER), claim(shop.flow, task_id=task.pk)) is None
    task.refresh_from_db()
    return task
