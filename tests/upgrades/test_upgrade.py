"""A ledger that v0.1 wrote is migrated by this version, and its tasks go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger import states
from tests.crash.cluster_kit import SIGTERM, wait_for
from tests.crash.site_kit import SiteCluster
from tests.upgrades.conftest import Query, manage

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]


def test_tasks_of_v0_1_keep_their_status_and_go_on(
    recorded: tuple[dict[str, str], Query], tmp_path: Path
) -> None:
    environment, ask = recorded
    by_status = "SELECT status, count(*) FROM longwatch_task GROUP BY status ORDER BY status"
    before = ask(by_status)
    assert {row[0] for row in before} == set(states.STATUSES)
    manage(environment, "migrate", "--verbosity", "0")
    assert ask(by_status) == before
    assert "FAIL" not in manage(environment, "ledger_check")
    total = "SELECT count(*) FROM longwatch_task"  # a recorded lease is long over by now
    assert ask(total) == [(sum(count for _, count in before),)], "the check leaves nothing behind"
    with SiteCluster(tmp_path, environment) as cluster:
        wait_for(
            "the task that was queued before the upgrade is completed",
            lambda: ask("SELECT 1 FROM longwatch_task WHERE workflow = 'report' "
                        "AND status = 'completed'"),
            60,
        )  # fmt: skip
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
