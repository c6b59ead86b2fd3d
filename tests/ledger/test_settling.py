"""The database goes away around a settle: the unit is in once, nobody is charged, work goes on."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, transaction

from ledger import clock, runner, settling, sql, states
from ledger.errors import LeaseLost
from ledger.guardian import Guardian
from ledger.models import Event, StepOutput, Task
from ledger.runner import Engine
from ledger.transitions import approvals, holder, sweeps
from ledger.workflows import Again, AskApproval, RetryLater, Sleep, Workflow, registered
from tests.factories import LEASE, OTHER, OWNER, attempt, make_unit, submit
from tests.ledger.cutting import Proxy
from tests.ledger.journal import Journal, check_uncharged
from tests.ledger.stages import APPROVER

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(120)]
PATIENCE = 60.0

KEEP, SETTLE, COMMIT = b"WITH me AS (", b"WITH me AS MATERIALIZED", b"COMMIT"
CLAIM = b"WITH pick AS MATERIALIZED"


Outcome = Callable[[Any], Any]
CUTS: dict[str, tuple[bytes, Outcome, int]] = {
    "keeps": (KEEP, lambda ctx: {}, 0),
    "again": (KEEP, lambda ctx: Again() if ctx.turn < 2 else {}, 0),
    "gives way": (SETTLE, lambda ctx: {}, 1),
    "finishes": (SETTLE, lambda ctx: {}, 0),
    "sleeps": (COMMIT, lambda ctx: Sleep(30), 0),
    "asks": (COMMIT, lambda ctx: AskApproval("Go on?"), 0),
}


@pytest.mark.case(29)
@pytest.mark.postgresql
@pytest.mark.parametrize("forward", [True, False], ids=["answer lost", "request lost"])
@pytest.mark.parametrize(("marker", "outcome", "rivals"), CUTS.values(), ids=CUTS)
def test_a_unit_whose_settle_was_cut_off_is_in_once_and_never_run_again(
    marker: bytes, outcome: Outcome, rivals: int, forward: bool,
    proxy: Proxy, resident: Callable[..., None], settings: Any,
) -> None:  # fmt: skip
    """Whether the ledger took it or not: it is asked, and only then written again."""
    settings.LONGWATCH_SLICE_SECONDS = 0 if rivals else 60
    journal = Journal(lambda ctx: armed(ctx))

    def armed(ctx: Any) -> Any:
        if not proxy.cuts:
            proxy.cut(marker, forward=forward)
        return outcome(ctx)

    with registered(journal.flow):
        keys = [submit(journal.flow).pk for _ in range(1 + rivals)]
        resident(*keys)
        for task in Task.objects.filter(status=states.WAITING):
            request = task.approvals.get()
            approvals.decide_approval(
                request.pk, decision="approve", actor=APPROVER, digest=request.digest
            )
        resident(*keys)
    assert proxy.cuts == 1
    assert set(Task.objects.values_list("status", "attempts")) == {(states.COMPLETED, 0)}
    assert len(journal.runs) == len(set(journal.runs)) == StepOutput.objects.count()
    check_uncharged()


@pytest.mark.case(29)
@pytest.mark.postgresql
@pytest.mark.parametrize("forward", [True, False], ids=["answer lost", "request lost"])
@pytest.mark.parametrize("fault", [ValueError("broken"), RetryLater(30)], ids=repr)
def test_a_failure_whose_record_was_cut_off_is_counted_once(
    fault: Exception, forward: bool, proxy: Proxy, resident: Callable[..., None]
) -> None:
    def fail_once(ctx: Any) -> Any:
        if proxy.cuts:
            return {}
        proxy.cut(COMMIT, forward=forward)
        raise fault

    journal = Journal(fail_once)
    with registered(journal.flow):
        task = submit(journal.flow)
        resident(task.pk)
    kind = "attempt_failed" if isinstance(fault, ValueError) else "released"
    assert Event.objects.filter(task=task, kind=kind).count() == 1
    assert [step for _, step, _ in journal.runs] == ["first", "first", "second"]


@pytest.mark.case(29)
@pytest.mark.postgresql
@pytest.mark.parametrize("forward", [True, False], ids=["answer lost", "request lost"])
def test_a_claim_whose_answer_was_lost_is_found_again(
    forward: bool, proxy: Proxy, resident: Callable[..., None]
) -> None:
    """Otherwise the task would wait for its lease to run out, and be counted as a lost worker."""
    journal = Journal(lambda ctx: {})
    with registered(journal.flow):
        task = submit(journal.flow)
        proxy.cut(CLAIM, forward=forward)
        resident(task.pk)
    assert proxy.cuts == 1
    assert Task.objects.get().status == states.COMPLETED
    assert [step for _, step, _ in journal.runs] == ["first", "second"]
    check_uncharged()


@pytest.mark.postgresql
def test_a_standby_that_takes_over_is_waited_for(resident: Callable[..., None]) -> None:
    """It answers, but refuses writes: that is no fault of the unit."""

    def turn_read_only(ctx: Any) -> Any:
        with connection.cursor() as cursor:
            cursor.execute("SET default_transaction_read_only = on")
        return {"first": True}

    journal = Journal(turn_read_only)
    with registered(journal.flow):
        task = submit(journal.flow)
        resident(task.pk)
    assert [step for _, step, _ in journal.runs] == ["first", "second"]
    assert Task.objects.get(pk=task.pk).attempts == 0
    check_uncharged()


@pytest.mark.postgresql
def test_a_migration_under_a_prepared_statement_charges_nobody(
    resident: Callable[..., None], settings: Any
) -> None:
    """PostgreSQL refuses the old plan for good; a new connection has a new one."""
    settings.LONGWATCH_SLICE_SECONDS = 0

    def widen(ctx: Any) -> Any:
        if ctx.turn == 5:
            alter_title("text")
        return Again() if ctx.turn < 9 else {}

    journal = Journal(widen)
    with registered(journal.flow):
        keys = [submit(journal.flow).pk for _ in range(2)]
        try:
            resident(*keys)
        finally:
            alter_title("varchar(200)")
    assert set(Task.objects.values_list("status", "attempts")) == {(states.COMPLETED, 0)}
    assert len(journal.runs) == len(set(journal.runs)) == 22
    check_uncharged()


def alter_title(kind: str) -> None:
    """Another type for a column that claims return."""
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE longwatch_task ALTER COLUMN title TYPE {kind}")


def test_a_locked_database_is_waited_for(resident: Callable[..., None]) -> None:
    """SQLite: another process holds the write lock for longer than a statement's patience. On
    PostgreSQL the same of the task's row, which is waited for without an error."""
    busy, free = threading.Event(), threading.Event()
    holding = threading.Thread(target=hold_lock, args=[busy, free])

    def lock_first(ctx: Any) -> Any:
        if not holding.ident:
            holding.start()
            assert busy.wait(PATIENCE)
            threading.Timer(1.0, free.set).start()
        return {"first": True}

    journal = Journal(lock_first)
    options = connection.settings_dict["OPTIONS"]
    kept = options.get("timeout")
    if connection.vendor == "sqlite":
        options["timeout"] = 0.2
        connection.close()
    try:
        with registered(journal.flow):
            task = submit(journal.flow)
            resident(task.pk)
    finally:
        free.set()
        holding.join(PATIENCE)
        if connection.vendor == "sqlite":
            options["timeout"] = kept
            connection.close()
    assert Task.objects.get(pk=task.pk).status == states.COMPLETED
    assert [step for _, step, _ in journal.runs] == ["first", "second"]
    check_uncharged()


