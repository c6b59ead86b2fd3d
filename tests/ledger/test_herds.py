"""What falls at once does not come back at once."""

from __future__ import annotations

import collections
import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from ledger import clock, runner, settling, states
from ledger.guardian import Guardian
from ledger.models import Task
from ledger.workflows import Workflow
from tests.factories import OWNER, attempt, claim, submit

pytestmark = [pytest.mark.case(61), pytest.mark.django_db]

MANY = 1000 if os.environ.get("LONGWATCH_TEST_PROOF") else 200


def test_tasks_that_fail_in_one_second_come_back_over_the_whole_window(
    flow: Workflow, settings: Any
) -> None:
    """Their fifth failure: the window is 32 s, and no second of it holds a tenth of them."""
    settings.LONGWATCH_RETRIES = 9
    for _ in range(MANY):
        submit(flow)
    Task.objects.update(attempts=4)
    failed = clock.read()
    for _ in range(MANY):
        settling.fail_attempt(claim(flow), attempt(), flow.steps[0])
    took = (clock.read() - failed).total_seconds()
    dues = Task.objects.filter(status=states.SCHEDULED).values_list("available_at", flat=True)
    waits = [(due - failed).total_seconds() for due in dues]
    assert len(waits) == MANY
    assert max(waits) < 32 + took
    by_second = collections.Counter(int(wait) for wait in waits)
    assert max(by_second.values()) < MANY / 10
    assert len(by_second) > 25


def test_idle_workers_do_not_look_in_step(resident: Callable[..., None], db: None) -> None:
    waits: list[float] = []
    runner.run_resident(
        owner=OWNER, stop=lambda: len(waits) >= 20, until=time.monotonic() + 60,
        guardian=Guardian(), idle=waits.append,
    )  # fmt: skip
    assert 0.5 < min(waits) < max(waits) < 2
    assert len(set(waits)) == len(waits)
