"""The guardian says whether the database answers it: a lease that can't be kept is not taken."""

from __future__ import annotations

import threading
import time

import pytest
from django.db import OperationalError, ProgrammingError

from ledger import runner
from ledger.guardian import LATE_SECONDS, OFTEN_SECONDS, RESTING_SECONDS, Guardian
from ledger.models import Worker
from ledger.runner import run_resident
from ledger.workflows import registered
from tests.factories import OWNER, make_workflow, submit


class Database:
    """What a tick meets."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def tick(self) -> float:
        if self.error:
            raise self.error
        return 60.0

    def rest(self) -> float:
        return 60.0


@pytest.mark.case(31)
def test_contact_is_lost_with_an_outage_and_back_with_an_answer_to_the_same_question() -> None:
    database, guardian = Database(), Guardian()
    guardian.on_tick = [database.rest, database.tick]
    guardian.call_due(all_now=True)
    assert guardian.in_contact
    database.error = OperationalError("too many clients")
    guardian.call_due(all_now=True)
    assert not guardian.in_contact, "another tick that asks nothing proves nothing"
    database.error = None
    guardian.call_due(all_now=True)
    assert guardian.in_contact


def test_a_fault_of_one_statement_stops_no_worker() -> None:
    database, guardian = Database(), Guardian()
    guardian.on_tick = [database.tick]
    for database.error in (ProgrammingError("no such column"), ValueError("a bug")):
        guardian.doubt(database.tick)
        guardian.call_due(all_now=True)
        assert guardian.in_contact


def test_it_looks_less_often_while_nothing_is_in_hand() -> None:
    guardian, resting, calls = Guardian(), [True], list[float]()

    def look() -> None:
        calls.append(time.monotonic())

    guardian.on_tick, guardian.rests = [look], lambda: bool(resting)
    assert guardian.call_due() > 2 * OFTEN_SECONDS
    resting.clear()
    assert guardian.call_due() <= OFTEN_SECONDS + LATE_SECONDS
    assert len(calls) == 1


def test_what_comes_into_hand_ends_its_rest() -> None:
    """Within what a look takes, not at the end of the long wait that it began."""
    guardian, resting, looks = Guardian(), [True], threading.Semaphore(0)

    def look() -> None:
        looks.release()

    guardian.on_tick, guardian.rests = [look], lambda: bool(resting)
    guardian.start()
    assert looks.acquire(timeout=60)
    resting.clear()
    guardian.rouse()
    begun = time.monotonic()
    assert looks.acquire(timeout=60)
    assert time.monotonic() - begun < RESTING_SECONDS


@pytest.mark.case(31)
def test_without_contact_nothing_is_claimed(db: None) -> None:
    workflow, guardian, database = make_workflow(), Guardian(), Database()
    guardian.doubt(database.tick)

    def run() -> tuple[int, str]:
        done = run_resident(
            owner=OWNER, stop=lambda: False, until=time.monotonic() + 0.5, guardian=guardian,
            idle=lambda seconds: None,
        )  # fmt: skip
        task.refresh_from_db()
        return done, task.status

    with registered(workflow):
        task = submit(workflow)
        assert run() == (0, "queued")
        guardian.on_tick.append(database.tick)
        guardian.call_due(all_now=True)
        assert run() == (3, "completed")


class Started(Guardian):
    """As in a worker, but its ticks come when the test says."""

    def is_alive(self) -> bool:
        return True


def test_a_worker_is_on_record_before_its_first_unit(
    db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the guardian is in no write when a unit begins that may never let go of the GIL."""
    monkeypatch.setattr(runner, "_engine", None)
    workflow, guardian, idled = make_workflow(), Started(), list[float]()

    def run(seconds: float) -> int:
        return run_resident(
            owner=OWNER, stop=lambda: bool(idled), until=time.monotonic() + seconds,
            guardian=guardian, idle=idled.append,
        )  # fmt: skip

    with registered(workflow):
        submit(workflow)
        assert run(0.3) == 0
        heart, sweep, record, sums, follow = guardian.on_tick
        guardian.on_tick = [heart, sweep, sums, follow]
        guardian.call_due(all_now=True)
        assert run(0.3) == 0
        guardian.on_tick = [record]
        guardian.call_due(all_now=True)
        assert Worker.objects.filter(owner=OWNER).exists()
        assert run(60) == 3
