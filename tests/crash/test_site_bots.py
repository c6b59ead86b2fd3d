"""A bot answers as soon as a question is there, while real workers are killed around it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.workflows import registered
from tests.chaos.asking import ODDS, asking
from tests.chaos.bots import Bots
from tests.crash.cluster_kit import SIGTERM
from tests.crash.conftest import StartSite
from tests.durable import PATIENCE

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]


@pytest.mark.case(49)
def test_an_answer_at_once_strands_no_task_whoever_is_killed_meanwhile(
    start_site: StartSite, tmp_path: Path
) -> None:
    """The long form is `python -m tests.chaos.bots`: 1,000 tasks."""
    more = {
        "LONGWATCH_WORKFLOWS": "tests.chaos.asking",
        "LONGWATCH_CHAOS_DIR": str(tmp_path),
        "LONGWATCH_MAX_RECLAIMS": 1000,
        "LONGWATCH_WORKERS": 3,
        ODDS: 0.06,
    }
    with start_site(**more) as cluster, registered(asking):
        bots = Bots(tmp_path / "sink", lambda: cluster.list_pids("worker"), seed=49)
        bots.run(count=40, kill_each=8, patience=90 * PATIENCE)
        assert bots.kills >= 4
        assert bots.faults, "the fault points are met"
        assert bots.find_stranded() == []
        assert bots.find_twice() == []
        assert bots.leased == [], "a question is open only where nobody holds its task"
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
