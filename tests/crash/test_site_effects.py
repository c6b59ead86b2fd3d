"""Workers that pay outside are killed at every instant; the payment service has the count."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from ledger.models import Effect, Task
from tests.crash.bank import AFTER, ANSWERED, BEFORE, Bank
from tests.crash.cluster_kit import SIGTERM, wait_for
from tests.crash.conftest import StartSite
from tests.crash.flows import paying

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]
PROOF = bool(os.environ.get("LONGWATCH_TEST_PROOF"))
KILLS = 500 if PROOF else 25
TASKS = 20 if PROOF else 5
TURNS = 20 if PROOF else 5


@pytest.mark.timeout(2400 if PROOF else 120)
def test_a_killed_worker_pays_once_or_again_under_the_same_key(start_site: StartSite) -> None:
    """Half of the tasks ask the bank what came of a payment, and pay exactly once."""
    with Bank(KILLS, seed=6) as bank, start_site(LONGWATCH_MAX_RECLAIMS=100) as cluster:
        more = {"bank": bank.url, "turns": TURNS}
        asking = [cluster.submit(paying, verify=True, **more) for _ in range(TASKS)]
        trusting = [cluster.submit(paying, verify=False, **more) for _ in range(TASKS)]
        ended = Task.objects.filter(workflow="paying", finished_at__isnull=False)
        wait_for("all are paid", lambda: ended.count() == 2 * TASKS, 2300 if PROOF else 100)
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
    assert set(Task.objects.values_list("status", "attempts")) == {("completed", 0)}
    paid = Counter(bank.charges)
    assert {key: paid[key] for key in list_keys(asking)} == dict.fromkeys(list_keys(asking), 1)
    assert paid.keys() == {*list_keys(asking), *list_keys(trusting)}
    assert max(paid.values()) > 1
    assert sum(bank.killed.values()) >= KILLS * 0.9, "some met a worker that was gone"
    assert min(bank.killed[moment] for moment in (BEFORE, AFTER, ANSWERED)) > KILLS / 10
    results = {one.key: one.result["number"] for one in Effect.objects.all()}
    assert results.keys() == paid.keys()
    assert all(bank.charges[number - 1] == key for key, number in results.items())
    assert Effect.objects.filter(tries__gt=1).count() > KILLS / 10


def list_keys(tasks: list[Task]) -> list[str]:
    """The keys of all their payments."""
    return [f"{task.pk}:pay:{turn}:0:charge" for task in tasks for turn in range(TURNS)]
