"""Workers that pay outside are killed at every instant; the payment service has the count."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from ledger.events import Actor
from ledger.models import Effect, Task
from ledger.transitions.operators import cancel_task
from tests.crash.bank import AFTER, ANSWERED, BEFORE, Bank
from tests.crash.cluster_kit import SIGTERM, wait_for
from tests.crash.conftest import StartSite
from tests.crash.flows import paying

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]
PROOF = bool(os.environ.get("LONGWATCH_TEST_PROOF"))
KILLS = {"charges": 500 if PROOF else 9, "refunds": 500 if PROOF else 9}
TASKS = 20 if PROOF else 3
TURNS = 20 if PROOF else 5


@pytest.mark.timeout(4800 if PROOF else 150)
def test_a_killed_worker_pays_once_or_again_under_the_same_key(start_site: StartSite) -> None:
    """And gives back what it paid where the task fails or is cancelled, by the same rule.

    Half of the tasks ask the bank what came of a payment or a refund, and do either exactly once.
    """
    with Bank(6, **KILLS) as bank, start_site(LONGWATCH_MAX_RECLAIMS=100) as cluster:
        # The last of each is cancelled: it has more to pay than it comes to by then.
        turns = [*[TURNS] * (TASKS - 1), 20 * TURNS]
        asking, trusting = (
            [cluster.submit(paying, bank=bank.url, verify=verify, fails=n > 0, turns=turns[n])
             for n in range(TASKS)]
            for verify in (True, False)
        )  # fmt: skip
        half = TASKS * TURNS
        wait_for("half is paid", lambda: len(bank.books["charges"]) > half, 2000 if PROOF else 60)
        cancelled = [asking[-1], trusting[-1]]
        for task in cancelled:
            cancel_task(task.pk, actor=Actor("user", "1"))
        ended = Task.objects.filter(workflow="paying", finished_at__isnull=False)
        wait_for("all have ended", lambda: ended.count() == 2 * TASKS, 4600 if PROOF else 120)
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
    ends = {task.pk: "failed" for task in [*asking, *trusting]}
    ends |= {task.pk: "cancelled" for task in cancelled}
    ends |= {task.pk: "completed" for task in (asking[0], trusting[0])}
    assert dict(Task.objects.values_list("pk", "status")) == ends
    check_charges(bank, asking, trusting)
    check_refunds(bank, asking, trusting)


def check_charges(bank: Bank, asking: list[Task], trusting: list[Task]) -> None:
    paid = Counter(bank.books["charges"])
    assert {paid[key] for key in list_keys(asking[:-1])} == {1}
    assert {paid[key] for key in list_keys(asking)} <= {0, 1}
    assert set(list_keys([*asking[:-1], *trusting[:-1]])) <= paid.keys()
    assert paid.keys() <= {*list_keys(asking), *list_keys(trusting)}
    assert max(paid.values()) > 1
    results = {
        one.key: one.result["number"] for one in Effect.objects.filter(done_at__isnull=False)
    }
    assert all(bank.books["charges"][number - 1] == key for key, number in results.items())
    check_kills(bank, "charges")
    assert Effect.objects.filter(tries__gt=1).count() > KILLS["charges"] / 10


def check_refunds(bank: Bank, asking: list[Task], trusting: list[Task]) -> None:
    """Of each charge that was made, once or under one key; of no other; the last one first."""
    paid, back = set(bank.books["charges"]), Counter(bank.books["refunds"])
    owed = [f"{key}:undo" for key in list_keys([*asking[1:], *trusting[1:]]) if key in paid]
    assert back.keys() == set(owed)
    asked = {key: back[key] for key in owed if key.split(":")[0] in {str(t.pk) for t in asking}}
    assert asked == dict.fromkeys(asked, 1)
    assert max(back.values()) > 1
    for task in [*asking, *trusting]:
        first = dict.fromkeys(key for key in bank.books["refunds"] if key.startswith(str(task.pk)))
        turns = [int(key.split(":")[2]) for key in first]
        assert turns == sorted(turns, reverse=True)
    effects = Effect.objects.filter(task__in=[*asking[1:], *trusting[1:]])
    assert set(effects.values_list("status", flat=True)) == {"compensated"}
    assert not Effect.objects.exclude(pk__in=effects).filter(status="compensated").exists()
    numbers = {one.undo_key: one.undo_result["number"] for one in effects}
    assert all(
        bank.books["refunds"][number - 1] == key for key, number in numbers.items() if number
    )
    check_kills(bank, "refunds")


def check_kills(bank: Bank, book: str) -> None:
    """At every instant, and as many as there were to be, but for some that met no worker."""
    killed = [bank.killed[book, moment] for moment in (BEFORE, AFTER, ANSWERED)]
    said = f"{book}: {len(bank.books[book])}, killed before, after and answered: {killed}"
    print(said)  # noqa: T201  the figures of a long form
    assert sum(killed) >= KILLS[book] * 0.8
    assert min(killed) > KILLS[book] / 10


def list_keys(tasks: list[Task]) -> list[str]:
    """The keys of all their payments."""
    return [
        f"{task.pk}:pay:{turn}:0:charge" for task in tasks for turn in range(task.input["turns"])
    ]
