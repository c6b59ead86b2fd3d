"""Sums of hours say what a count of the tasks says, whatever happened to them since."""

from __future__ import annotations

import datetime as dt
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from ledger import clock, hours, limits, queries, sql
from ledger.calls import Call, answer_call
from ledger.models import Hour, HourSum, Task
from ledger.queries import ended
from ledger.transitions import holder, operators
from ledger.transitions.deleting import delete_demo
from ledger.workflows import Workflow
from tests.factories import OPERATOR, attempt, claim, complete, submit
from tests.ledger.test_deleting import submit_demo
from tests.ledger.threads import Crew

DAY = 86_400
WEEK = 7 * DAY


def end_one(flow: Workflow, hours_ago: float, seconds: float = 20, **options: Any) -> sql.Claimed:
    """A task that was begun then, took so long and cost 1.50; its claim."""
    clock.offset = -3600 * hours_ago
    submit(flow, **options)
    held = claim(flow, lane=options.get("lane", "default"))
    limits.record_spend(held, key="call", tokens_in=3, cost="1.50")
    clock.offset += seconds
    complete(held, flow)
    clock.offset = 0.0
    return held


def sum_all() -> None:
    """Sum until nothing is due."""
    while hours.sum_hour():
        pass
    assert len(hours.list_good()) == hours.KEPT


def count_fully(seconds: int = WEEK) -> tuple[Counter[str], int]:
    """(how many ended in the range by status, their money), of the tasks themselves."""
    rows = list(Task.objects.filter(finished_at__gt=clock.now(-seconds)))
    return Counter(row.status for row in rows), sum(row.used_cost for row in rows)


def read_sums(seconds: int = WEEK, size: int = 3600) -> tuple[Counter[str], int]:
    """The same as pages are told it."""
    found = queries.sum_ended(seconds, size)
    counts = Counter[str]()
    for (_, status), one in found.amounts.items():
        counts[status] += one.tasks
    by_workflow = sum(one.tasks for rows in found.of_workflow.values() for one in rows.values())
    assert by_workflow == counts.total()
    return counts, sum(one.cost for one in found.amounts.values())


def hide_tasks() -> None:
    """Behind everybody's back: what is right from here on is right by the sums alone."""
    Task.objects.exclude(finished_at=None).update(finished_at=clock.now(-30 * DAY))


def test_a_range_is_read_from_sums_where_the_hours_are_over(flow: Workflow) -> None:
    for ago in (0.01, 3, 3.2, 50, 100, 400):
        end_one(flow, ago, seconds=10 * ago)
    expected = [(count_fully(one), read_sums(one, size)) for one, size in
                ((3600, 300), (DAY, 3600), (WEEK, 21_600))]  # fmt: skip
    assert [one for one, _ in expected] == [one for _, one in expected]
    sum_all()
    for seconds, size in ((3600, 300), (DAY, 3600), (WEEK, 21_600)):
        assert read_sums(seconds, size) == count_fully(seconds)
    found = queries.sum_ended(WEEK, 21_600)
    steps = [pair for steps in found.took.values() for pair in steps.values()]
    assert sorted(round(long) for _, long in steps) == [0, 30, 32, 500, 1000]
    hide_tasks()
    assert read_sums()[0].total() == 4


def test_what_changes_a_finished_task_is_seen_at_once_and_summed_anew(flow: Workflow) -> None:
    kept = end_one(flow, 5)
    clock.offset = -3600 * 5
    gone = submit_demo(flow)
    operators.cancel_task(gone.pk, actor=OPERATOR)
    again = submit(flow)
    holder.fail_task(claim(flow), attempt())
    clock.offset = 0.0
    sum_all()
    acts: dict[str, Callable[[], Any]] = {
        "money that a lost worker spent comes late": lambda: limits.record_spend(
            kept, key="late", cost="2.00"
        ),
        "deleted": lambda: delete_demo(actor=OPERATOR),
        "set going again": lambda: operators.retry_task(again.pk, actor=OPERATOR),
    }
    for name, act in acts.items():
        before = read_sums()
        act()
        assert read_sums() == count_fully() != before, name
        sum_all()
        assert read_sums() == count_fully(), name
        assert not Hour.objects.filter(changed=True).exists()
    hide_tasks()
    assert read_sums() == (Counter({"completed": 1}), 3_500_000_000)


