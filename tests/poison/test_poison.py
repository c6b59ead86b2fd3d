"""Every poison through one cluster: each task comes to its own end, and stops no other."""

from __future__ import annotations

import json
import time
from collections import Counter

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from ledger.models import Task
from tests.crash.cluster_kit import SIGTERM, wait_for
from tests.poison.conftest import StartSite
from tests.poison.flows import canary, hurried, poisoned
from tests.poison.kinds import POISONS

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(300)]

WORKERS = 4
CANARIES = 100
RUNS = 2
"""One run, and one more: after a failure, or after the loss of the worker."""

HURRIED = {
    "loops_in_python", "backtracks_in_a_regular_expression", "waits_for_a_lock_that_it_holds",
    "reads_a_socket_that_never_answers", "swallows_every_stop",
    "loops_in_c_with_the_interpreter_lock", "raises: hanging",
}  # fmt: skip


@pytest.mark.case(11)
@pytest.mark.case(16)
@pytest.mark.case(17)
@pytest.mark.case(19)
@pytest.mark.case(20)
@pytest.mark.case(40)
@pytest.mark.case(41)
@pytest.mark.case(43)
@pytest.mark.case(44)
def test_every_poison_comes_to_its_own_end_and_stops_no_other(start_site: StartSite) -> None:
    cluster = start_site(
        LONGWATCH_WORKERS=WORKERS,
        LONGWATCH_RETRIES=RUNS - 1,
        LONGWATCH_MAX_RECLAIMS=RUNS - 1,
        LONGWATCH_UNIT_MARGIN_SECONDS=1.5,
    )
    with cluster:
        tasks = {
            kind: cluster.submit(hurried if kind in HURRIED else poisoned, kind=kind)
            for kind in POISONS
        }
        canaries = [cluster.submit(canary, kind="") for _ in range(CANARIES)]
        wait_for_all([*tasks.values(), *canaries])
        cluster.prove_it_works_on()
        wait_for("all workers run", lambda: len(cluster.list_pids("worker")) == WORKERS)
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
        assert "Workflows of tests.poison.exits are not known: SystemExit" in cluster.read_log()
        assert cluster.read_log().count("longwatch.step") < 11_000, "of 200,000 lines of one step"
        runs = Counter(noted.task for noted in cluster.read_sink())
        for kind, task in tasks.items():
            assert_ended_as_expected(kind, task, runs[str(task.id)])
        assert {(c.status, runs[str(c.id)]) for c in canaries} == {("completed", 1)}
        assert_shown(tasks)


def wait_for_all(tasks: list[Task]) -> None:
    """Wait until each has come to its end."""
    until = time.monotonic() + 200

    def list_unfinished() -> list[tuple[str, str]]:
        unfinished = Task.objects.filter(finished_at=None)
        return list(unfinished.values_list("input__kind", "status"))

    while left := list_unfinished():
        assert time.monotonic() < until, left
        time.sleep(0.1)
    for task in tasks:
        task.refresh_from_db()


def assert_ended_as_expected(kind: str, task: Task, runs: int) -> None:
    expected = POISONS[kind].expected
    ended = (kind, task.status, task.status_reason)
    assert ended == (kind, expected.status, expected.reason), task.error
    error = task.error or {}
    assert error.get("type", "") == expected.error, (kind, error)
    assert expected.text in error.get("message", ""), (kind, error)
    once = expected.status == "completed" or expected.reason == "unserialisable_output"
    assert runs == (1 if once else RUNS), (kind, runs)
    assert (task.lease_owner, task.lease_until) == ("", None)
    kinds = Counter(task.events.values_list("kind", flat=True))
    counted = {"retries_exhausted": "attempt_failed", "reclaims_exhausted": "reclaimed"}
    if expected.reason in counted:
        assert kinds[counted[expected.reason]] == RUNS, (kind, kinds)


def assert_shown(tasks: dict[str, Task]) -> None:
    """Pages, API and admin show each of them, as valid JSON and without an error."""
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("root", password="x"))
    for kind, task in tasks.items():
        for path in (f"/tasks/{task.id}/", f"/api/v1/tasks/{task.id}",
                     f"/api/v1/tasks/{task.id}/events", f"/api/v1/tasks/{task.id}/outputs",
                     f"/admin/longwatch_ledger/task/{task.id}/change/"):  # fmt: skip
            answer = client.get(path)
            assert answer.status_code == 200, (kind, path, answer.status_code)
            assert len(answer.content) < 500_000, (kind, path, len(answer.content))
            if path.startswith("/api/"):
                json.loads(answer.content, parse_constant=lambda name: pytest.fail(name))
