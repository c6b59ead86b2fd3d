"""Signals: an early one is not lost, each is read once, a wait has an end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ledger import clock, conf, states, sweeper
from ledger.errors import (
    IdempotencyConflict,
    InvalidInput,
    NotAllowed,
    PayloadTooLarge,
    UnparsableInput,
    WrongStatus,
)
from ledger.models import Event, Signal, StepOutput, Task
from ledger.sql import Claimed
from ledger.testing import EXPIRE, run
from ledger.transitions import operators, waits
from ledger.workflows import WaitFor, Workflow, registered
from tests.factories import CLIENT, OPERATOR, claim, make_workflow, submit, wait_for
from tests.ledger.copying import fork
from tests.ledger.replay import check_columns
from tests.ledger.threads import Crew

pytestmark = pytest.mark.django_db


def send(task: Task, name: str = "go", **options: Any) -> bool:
    return waits.send_signal(task.pk, **{"name": name, "actor": OPERATOR, **options})


def make_waiting(flow: Workflow, **options: Any) -> Task:
    """A task that waits for `go` at the end of its first step."""
    task = submit(flow)
    wait_for(claim(flow), flow, **options)
    return read(task)


def read(task: Task) -> Task:
    found = Task.objects.get(pk=task.pk)
    check_columns(found)
    return found


def test_a_wait_stores_the_unit_and_holds_nobody(flow: Workflow) -> None:
    task = make_waiting(flow)
    assert (task.status, task.status_reason, task.lease_owner) == ("waiting", "signal", "")
    assert (task.step_name, StepOutput.objects.get().step_name) == ("b", "a")


def test_a_signal_that_came_before_the_wait_counts(flow: Workflow) -> None:
    task = submit(flow)
    assert send(task, data={"n": 1})
    assert send(task, data={"n": 2})
    wait_for(claim(flow), flow)
    assert read(task).status == states.QUEUED
    held = claim(flow)
    assert held.answer is not None
    assert held.answer["signal"]["data"] == {"n": 1}
    wait_for(held, flow)
    assert claim(flow).answer["signal"]["data"] == {"n": 2}  # type: ignore[index]
    assert not Signal.objects.filter(consumed_seq__isnull=True).exists()


def test_another_signal_does_not_end_the_wait(flow: Workflow) -> None:
    task = make_waiting(flow)
    send(task, "else")
    assert read(task).status == states.WAITING
    send(task)
    assert read(task).status == states.QUEUED
    assert Signal.objects.get(consumed_seq__isnull=True).name == "else"


def test_the_same_key_sends_once(flow: Workflow) -> None:
    task = make_waiting(flow)
    assert send(task, key="k", data=[1])
    assert not send(task, key="k", data=[1])
    with pytest.raises(IdempotencyConflict):
        send(task, key="k", data=[2])
    assert Signal.objects.count() == 1


def test_a_finished_task_takes_no_signal_but_knows_a_repeated_one(flow: Workflow) -> None:
    task = make_waiting(flow)
    send(task, key="k")
    operators.cancel_task(task.pk, actor=OPERATOR)
    with pytest.raises(WrongStatus):
        send(task)
    assert not send(task, key="k")


def test_time_is_up_with_every_sweeper_stopped(flow: Workflow) -> None:
    """A late signal waits in the mailbox; the step does not see it as the answer."""
    task = make_waiting(flow, timeout=10)
    clock.offset += 11
    send(task)
    assert read(task).status == states.WAITING
    assert sweeper.sweep().expired == 1
    held = claim(flow)
    assert held.answer is not None
    assert held.answer["signal"] is None
    wait_for(held, flow)
    assert claim(flow).answer["signal"]["name"] == "go"  # type: ignore[index]


def test_a_wait_without_a_time_ends_in_a_reason_and_can_be_taken_up_again(flow: Workflow) -> None:
    task = make_waiting(flow)
    clock.offset += conf.load().approval_seconds + 1
    assert sweeper.sweep().expired == 1
    assert (read(task).status, read(task).status_reason) == ("dead", "signal_expired")
    assert read(task).error["message"] == "No signal 'go' came in time."  # type: ignore[index]
    operators.retry_task(task.pk, actor=OPERATOR)
    assert (read(task).status, read(task).status_reason) == ("waiting", "signal")
    send(task)
    assert read(task).status == states.QUEUED
    assert StepOutput.objects.filter(step_name="a").count() == 1


def test_a_restart_ends_the_wait_and_keeps_the_mailbox(flow: Workflow) -> None:
    task = make_waiting(flow)
    send(task, "else")
    operators.restart_task(task.pk, to_step="a", note="again", actor=OPERATOR)
    assert read(task).waits is None
    held = claim(flow)
    assert (held.step_name, held.answer) == ("a", None)
    assert Signal.objects.filter(consumed_seq__isnull=True).count() == 1


@pytest.mark.parametrize("end", ["", "dead", "cancelled"])
def test_no_restart_and_no_copy_leads_past_an_open_wait(flow: Workflow, end: str) -> None:
    task = make_waiting(flow)
    if end == "dead":
        clock.offset += conf.load().approval_seconds + 1
        assert sweeper.sweep().expired == 1
    elif end == "cancelled":
        operators.cancel_task(task.pk, actor=OPERATOR)
    refused = "b is not reached before its wait is over; copy from a$"
    with pytest.raises(InvalidInput, match=refused):
        fork(task.pk, "b")
    assert claim_copy(fork(task.pk, "a"), flow).step_name == "a"
    if end != "cancelled":
        with pytest.raises(InvalidInput, match=refused.replace("copy", "restart")):
            operators.restart_task(task.pk, to_step="b", note="", actor=OPERATOR)
        operators.restart_task(task.pk, to_step="a", note="", actor=OPERATOR)
        assert (read(task).status, read(task).step_name) == ("queued", "a")


def claim_copy(copy: Task, flow: Workflow) -> Claimed:
    held = claim(flow)
    assert held.task_id == copy.pk
    return held


def test_the_step_after_a_wait_that_is_over_can_be_copied(flow: Workflow) -> None:
    task = make_waiting(flow)
    send(task, data=5)
    copy = fork(task.pk, "b")
    assert copy.answer["signal"]["data"] == 5  # type: ignore[index]


@pytest.mark.parametrize(
    ("given", "error", "field"),
    [
        ({"name": ""}, InvalidInput, "name"),
        ({"name": "x" * 101}, InvalidInput, "name"),
        ({"name": "a\x00"}, InvalidInput, "name"),
        ({"key": "a\x00"}, InvalidInput, "key"),
        ({"data": "\x00"}, UnparsableInput, "data"),
        ({"data": float("nan")}, UnparsableInput, "data"),
        ({"data": "x" * 70_000}, PayloadTooLarge, "data"),
    ],
    ids=str,
)
def test_a_bad_signal_is_refused_by_its_field(
    flow: Workflow, given: dict[str, Any], error: type[InvalidInput], field: str
) -> None:
    task = make_waiting(flow)
    with pytest.raises(error) as refused:
        send(task, **given)
    assert refused.value.field.startswith(field)
    assert read(task).status == states.WAITING
    assert not Signal.objects.exists()


def test_a_mailbox_is_bounded(flow: Workflow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "MAX_UNREAD", 2)
    task = make_waiting(flow)
    send(task, "one")
    send(task, "two")
    with pytest.raises(InvalidInput, match="2 signals are unread"):
        send(task, "three")
    assert send(task), "what the task waits for is read at once"


def test_with_submit_alone_only_own_tasks_are_signalled(flow: Workflow) -> None:
    task = make_waiting(flow)
    with pytest.raises(NotAllowed):
        send(task, only_own=True)
    assert send(task, only_own=True, actor=CLIENT)


@pytest.mark.django_db(transaction=True)
def test_a_signal_at_the_instant_of_the_wait_is_never_lost() -> None:
    flow = make_workflow()
    crew = Crew()
    with registered(flow):
        for _ in range(40):
            task = submit(flow)
            held = claim(flow)
            acts: list[Callable[[], Any]] = [
                lambda held=held: wait_for(held, flow),  # type: ignore[misc]
                lambda task=task: send(task),  # type: ignore[misc]
            ]
            assert crew(*acts) == [None, True]
            assert read(task).status == states.QUEUED
            assert claim(flow).answer["signal"]["name"] == "go"  # type: ignore[index]
    crew.close()


@pytest.mark.django_db(transaction=True)
def test_of_many_signals_at_once_one_ends_the_wait_and_the_others_stay() -> None:
    flow = make_workflow()
    crew = Crew()
    with registered(flow):
        for _ in range(10):
            task = make_waiting(flow)
            assert crew(*[lambda task=task: send(task)] * 6) == [True] * 6  # type: ignore[misc]
            assert Signal.objects.filter(task=task, consumed_seq__isnull=True).count() == 5
            assert Event.objects.filter(task=task, kind="signalled", data__taken=True).count() == 1
            operators.cancel_task(task.pk, actor=OPERATOR)
    crew.close()


def make_shipping(timeout: float | None = None) -> Workflow:
    flow = Workflow("ships")

    @flow.step
    def order(ctx: Any) -> Any:
        return WaitFor("paid", timeout=timeout, data={"ordered": True})

    @flow.step
    def ship(ctx: Any) -> Any:
        return {"paid": ctx.signal["data"]["sum"] if ctx.signal else None, "asked": ctx.answer}

    @flow.step
    def close(ctx: Any) -> Any:
        return {"seen": ctx.signal, **ctx.progress}

    return flow


@pytest.mark.django_db(transaction=True)
def test_the_next_step_and_no_other_sees_the_signal() -> None:
    ended = run(make_shipping(), {}, signals={"paid": {"sum": 5}})
    assert ended.status == "completed"
    assert ended.result == {"seen": None, "ordered": True, "paid": 5, "asked": None}


@pytest.mark.django_db(transaction=True)
def test_without_a_signal_the_next_step_runs_after_the_timeout() -> None:
    ended = run(make_shipping(30), {}, signals={"paid": EXPIRE})
    assert (ended.status, ended.result["paid"]) == ("completed", None)
    assert run(make_shipping(), {}).task["waiting_for"]["signal"] == "paid"


@pytest.mark.django_db(transaction=True)
def test_on_a_last_step_the_signal_completes_the_task() -> None:
    flow = Workflow("acknowledged")
    flow.step(lambda ctx: WaitFor("read", data={"sent": 1}), name="send")
    ended = run(flow, {}, signals={"read": None})
    assert (ended.status, ended.result) == ("completed", {"sent": 1})
