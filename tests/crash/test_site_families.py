"""Signals, and tasks with children, on real workers that are killed."""

from __future__ import annotations

import collections

import pytest

from ledger import states
from ledger.models import Signal, Task
from ledger.transitions import operators, waits
from tests.crash.cluster_kit import SIGKILL, SIGTERM, wait_for
from tests.crash.conftest import StartSite
from tests.crash.flows import family, listening
from tests.crash.site_kit import Noted, wait_for_status
from tests.factories import OPERATOR

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]


def test_a_cancelled_parent_with_a_hundred_children_leaves_none_running(
    start_site: StartSite,
) -> None:
    with start_site(LONGWATCH_WORKERS=3) as cluster:
        parent = cluster.submit(family, children=100, seconds=0.05, turns=100_000)
        busy = wait_for("three of them run", lambda: find_busy(cluster.read_sink("work")))
        operators.cancel_task(parent.pk, actor=OPERATOR)
        cluster.signal(SIGKILL, busy)
        children = Task.objects.filter(parent=parent)
        wait_for("all have ended", lambda: not children.filter(finished_at=None).exists(), 60)
        assert collections.Counter(children.values_list("status", "status_reason")) == {
            ("cancelled", "cancelled_by_parent"): 100
        }
        wait_for_status(parent, "cancelled")

        def is_told() -> bool:
            return Task.objects.get(pk=parent.pk).children_open == 0

        wait_for("the parent knows of each", is_told)
        begun = len(cluster.read_sink())
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
        assert len(cluster.read_sink()) == begun, "nothing was begun after that"


def find_busy(noted: list[Noted]) -> int:
    """A worker, once children run in three."""
    pids = [one.pid for one in noted]
    return pids[-1] if len(set(pids)) == 3 else 0


def test_a_signal_that_came_before_the_wait_outlives_the_worker(start_site: StartSite) -> None:
    with start_site() as cluster:
        task = cluster.submit(listening)
        (first,) = cluster.wait_for_attempts(1, "work")
        assert waits.send_signal(task.pk, name="go", data={"n": 1}, actor=OPERATOR)
        assert waits.send_signal(task.pk, name="go", data={"n": 2}, actor=OPERATOR)
        cluster.signal(SIGKILL, first.pid)
        cluster.wait_for_attempts(2, "work")
        cluster.let_go(2)
        wait_for_status(task, states.COMPLETED)
        assert task.result == {"heard": {"n": 1}}
        left = Signal.objects.get(consumed_seq=None)
        assert left.data == {"n": 2}
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