def hold_lock(busy: threading.Event, free: threading.Event) -> None:
    """Hold what a settle needs until told to let go, as somebody outside would."""
    if connection.vendor == "sqlite":
        outside = sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None)
        outside.execute("BEGIN IMMEDIATE")
        busy.set()
        free.wait(PATIENCE)
        outside.execute("ROLLBACK")
        outside.close()
        return
    with transaction.atomic():
        list(Task.objects.select_for_update())
        busy.set()
        free.wait(PATIENCE)
    connection.close()


# --- What the pieces do ---------------------------------------------------------------------------


@pytest.fixture
def flow(transactional_db: None) -> Iterator[Workflow]:
    """Two steps that do nothing."""
    journal = Journal(lambda ctx: {})
    with registered(journal.flow):
        yield journal.flow


def test_an_adopted_task_has_a_whole_lease_again(flow: Workflow) -> None:
    """After a long outage what is left of the old one may not last until the next beat."""
    submit(flow)
    engine = Engine(OWNER)
    held = engine.claim()
    assert held is not None
    Task.objects.update(lease_until=clock.now(-30))
    found = settling.adopt_running(engine)
    assert found is not None
    assert (found.task_id, found.fence) == (held.task_id, held.fence)
    left = Task.objects.get().lease_until - clock.read()  # type: ignore[operator]
    assert LEASE - 5 < left.total_seconds() <= LEASE
    assert settling.adopt_running(Engine(OTHER)) is None


def test_a_worker_that_leaves_adopts_nothing_and_gives_it_back(flow: Workflow) -> None:
    submit(flow)
    engine = Engine(OWNER)
    assert engine.claim() is not None
    engine.stop = lambda: True
    assert settling.adopt_running(engine) is None
    task = Task.objects.get()
    assert (task.status, task.releases, task.attempts) == (states.QUEUED, 1, 0)


