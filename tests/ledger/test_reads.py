"""How much a claim and a look read does not grow with what they don't want: rows that nobody here
can run, rows that are not due, rows that are gone and that an old snapshot keeps."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from ledger import clock, sql, sweeper
from ledger.models import Task
from ledger.picking import LANES, Picker
from ledger.sql import Claimed
from ledger.sql.postgresql import HEADS_PER_GROUP
from ledger.transitions import sweeps
from ledger.workflows import Workflow, registered
from tests.factories import LEASE, OWNER, claim, complete, make_unit, make_workflow, submit

pytestmark = pytest.mark.django_db(transaction=True)
postgresql = pytest.mark.postgresql
both_databases = pytest.mark.both_databases

MANY = 150
FEW = 25
"""Entries of indexes that one claim or look may read here, whatever there is."""


TRIES = 3
LONG = "lane-of-a-long-name-" * 3
"""Makes the claim's index one page higher than the one over every status, which then is cheaper to
the planner if it has to sort nothing. With short names that is so of some 10,000 queued tasks."""
ONE_OR_TWO = pytest.mark.parametrize("lanes", [[LONG], [LONG, f"{LONG}2"]], ids=["one", "two"])


def count_reads() -> int:
    """Entries that scans of the task's indexes have returned to this session, dead ones too."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT sum(pg_stat_get_xact_tuples_returned(indexrelid)) FROM pg_stat_user_indexes "
            "WHERE relname = 'longwatch_task'"
        )
        return int(cursor.fetchone()[0])


def reads_of[T](do: Callable[[], T]) -> tuple[int, T]:
    """In one transaction, within which the session hands its counts to nobody."""
    with transaction.atomic():
        before = count_reads()
        done = do()
        return count_reads() - before, done


def least_reads_of[T](do: Callable[[], T]) -> tuple[int, T]:
    """The least of a few times, and the last result. The first reader of an entry whose row is gone
    for everybody marks it as dead, and planning reads the ends of indexes: once, not each time."""
    found = [reads_of(do) for _ in range(TRIES)]
    return min(reads for reads, _ in found), found[-1][1]


def let_statistics_know_ended(flow: Workflow) -> None:
    """As of a minute ago: a few tasks, which have ended. Nothing is left of former tests.

    The statistics of a table of one row say that to read a whole index is as good as to look into
    it, and so do those of a table that was emptied: whatever is measured then is chance.
    """
    for _ in range(10):
        submit(flow)
        complete(claim(flow), flow)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM (FULL, ANALYZE) longwatch_task")


@contextlib.contextmanager
def old_snapshot(url: str) -> Iterator[None]:
    """What a long pg_dump is to everybody else."""
    with psycopg.connect(url) as other:
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT count(*) FROM longwatch_task")
        yield


@postgresql
@ONE_OR_TWO
def test_under_an_old_snapshot_a_claim_begins_after_what_is_gone(
    lanes: list[str], database_url: str
) -> None:
    flow = make_workflow(steps=1)
    let_statistics_know_ended(flow)
    with registered(flow), old_snapshot(database_url):
        for lane in lanes:
            for _ in range(MANY + 2 * TRIES):
                submit(flow, lane=lane)
            for _ in range(MANY):
                complete(claim(flow, lane=lane), flow)
        groups = [group for group, _ in sql.list_heads()]
        reads, settling = read_claims(flow, lambda of: sql.claim_task(OWNER, of, LEASE), groups)
    assert max(reads, settling) <= find_most(lanes)


@both_databases
def test_what_came_before_the_head_of_the_list_waits_for_the_next_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ledger.picking.FRESH_SECONDS", 0.0)
    flow = make_workflow(steps=1)
    with registered(flow):
        for _ in range(3):
            submit(flow)
        picker = Picker()
        picker.choose()
        urgent = submit(flow, priority=100)
        held = sql.claim_task(OWNER, picker.choose(), LEASE)
        assert held is not None
        assert held.task_id == urgent.pk
        sql.checkpoint_unit(held, make_unit(held, flow), lease_seconds=LEASE, groups=[])
        Task.objects.filter(status="queued").update(status="cancelled", finished_at=clock.now(),
                                                    wall_left=1, wall_until=None)  # fmt: skip
        picker.choose()
        submit(flow, priority=100)
        assert picker.recall(), "what an idle worker remembers"
        found = sql.claim_task(OWNER, picker.recall(), LEASE)
    assert found is not None, "it begins at no floor, so it takes what ranks before all before"


@postgresql
@pytest.mark.parametrize("kind", ["queued", "scheduled", "unclaimable"])
@ONE_OR_TWO
def test_a_claim_reads_no_more_for_what_it_does_not_take(kind: str, lanes: list[str]) -> None:
    """In the minute after a burst, too, when the statistics say that nothing is queued."""
    flow, nobodys = make_workflow(steps=1), make_workflow("nobodys", steps=1)
    later = clock.read().replace(year=clock.read().year + 1)
    let_statistics_know_ended(flow)
    for lane in lanes:
        for _ in range(MANY):
            if kind == "queued":
                submit(flow, lane=lane)
            elif kind == "scheduled":
                submit(flow, lane=lane, priority=100, not_before=later)
            else:
                submit(nobodys, lane=lane, priority=100)
        for _ in range(2 * TRIES):
            submit(flow, lane=lane)
    picker = Picker()
    with registered(flow):
        listing, groups = least_reads_of(lambda: picker.choose(fresh=True))
        reads, settling = read_claims(flow, lambda of: claim_first(picker, of), groups)
    assert listing <= FEW
    assert max(reads, settling) <= find_most(lanes)