def test_a_caller_is_told_of_its_own_lanes(flow: Workflow) -> None:
    end_one(flow, 5)
    end_one(flow, 5, lane="b")
    end_one(flow, 0.01, lane="b")
    sum_all()
    with answer_call(Call(lanes=frozenset({"b"}))):
        assert read_sums()[0] == {"completed": 2}
    with answer_call(Call(lanes=frozenset())):
        assert read_sums()[0] == {}
    assert read_sums()[0] == {"completed": 3}


@pytest.mark.django_db(transaction=True)
def test_whoever_sums_beside_whom_and_beside_what_the_sums_are_right(
    flow: Workflow, together: Crew
) -> None:
    for _ in range(3):
        clock.offset = -3600 * 5
        again = submit(flow)
        holder.fail_task(claim(flow), attempt())
        clock.offset = 0.0
        hours.note_change(Task.objects.get(pk=again.pk).finished_at)
        together(
            hours.sum_hour,
            lambda task=again: operators.retry_task(task.pk, actor=OPERATOR),
            hours.sum_hour,
            hours.sum_hour,
        )
        assert read_sums() == count_fully()
        sum_all()
        assert read_sums() == count_fully()
        assert not HourSum.objects.exists()
        operators.cancel_task(again.pk, actor=OPERATOR)


@pytest.mark.django_db(transaction=True)
def test_a_change_that_is_committed_after_the_sum_is_not_lost(
    flow: Workflow, together: Crew
) -> None:
    if connection.vendor != "postgresql":
        return  # one transaction at a time: there is nothing between
    clock.offset = -3600 * 5
    again = submit(flow)
    holder.fail_task(claim(flow), attempt())
    clock.offset = 0.0
    changed, summed = threading.Event(), threading.Event()

    def change() -> None:
        with sql.atomic():
            operators.retry_task(again.pk, actor=OPERATOR)
            changed.set()
            assert summed.wait(60)

    def sum_beside() -> None:
        assert changed.wait(60)
        sum_all()
        assert read_sums()[0] == {"failed": 1}
        # Nor is an hour over while a transaction that may write into it goes on.
        while hours.read_oldest() > clock.read().timestamp() - 1.5:
            assert not summed.wait(0.01)
        summed.set()

    together(change, sum_beside)
    assert read_sums()[0] == {}
    assert hours.read_oldest() >= clock.read().timestamp() - 1.5


def test_an_hour_is_one_of_utc_also_in_the_night_that_has_one_twice(
    flow: Workflow, settings: Any
) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    night = dt.datetime(2026, 10, 25, 6, 30, tzinfo=dt.UTC)
    back = (clock.read() - night).total_seconds() / 3600
    for half in range(8):  # from midnight; Berlin's 2 o'clock comes twice
        end_one(flow, back + 6.5 - half / 2, seconds=1)
    clock.offset = -3600 * back
    sum_all()
    counts = Counter[int]()
    for row in HourSum.objects.all():
        counts[row.hour] += row.tasks
    assert list(counts.values()) == [2, 2, 2, 2]
    assert max(counts) - min(counts) == 3
    assert min(counts) * 3600 == night.timestamp() - 6.5 * 3600
    assert read_sums() == count_fully()
    assert read_sums()[0] == {"completed": 8}


def test_what_is_added_up_one_by_one_is_bounded_and_it_is_said(
    flow: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ended, "LIVE_CAP", 2)
    for _ in range(3):
        end_one(flow, 5)
    assert queries.sum_ended(DAY, 3600).cut
    sum_all()
    assert not queries.sum_ended(DAY, 3600).cut
    assert read_sums()[0] == {"completed": 3}
