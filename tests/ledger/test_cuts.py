"""The line breaks between a COMMIT and its answer, once in each thing that is written: whoever
asks again, as a client, a person, a worker or a sweep does, it took effect once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError

from ledger import client, clock, settling, states
from ledger.errors import ApprovalClosed
from ledger.models import Approval, ApprovalVote, Artifact, Effect, Event, Signal, Spend, Task
from ledger.runner import Engine
from ledger.sweeper import sweep
from ledger.transitions import operators
from ledger.workflows import (
    Again,
    AskApproval,
    Child,
    Fail,
    Repair,
    Spawn,
    WaitFor,
    Workflow,
    registered,
)
from tests.factories import CLIENT, LEASE, OPERATOR, OWNER, submit
from tests.ledger.cutting import Proxy
from tests.ledger.journal import Journal
from tests.ledger.replay import check_columns
from tests.ledger.stages import APPROVER

pytestmark = [
    pytest.mark.postgresql,
    pytest.mark.case(29),
    pytest.mark.django_db(transaction=True),
    pytest.mark.parametrize("forward", [True, False], ids=["answer lost", "request lost"]),
]
COMMIT, INSERT = b"COMMIT", b"INSERT INTO longwatch_task"


def ask_twice(proxy: Proxy, marker: bytes, forward: bool, ask: Callable[[], Any]) -> Any:
    """What the second try comes to; the first is cut off."""
    proxy.cut(marker, forward=forward)
    with pytest.raises(OperationalError):
        ask()
    assert proxy.cuts == 1
    settling.forget_connections()
    return ask()


def read_kinds() -> list[str]:
    """All events, in the order of the record."""
    return list(Event.objects.order_by("task_id", "seq").values_list("kind", flat=True))


# --- Clients and people ---------------------------------------------------------------------------


def test_a_submission_is_one_task(forward: bool, flow: Workflow, proxy: Proxy) -> None:
    made = ask_twice(proxy, INSERT, forward, lambda: client.submit(flow, {}, key="k", actor=CLIENT))
    assert [task.pk for task in Task.objects.all()] == [made]
    assert read_kinds() == ["submitted"]


def test_a_batch_of_submissions_is_one_batch(forward: bool, flow: Workflow, proxy: Proxy) -> None:
    items = [{"workflow": flow, "key": f"k{n}"} for n in range(5)]
    made = ask_twice(proxy, COMMIT, forward, lambda: client.submit_many(items, actor=CLIENT))
    assert sorted(made) == sorted(Task.objects.values_list("pk", flat=True))
    assert read_kinds() == ["submitted"] * 5


def test_a_cancel_is_one_cancel(forward: bool, flow: Workflow, proxy: Proxy) -> None:
    task = submit(flow)
    ask_twice(proxy, COMMIT, forward, lambda: client.cancel(task.pk, actor=OPERATOR))
    assert read_kinds() == ["submitted", "cancelled"]
    check_columns(Task.objects.get())


def test_a_signal_under_a_key_is_one_signal(
    forward: bool, proxy: Proxy, resident: Callable[..., None]
) -> None:
    journal = Journal(lambda ctx: WaitFor("paid"))
    with registered(journal.flow):
        task = submit(journal.flow)
        resident(task.pk)
        new = ask_twice(
            proxy, COMMIT, forward,
            lambda: client.signal(task.pk, "paid", {"n": 1}, key="s", actor=CLIENT),
        )  # fmt: skip
        assert new is not forward
        resident(task.pk)
    assert Signal.objects.count() == 1
    assert read_kinds().count("signalled") == 1
    assert [step for _, step, _ in journal.runs] == ["first", "second"]


def test_a_copy_under_a_key_is_one_copy(forward: bool, flow: Workflow, proxy: Proxy) -> None:
    task = submit(flow)
    made = ask_twice(proxy, COMMIT, forward, lambda: client.fork(task.pk, 0, key="f", actor=CLIENT))
    assert list(Task.objects.exclude(pk=task.pk).values_list("pk", flat=True)) == [made]


@pytest.mark.parametrize("decision", ["approve", "reject", "send_back"])
def test_a_decision_is_one_decision_and_the_step_after_it_runs_once(
    decision: str, forward: bool, proxy: Proxy, resident: Callable[..., None]
) -> None:
    """Who answers again because no answer came back learns that the answer is in, and whose."""

    def ask(ctx: Any) -> Any:
        return AskApproval("Go on?", send_back_to="first") if ctx.round == 0 else {}

    journal = Journal(ask)
    with registered(journal.flow):
        task = submit(journal.flow)
        resident(task.pk)
        request = Approval.objects.get()

        def answer() -> Any:
            try:
                client.answer(request.pk, decision, actor=APPROVER, digest=request.digest)
            except ApprovalClosed as error:
                return str(error)
            return None

        told = ask_twice(proxy, COMMIT, forward, answer)
        assert bool(told) == forward
        assert told is None or f"by {APPROVER}" in told
        resident(task.pk)
    assert ApprovalVote.objects.count() == 1
    assert read_kinds().count("approval_decided") == 1
    first = 2 if decision == "send_back" else 1
    assert [step for _, step, _ in journal.runs].count("first") == first
    assert [step for _, step, _ in journal.runs].count("second") == (decision != "reject")


# --- What a step writes ---------------------------------------------------------------------------


WRITES: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "money": (lambda ctx: ctx.spend(tokens_in=40, cost="0.10"), Spend),
    "money under the provider's key": (lambda ctx: ctx.spend(40, cost="0.10", key="req-1"), Spend),
    "artifact": (lambda ctx: ctx.save_artifact("one.txt", b"1"), Artifact),
    "progress": (lambda ctx: ctx.report(1, 2, "half"), Task),
    "effect": (lambda ctx: ctx.once("pay", lambda: 1), Effect),
}


@pytest.mark.parametrize(("write", "table"), WRITES.values(), ids=WRITES)
def test_a_write_of_a_step_is_in_once(
    write: Callable[[Any], Any], table: Any, forward: bool, proxy: Proxy,
    resident: Callable[..., None],
) -> None:  # fmt: skip
    def write_cut_off(ctx: Any) -> None:
        proxy.cut(COMMIT, forward=forward)
        write(ctx)

    journal = Journal(write_cut_off)
    with registered(journal.flow):
        task = submit(journal.flow)
        resident(task.pk)
    assert proxy.cuts == 1
    assert [step for _, step, _ in journal.runs] == ["first", "second"]
    assert table.objects.count() == 1
    task.refresh_from_db()
    spent = table is Spend
    assert (task.used_tokens_in, task.used_cost) == (40 * spent, 100_000_000 * spent)
    assert [spend.fence for spend in Spend.objects.all()] == [1] * spent


# --- The end of an attempt ------------------------------------------------------------------------


ENDS: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    "failed": (lambda ctx: raise_it(Fail("no use")), states.FAILED, "attempt_failed"),
    "dead by its retries": (lambda ctx: raise_it(ValueError("no")), states.DEAD, "attempt_failed"),
    "dead by its output": (lambda ctx: {"no": object()}, states.DEAD, "attempt_failed"),
    "dead by its repairs": (lambda ctx: Repair("first"), states.DEAD, "dead"),
    "dead by its units": (lambda ctx: Again(after=1), states.DEAD, "dead"),
}


def raise_it(error: Exception) -> None:
    """An exception as an expression."""
    raise error


def test_children_are_made_and_counted_once(
    forward: bool, proxy: Proxy, resident: Callable[..., None], flow: Workflow
) -> None:
    """Cut off where they are spawned, and where their parent is told of their end."""

    def spawn(ctx: Any) -> Any:
        proxy.cut(COMMIT, forward=forward)
        return Spawn([Child(flow), Child(flow)])

    journal = Journal(spawn)
    with registered(journal.flow):
        task = submit(journal.flow)
        resident(task.pk)
        assert proxy.cuts == 1
        children = list(Task.objects.filter(parent=task).values_list("pk", flat=True))
        resident(*children)
        assert (len(children), Task.objects.filter(status=states.COMPLETED).count()) == (2, 2)
        proxy.cuts = 0
        ask_twice(proxy, COMMIT, forward, sweep)
        resident(task.pk)
    task.refresh_from_db()
    assert (task.status, task.children_open) == (states.COMPLETED, 0)
    assert [step for _, step, _ in journal.runs] == ["first", "second"]


@pytest.mark.parametrize(("end", "status", "kind"), ENDS.values(), ids=ENDS)
def test_a_task_comes_to_its_end_once(
    end: Callable[[Any], Any], status: str, kind: str, forward: bool, proxy: Proxy,
    resident: Callable[..., None],
) -> None:  # fmt: skip
    def end_cut_off(ctx: Any) -> Any:
        proxy.cut(COMMIT, forward=forward)
        return end(ctx)

    journal = Journal(end_cut_off, retries=0)
    with registered(journal.flow):
        task = submit(journal.flow, max_repairs=0, limits_given={"units": 1})
        resident(task.pk)
    assert proxy.cuts == 1
    assert len(journal.runs) == 1
    assert Task.objects.get().status == status
    assert (read_kinds().count(status), read_kinds().count(kind)) == (1, 1)
    assert "stale_write_refused" not in read_kinds()
    check_columns(Task.objects.get())


def test_what_a_task_undoes_is_undone_once(
    forward: bool, proxy: Proxy, resident: Callable[..., None]
) -> None:
    """Cut off where that is stored, after the call."""
    undone: list[str] = []

    def pay(ctx: Any) -> Any:
        ctx.once("pay", lambda: 1, compensate="refund")
        raise Fail("no use")

    def refund(ctx: Any, effect: Any) -> None:
        undone.append(effect.undo_key)
        proxy.cut(COMMIT, forward=forward)

    journal = Journal(pay)
    journal.flow.compensation(refund)
    with registered(journal.flow):
        task = submit(journal.flow)
        resident(task.pk)
    assert proxy.cuts == 1
    assert Task.objects.get().status == states.FAILED
    assert len(undone) == 1
    assert [read_kinds().count(kind) for kind in ("compensated", "failed")] == [1, 1]


def test_a_release_is_one_release_or_the_lease_ends_by_itself(
    forward: bool, flow: Workflow, proxy: Proxy
) -> None:
    """The process is about to end, and does not wait for an answer."""
    submit(flow)
    engine = Engine(OWNER)
    held = engine.claim()
    assert held is not None
    proxy.cut(COMMIT, forward=forward)
    with pytest.raises(OperationalError):
        engine.heart.let_go()
    settling.forget_connections()
    clock.offset += LEASE + 1
    sweep()
    assert read_kinds() == ["submitted", "released" if forward else "reclaimed"]
    assert Task.objects.get().status == states.QUEUED


# --- Sweeps ---------------------------------------------------------------------------------------


def test_a_sweep_that_was_cut_off_moves_each_task_once(
    forward: bool, flow: Workflow, proxy: Proxy
) -> None:
    for _ in range(3):
        submit(flow)
        assert Engine(OWNER).claim() is not None
    clock.offset += LEASE + 1
    ask_twice(proxy, COMMIT, forward, sweep)
    assert sorted(read_kinds()) == ["reclaimed"] * 3 + ["submitted"] * 3
    assert set(Task.objects.values_list("reclaims", "fence")) == {(1, 2)}
    operators.cancel_task(Task.objects.all()[0].pk, actor=OPERATOR)
