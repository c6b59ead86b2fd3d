"""What people tell workers: who hears it, what is fenced, what is refused, what is on record."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from django.db import connection, transaction

from ledger import clock, queries, runner, sql, states
from ledger.calls import Call, answer_call
from ledger.errors import (
    AlreadySettled,
    InvalidInput,
    LeaseLocked,
    LeaseLost,
    NotAllowed,
    NotFound,
    WorkerEnded,
)
from ledger.guardian import Guardian
from ledger.models import AuditEntry, Task, Worker
from ledger.runner import Engine, open_engine
from ledger.settling import Registration
from ledger.sweeper import look_ahead
from ledger.transitions import holder, operators, sweeps
from ledger.transitions.workers import declare_dead, drain_worker, undrain_worker
from ledger.workflows import Workflow
from tests.dashboard.fleet import make_worker
from tests.factories import LEASE, OPERATOR, OWNER, attempt, claim, make_unit, submit

pytestmark = pytest.mark.both_databases


def test_the_guardians_own_look_tells_a_worker_what_people_want(db: None, flow: Workflow) -> None:
    make_worker(flow)
    assert look_ahead(OWNER).told == look_ahead().told == ""
    drain_worker(OWNER, actor=OPERATOR)
    assert look_ahead(OWNER).told == "drain"
    assert look_ahead("other:1:x").told == ""
    declare_dead(OWNER, actor=OPERATOR)
    assert look_ahead(OWNER).told == "dead"


def test_a_holder_that_was_declared_dead_can_write_nothing(db: None, flow: Workflow) -> None:
    make_worker(flow)
    task = submit(flow)
    held = claim(flow)
    assert declare_dead(OWNER, actor=OPERATOR, reason="on fire", name="host:1") == 1
    task.refresh_from_db()
    assert (task.status, task.fence, task.reclaims) == (states.QUEUED, held.fence + 1, 1)
    assert not sql.beat_leases(OWNER, [held.lease], LEASE)
    with pytest.raises(LeaseLost):
        holder.settle_unit(held, make_unit(held, flow))
    with pytest.raises(LeaseLost):
        holder.record_failure(held, attempt(), retries=3, backoff=1)
    assert claim(flow, owner="other:2:b").task_id == task.pk
    entries = AuditEntry.objects.order_by("pk").values_list("action", "target", "reason", "actor")
    assert list(entries)[-2:] == [
        ("reclaimed", f"task:{task.pk}", "on fire", str(OPERATOR)),
        ("declare_dead", f"worker:{OWNER}", "on fire", str(OPERATOR)),
    ]


def test_flags_and_the_bound_of_losses_hold_as_for_any_reclaim(db: None, flow: Workflow) -> None:
    make_worker(flow)
    cancelled, paused, spent = (submit(flow) for _ in range(3))
    for _ in range(3):
        claim(flow)
    operators.cancel_task(cancelled.pk, actor=OPERATOR)
    operators.pause_task(paused.pk, actor=OPERATOR)
    Task.objects.filter(pk=spent.pk).update(reclaims=3)
    assert declare_dead(OWNER, actor=OPERATOR) == 3
    statuses = [Task.objects.get(pk=one.pk).status for one in (cancelled, paused, spent)]
    assert statuses == [states.CANCELLED, states.PAUSED, states.DEAD]


def test_what_has_ended_is_told_nothing_more(db: None, flow: Workflow) -> None:
    make_worker(flow, cluster="c")
    make_worker(flow, owner="host:2:b", cluster="c", stopped_at=clock.read())
    with pytest.raises(WorkerEnded, match="host:2: it has ended"):
        drain_worker("host:2:b", actor=OPERATOR)
    assert drain_worker(OWNER, actor=OPERATOR, cluster=True) == 1
    assert drain_worker(OWNER, actor=OPERATOR) == 0, "it drains with all others already"
    assert set(Worker.objects.values_list("told", flat=True)) == {"drain_all"}
    assert undrain_worker(OWNER, actor=OPERATOR, cluster=True) == 1
    assert set(Worker.objects.values_list("told", "told_by")) == {("", "")}
    assert declare_dead(OWNER, actor=OPERATOR) == declare_dead(OWNER, actor=OPERATOR) == 0
    assert AuditEntry.objects.filter(action="declare_dead").count() == 1
    for tell in (drain_worker, undrain_worker):
        with pytest.raises(WorkerEnded, match="was declared dead"):
            tell(OWNER, actor=OPERATOR)
    with pytest.raises(NotFound):
        declare_dead("nobody:1:x", actor=OPERATOR)


def test_a_wrong_name_and_a_narrow_sight_are_refused(db: None, flow: Workflow) -> None:
    make_worker(flow)
    task = submit(flow)
    claim(flow)
    with pytest.raises(InvalidInput, match="type that"):
        declare_dead(OWNER, actor=OPERATOR, name="host:2")
    with answer_call(Call(actor="user:3", lanes=frozenset({task.lane}))):
        for refused in (drain_worker, undrain_worker, declare_dead):
            with pytest.raises(NotAllowed, match="every lane"):
                refused(OWNER, actor=OPERATOR)
    task.refresh_from_db()
    assert (task.status, Worker.objects.get().told) == (states.RUNNING, "")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("other", ["reclaim", "settle", "declare"])
def test_of_two_that_end_a_lease_at_once_one_does(flow: Workflow, other: str) -> None:
    make_worker(flow)
    task = submit(flow)
    held = claim(flow)
    if other == "reclaim":
        clock.offset += 2 * LEASE
    went: list[Any] = []
    deeds = {
        "reclaim": lambda: sweeps.reclaim_task(task.pk, LEASE),
        "settle": lambda: holder.settle_unit(held, make_unit(held, flow)),
        "declare": lambda: declare_dead(OWNER, actor=OPERATOR),
    }
    start = threading.Barrier(2)

    def run(name: str) -> None:
        try:
            start.wait(10)
            went.append((name, deeds[name]()))
        except LeaseLost as error:
            went.append((name, error))
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(name,)) for name in ("declare", other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(went) == 2
    task.refresh_from_db()
    ends = task.events.filter(kind="reclaimed").count() + task.outputs.count()
    assert (task.status, ends) == (states.QUEUED, 1)
    assert task.reclaims == task.events.filter(kind="reclaimed").count()
    assert Worker.objects.get().told == "dead"


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_a_row_that_a_standing_session_holds_is_said_and_nothing_is_done(flow: Workflow) -> None:
    make_worker(flow)
    task = submit(flow)
    claim(flow)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            Task.objects.select_for_update().get(pk=task.pk)
            held.set()
            done.wait(30)
        connection.close()

    other = threading.Thread(target=hold)
    other.start()
    try:
        assert held.wait(10)
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '100ms'")
        with pytest.raises(LeaseLocked, match="kill it on its host"):
            declare_dead(OWNER, actor=OPERATOR)
    finally:
        done.set()
        other.join(30)
        connection.close()
    assert Worker.objects.get().told == ""
    assert declare_dead(OWNER, actor=OPERATOR) == 1


def test_what_it_claimed_before_it_heard_that_it_is_dead_goes_to_another(
    db: None, flow: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_engine", None)
    make_worker(flow)
    engine = open_engine(OWNER, Guardian())
    declare_dead(OWNER, actor=OPERATOR)
    task = submit(flow)
    held = engine.claim()
    assert held is not None
    engine.orders.hear(look_ahead(OWNER), time.monotonic())
    task.refresh_from_db()
    assert (task.status, task.attempts, task.reclaims) == (states.QUEUED, 0, 0)
    with pytest.raises(AlreadySettled):  # given back, and nothing else
        holder.settle_unit(held, make_unit(held, flow))


def test_where_all_that_could_run_it_drain_the_product_says_so(db: None, flow: Workflow) -> None:
    make_worker(flow)
    make_worker(flow, owner="host:2:b")
    task = submit(flow)
    drain_worker(OWNER, actor=OPERATOR)
    assert queries.load_fleet().find_reason(task) == ""
    drain_worker("host:2:b", actor=OPERATOR)
    fleet = queries.load_fleet()
    assert fleet.find_reason(task) == "every worker for it drains"
    assert queries.list_unknown(fleet) == {(flow.name, flow.version)}
    undrain_worker(OWNER, actor=OPERATOR)
    assert queries.load_fleet().find_reason(task) == ""


def test_a_worker_that_has_not_heard_that_it_is_dead_beats_no_more(
    db: None, flow: Workflow
) -> None:
    """It stood still between its last look and its beat."""
    make_worker(flow)
    declare_dead(OWNER, actor=OPERATOR)
    before = Worker.objects.values().get()
    Registration(Engine(OWNER)).tick()
    assert Worker.objects.values().get() == before


def register(owner: str, cluster: str) -> None:
    """A process of the cluster comes."""
    Registration(Engine(owner), cluster).tick()


def test_a_cluster_drains_on_when_its_last_worker_is_declared_dead(
    db: None, flow: Workflow
) -> None:
    make_worker(flow, cluster="c")
    drain_worker(OWNER, actor=OPERATOR, cluster=True)
    declare_dead(OWNER, actor=OPERATOR)
    register("host:2:b", "c")
    fresh = Worker.objects.get(pk="host:2:b")
    assert (fresh.told, fresh.told_by) == ("drain_all", str(OPERATOR))
    assert look_ahead(OWNER).told == "dead_all"
    with pytest.raises(WorkerEnded, match="was declared dead"):
        undrain_worker(OWNER, actor=OPERATOR)
    undrain_worker("host:2:b", actor=OPERATOR, cluster=True)
    register("host:3:c", "c")
    assert set(Worker.objects.values_list("told", flat=True)) == {"dead", ""}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("told", ["drain_all", ""])
def test_a_process_that_comes_while_its_cluster_is_told_hears_it_too(
    flow: Workflow, told: str
) -> None:
    make_worker(flow, cluster="c", told="" if told else "drain_all")
    tell = drain_worker if told else undrain_worker

    def come() -> None:
        register("host:2:b", "c")
        connection.close()

    comes = threading.Thread(target=come)
    with sql.atomic():
        tell(OWNER, actor=OPERATOR, cluster=True)
        comes.start()
        if connection.vendor == "postgresql":
            comes.join(1.0)  # what it would do without waiting, it does in this time
    deadline = time.monotonic() + 30
    comes.join(30)
    assert time.monotonic() < deadline
    assert set(Worker.objects.values_list("told", flat=True)) == {told}
