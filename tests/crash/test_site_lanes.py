"""The cap of a lane under real workers that are killed."""

from __future__ import annotations

import datetime as dt
import itertools
import os
import random
from collections import defaultdict
from typing import Any
from uuid import UUID

import pytest

from ledger.models import Event, StepOutput, Task
from ledger.transitions.lanes import set_lane
from ledger.transitions.submit import submit_task
from ledger.workflows import registered
from tests.crash.cluster_kit import SIGKILL, wait_for
from tests.crash.conftest import StartSite
from tests.crash.flows import paced
from tests.factories import CLIENT

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]

PROOF = os.environ.get("LONGWATCH_TEST_PROOF") == "1"
KILLS, TASKS = (25, 200) if PROOF else (2, 16)
CAP = 2


@pytest.mark.timeout(600 if PROOF else 120)
def test_a_cap_holds_with_more_workers_than_places_and_kills(start_site: StartSite) -> None:
    """Judged by the ledger's own times: from each claim to its settle, and while a lost worker's
    lease lasts."""
    set_lane("tenant", {"cap": CAP}, actor=CLIENT)
    with start_site(LONGWATCH_WORKERS=4) as cluster:
        for _ in range(TASKS):
            with registered(paced):
                submit_task(
                    workflow=paced, actor=CLIENT, lane="tenant",
                    input={"sink": str(cluster.sink), "seconds": 0.05, "turns": 4},
                )  # fmt: skip
        dice, kills = random.Random(7), 0
        rows = Task.objects.filter(lane="tenant")

        def look() -> bool:
            nonlocal kills
            assert rows.filter(status="running").count() <= CAP
            if kills < KILLS and rows.filter(finished_at=None).count() < TASKS * (1 - kills / 30):
                running = rows.filter(status="running").values_list("lease_owner", flat=True)
                if owners := list(running):
                    cluster.signal(SIGKILL, int(dice.choice(owners).split(":")[1]))
                    kills += 1
            return not rows.filter(finished_at=None).exists()

        wait_for("all are finished", look, 500 if PROOF else 60)
        assert kills == KILLS
    assert rows.filter(status="completed").count() == TASKS
    assert find_most() == CAP, "both places were used, and no third"


def find_most() -> int:
    """The most tasks that were under way at once."""
    spans: dict[UUID, list[Any]] = defaultdict(list)
    for task, start, end in StepOutput.objects.values_list("task", "started_at", "finished_at"):
        spans[task].append((start, end))
    for event in Event.objects.filter(kind="reclaimed"):
        start = event.at.fromisoformat(event.data["started_at"])
        spans[event.task_id].append((start, event.at))
    edges = []
    for own in spans.values():
        own.sort()
        for (start, end), (following, _) in itertools.zip_longest(
            own, own[1:], fillvalue=(dt.datetime.max.replace(tzinfo=dt.UTC), None)
        ):
            # SQLite reads the clock for the output a moment after it did so for the next unit.
            edges += [(start, 1), (min(end, following), -1)]
    # What ends at the instant at which another begins made room for it.
    return max(itertools.accumulate(step for _, step in sorted(edges)))