def test_a_process_that_ends_between_two_attempts_gives_its_task_back(flow: Workflow) -> None:
    """Nothing is in hand then, but the lease is held."""
    task = submit(flow)
    engine = Engine(OWNER)
    assert engine.claim() is not None
    assert engine.heart.held is None
    engine.heart.let_go()
    task.refresh_from_db()
    assert (task.status, task.releases, task.attempts) == (states.QUEUED, 1, 0)
    engine.heart.let_go()


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_report_of_no_number_is_refused(number: float, flow: Workflow) -> None:
    task = submit(flow)
    held = Engine(OWNER).claim()
    assert held is not None
    with pytest.raises(ValueError, match="progress"):
        holder.report_progress(held.lease, number, 1, "x")
    holder.report_progress(held.lease, 1, 2, "half\x00" + "x" * 600)
    task.refresh_from_db()
    assert task.progress_done == 1
    assert task.progress_note.startswith("half\\x00x")
    assert len(task.progress_note) <= 500


@pytest.mark.case(8)
def test_a_value_that_the_database_refuses_is_a_charged_attempt_and_no_loop(
    flow: Workflow,
) -> None:
    task = submit(flow)
    engine = Engine(OWNER)
    held = engine.claim()
    assert held is not None
    holder.settle_unit(held, make_unit(held, flow))
    # As a mistake of ours would: the task stands again at a unit that is stored.
    Task.objects.update(step_index=0, step_name="first")
    held = engine.claim()
    assert held is not None
    unit = make_unit(held, flow)
    assert settling.settle(engine, held, lambda: holder.settle_unit(held, unit)) is None
    task.refresh_from_db()
    assert (task.status, task.status_reason, task.attempts) == (
        states.SCHEDULED, states.BACKOFF, 1,
    )  # fmt: skip
    assert task.error is not None
    assert "Integrity" in task.error["type"]


def test_a_settle_that_is_in_already_goes_on_with_what_the_worker_holds(flow: Workflow) -> None:
    submit(flow)
    engine = Engine(OWNER)
    held = engine.claim()
    assert held is not None
    unit = make_unit(held, flow)
    kept = sql.checkpoint_unit(held, unit, lease_seconds=LEASE, groups=None)
    assert kept is not None
    found = settling.settle(engine, held, lambda: holder.settle_unit(held, unit))
    assert found is not None
    assert (found.fence, found.step_name) == (kept.kept_fence, "second")
    assert StepOutput.objects.count() == 1


def test_a_settle_after_the_lease_was_lost_writes_nothing_and_holds_nothing(
    flow: Workflow,
) -> None:
    task = submit(flow)
    engine = Engine(OWNER)
    held = engine.claim()
    assert held is not None
    Task.objects.update(lease_until=clock.now(-1))
    sweeps.reclaim_task(task.pk, LEASE)
    plan = lambda: holder.record_failure(held, attempt(), retries=3, backoff=1)  # noqa: E731
    assert settling.settle(engine, held, plan) is None
    task.refresh_from_db()
    assert (task.status, task.attempts, task.reclaims) == (states.QUEUED, 0, 1)


def test_a_worker_idles_only_when_there_is_nothing_to_do(
    flow: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit that fails, asks or sleeps leaves the worker with nothing; the queue may be full."""
    monkeypatch.setattr(runner, "_engine", (os.getpid(), Engine(OWNER)))
    sleepy = Journal(lambda ctx: Sleep(600))
    idles: list[int] = []

    def idle(seconds: float) -> None:
        idles.append(Task.objects.filter(status=states.QUEUED).count())

    with registered(sleepy.flow):
        for _ in range(5):
            submit(sleepy.flow)
        runner.run_resident(
            owner=OWNER, stop=lambda: bool(idles), until=time.monotonic() + PATIENCE,
            guardian=Guardian(), idle=idle,
        )  # fmt: skip
    assert idles == [0]
    assert Task.objects.filter(status=states.SCHEDULED).count() == 5


def test_a_task_that_is_gone_is_let_go(flow: Workflow) -> None:
    """Retention, or a person with a database shell: a named error, and the worker goes on."""
    submit(flow)
    engine = Engine(OWNER)
    held = engine.claim()
    assert held is not None
    unit = make_unit(held, flow)
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM longwatch_event")
        cursor.execute("DELETE FROM longwatch_task")
    assert sql.beat_leases(OWNER, [held.lease], LEASE) == []
    with pytest.raises(LeaseLost, match="deleted"):
        holder.report_progress(held.lease, 1, 2, "")
    plan = lambda: settling._checkpoint(engine, held, unit)  # noqa: E731
    assert settling.settle(engine, held, plan) is None
    assert not StepOutput.objects.exists()
