"""Whatever a step started ends with its attempt, however that ends."""

from __future__ import annotations

import time

import psutil
import pytest

from ledger.models import Task
from ledger.transitions import operators
from ledger.transitions.submit import submit_task
from ledger.workflows import registered
from tests.crash.cluster_kit import SIGKILL, SIGTERM, is_alive, wait_for
from tests.crash.site_kit import SiteCluster, wait_for_status
from tests.factories import CLIENT, OPERATOR
from tests.poison.conftest import StartSite
from tests.poison.flows import TREE, leaves

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.case(23)]

BOUND = 5.0
"""Seconds after its attempt in which every process of it must be gone."""


def submit(**given: object) -> Task:
    with registered(leaves):
        task, _ = submit_task(workflow=leaves, input=given, actor=CLIENT)
    return task


def find_tree(task: Task) -> list[psutil.Process]:
    """The processes that the task's steps have started and that live."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get(TREE) == str(task.id)
        except psutil.Error:
            continue
        if ours and is_alive(process.pid):
            found.append(process)
    return found


def wait_for_tree(task: Task) -> int:
    """Wait until the first step runs, with all of its processes; the worker's pid."""
    wait_for("the step has started them", lambda: (task.refresh_from_db(), task.progress_note)[1])
    assert len(find_tree(task)) >= 8
    return int(task.lease_owner.split(":")[1])


def expect_none(task: Task, since: float) -> None:
    """Nothing of it lives once the bound has passed since the attempt ended."""
    wait_for("its processes are gone", lambda: not find_tree(task))
    assert time.monotonic() - since < BOUND + 1, "a second for the look itself"


def test_no_process_of_a_step_outlives_its_attempt(start_site: StartSite) -> None:
    with start_site(LONGWATCH_DRAIN_SECONDS=1) as cluster:
        ends_by_itself_then_at_its_deadline(cluster)
        is_stopped(cluster)
        loses_its_worker(cluster)
        cluster.prove_it_works_on()
        outlasts_the_drain(cluster)


def ends_by_itself_then_at_its_deadline(cluster: SiteCluster) -> None:
    task = submit()
    wait_for_status_of_step(task, "block")
    expect_none(task, time.monotonic())
    wait_for_status(task, "dead")
    expect_none(task, time.monotonic())
    assert (task.status_reason, task.error["type"]) == ("retries_exhausted", "UnitTimeout")


def wait_for_status_of_step(task: Task, step: str) -> None:
    wait_for(f"it is at {step}", lambda: (task.refresh_from_db(), task.step_name)[1] == step)


def is_stopped(cluster: SiteCluster) -> None:
    task = submit(seconds=600)
    pid = wait_for_tree(task)
    operators.cancel_task(task.id, actor=OPERATOR)
    operators.stop_task(task.id, actor=OPERATOR)
    expect_none(task, time.monotonic())
    assert pid in cluster.list_pids("worker")


def loses_its_worker(cluster: SiteCluster) -> None:
    task = submit(seconds=600)
    cluster.signal(SIGKILL, wait_for_tree(task))
    since = time.monotonic()
    operators.cancel_task(task.id, actor=OPERATOR)
    expect_none(task, since)


def outlasts_the_drain(cluster: SiteCluster) -> None:
    task = submit(seconds=600)
    wait_for_tree(task)
    cluster.signal(SIGTERM)
    assert cluster.wait_for_exit() == 0
    assert find_tree(task) == []
    task.refresh_from_db()
    assert (task.status, task.attempts) == ("queued", 0)
