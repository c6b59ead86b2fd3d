"""/metrics beside real workers, one of which is killed: nothing is counted twice, or forgotten."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ledger.api import metrics
from ledger.models import Tally
from tests.api.test_metrics import Scrape, check_counters, scrape
from tests.crash.cluster_kit import SIGKILL, wait_for
from tests.crash.conftest import StartSite
from tests.crash.site_kit import wait_for_status

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    metrics.forget_metrics()


def find_fallen(before: Scrape, after: Scrape) -> list[str]:
    """Counters that are lower than they were."""
    counted = [name for name in before if "_total" in name or "_bucket" in name]
    return [name for name in counted if after[name] < before[name]]


def test_a_counter_is_right_when_workers_and_the_sender_are_killed(start_site: StartSite) -> None:
    with start_site() as cluster:
        tasks = [cluster.submit(seconds=2, turns=1) for _ in range(2)]
        (first, *_) = cluster.wait_for_attempts(1, "work")
        cluster.signal(SIGKILL, first.pid)
        before = scrape()
        assert before("tasks_submitted_total", workflow="paced") == 2
        for task in tasks:
            wait_for_status(task, "completed")
        after = scrape()
        assert find_fallen(before, after) == []
        check_counters(after, "paced")
        assert after("reclaims_total", workflow="paced") >= 1
        assert after("unit_duration_seconds_count", workflow="paced") == 6
        cursors = Tally.objects.filter(name="cursor", detail="StepOutput", value__gt=0)
        wait_for("the sender adds up", cursors.exists)
        cluster.signal_group(SIGKILL)
    last = scrape()
    assert find_fallen(after, last) == []
    check_counters(last, "paced")