@postgresql
def test_a_claim_from_many_lanes_reads_a_few_of_each(flow: Workflow) -> None:
    """Listed by one look for each; then sixteen of them are asked, and one row is taken."""
    let_statistics_know_ended(flow)
    for number in range(MANY):
        submit(flow, lane=f"{LONG}{number}")
    picker = Picker()
    listing, groups = least_reads_of(lambda: picker.choose(fresh=True))
    assert len(groups) == MANY
    assert listing <= MANY + FEW
    reads, _ = least_reads_of(lambda: claim_first(picker, groups))
    assert reads <= 2 * LANES + FEW


def find_most(lanes: list[str]) -> int:
    """Of several lanes the heads of each, and once more as they are locked."""
    return FEW if len(lanes) == 1 else 2 * len(lanes) * HEADS_PER_GROUP + FEW


def read_claims(
    flow: Workflow, claim_of: Callable[[list[sql.Group]], Claimed | None], groups: list[sql.Group]
) -> tuple[int, int]:
    """What claims from these groups read, and what settles that claim read."""
    reads, held = least_reads_of(lambda: claim_of(groups))
    assert held is not None
    assert held.workflow == flow.name
    rest = held

    def settle() -> None:
        nonlocal rest
        unit = make_unit(rest, flow)
        settled = sql.checkpoint_unit(rest, unit, lease_seconds=LEASE, groups=groups)
        assert settled is not None
        assert settled.claimed is not None
        rest = settled.claimed

    settling, _ = least_reads_of(settle)
    return reads, settling


def claim_first(picker: Picker, groups: list[sql.Group]) -> Claimed:
    def write(of: Any, this: Any) -> Claimed | None:
        return sql.claim_task(OWNER, of, LEASE, this)

    held = picker.admit(groups, write)
    assert held is not None
    return held


@postgresql
def test_a_look_reads_little_where_the_statistics_know_nothing(flow: Workflow) -> None:
    """A burst of a minute ago, as far as the planner knows: nothing is queued or scheduled."""
    let_statistics_know_ended(flow)
    later = clock.read().replace(year=clock.read().year + 1)
    for _ in range(MANY):
        submit(flow)
        submit(flow, not_before=later)
    reads, _ = least_reads_of(lambda: sweeper.look_ahead(OWNER))
    assert reads <= FEW


@postgresql
def test_a_look_reads_little_under_an_old_snapshot(database_url: str) -> None:
    """Of what ended meanwhile, no more than its entries among what is queued and what runs."""
    flow = make_workflow(steps=1)
    let_statistics_know_ended(flow)
    with registered(flow), old_snapshot(database_url):
        for _ in range(MANY):
            submit(flow)
        for _ in range(MANY):
            complete(claim(flow), flow)
        reads, _ = least_reads_of(lambda: sweeper.look_ahead(OWNER))
    assert reads <= 2 * MANY + FEW


@pytest.mark.sqlite
def test_on_sqlite_a_look_goes_by_indexes_too(flow: Workflow) -> None:
    connection.ensure_connection()
    text = sweeper._write_look("sqlite", 0.0)
    plan = connection.connection.execute(f"EXPLAIN QUERY PLAN {text}", [OWNER]).fetchall()
    looks = [line for *_, line in plan if "longwatch_task" in line]
    assert len(looks) >= 7
    assert [line for line in looks if "INDEX" not in line] == []


@postgresql
@pytest.mark.parametrize(
    "sweep",
    [
        sweeps.enforce_limits, sweeps.promote_due, sweeps.look_at_budgets, sweeps.join_parents,
        sweeps.tell_parents, sweeps.end_orphans, sweeps.apply_decisions, sweeps.expire_signals,
        functools.partial(sweeps.find_expired, LEASE),
    ],
)  # fmt: skip
def test_a_sweep_reads_little_of_what_is_not_due(
    flow: Workflow, sweep: Callable[[], object]
) -> None:
    let_statistics_know_ended(flow)
    later = clock.read().replace(year=clock.read().year + 1)
    for _ in range(MANY):
        submit(flow)
        submit(flow, not_before=later)
    wait = {"status": "waiting", "status_reason": "signal", "available_at": later}
    left = {"wall_until": None, "wall_left": 60.0}
    waiting = [submit(flow).pk for _ in range(MANY)]
    Task.objects.filter(pk__in=waiting).update(**wait, **left)
    reads, _ = least_reads_of(sweep)
    assert reads <= FEW


@pytest.mark.sqlite
def test_on_sqlite_what_is_overdue_is_found_by_indexes_too(flow: Workflow) -> None:
    submit(flow)
    with CaptureQueriesContext(connection) as asked:
        sweeps.enforce_limits()
    with connection.cursor() as cursor:
        plans = []
        for query in asked:
            cursor.execute(f"EXPLAIN QUERY PLAN {query['sql']}")
            plans += [line for *_, line in cursor.fetchall() if "longwatch_task" in line]
    assert len(plans) == 2
    assert [line for line in plans if not line.startswith("SEARCH")] == []
