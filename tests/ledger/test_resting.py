"""With nothing queued a worker's main thread asks the database nothing: its guardian's look, which
is taken anyway, says when there is something."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from ledger import resting
from ledger.resting import rest
from ledger.runner import Engine
from ledger.sweeper import look_ahead
from ledger.transitions.lanes import set_lane
from ledger.workflows import Workflow
from tests.factories import OPERATOR, OWNER, claim, submit

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]

LONG = 60.0


class Idle:
    """Waits of no length, after so many of which `then` happens; whether one was a wake-up."""

    def __init__(self, engine: Engine, count: int, then: Callable[[], object]) -> None:
        self.engine, self.count, self.then = engine, count, then
        self.waits = 0
        self.woken = False

    def __call__(self, seconds: float) -> bool:
        self.waits += 1
        if self.waits == self.count:
            self.then()
        assert self.waits < self.count + 2, "it rests on"
        return self.woken


def hear(engine: Engine) -> None:
    """What its guardian's look hears."""
    engine.orders.hear(look_ahead(OWNER), time.monotonic())


@pytest.fixture
def engine() -> Engine:
    """Of a worker that looked for work and found none, long ago."""
    engine = Engine(OWNER)
    assert engine.claim() is None
    hear(engine)
    engine.looked = 0.0
    return engine


def rest_until(engine: Engine, then: Callable[[], object], count: int = 5) -> int:
    """How many waits its rest took; after the fifth of them something happens."""
    idle = Idle(engine, count, then)
    rest(engine, idle, time.monotonic() + LONG)
    return idle.waits


def test_a_look_says_whether_anything_is_queued(flow: Workflow) -> None:
    assert not look_ahead().queued
    submit(flow)
    assert look_ahead().queued
    claim(flow)
    assert not look_ahead().queued


def test_it_rests_until_its_guardian_sees_something(engine: Engine, flow: Workflow) -> None:
    def happen() -> None:
        submit(flow)
        hear(engine)

    assert rest_until(engine, happen) == 5
    assert engine.looked > 0, "it counts as having looked, or it would not be on record"


def test_a_wake_up_ends_the_rest(engine: Engine) -> None:
    idle = Idle(engine, 3, lambda: setattr(idle, "woken", True))
    rest(engine, idle, time.monotonic() + LONG)
    assert idle.waits == 3


def test_a_stop_and_a_lost_guardian_end_it(engine: Engine) -> None:
    stops: list[bool] = []
    engine.stop = lambda: bool(stops)
    assert rest_until(engine, lambda: stops.append(True)) == 5
    stops.clear()
    engine.can_beat = lambda: not stops
    assert rest_until(engine, lambda: stops.append(True)) == 5


def test_without_news_of_its_guardian_it_looks_itself(engine: Engine) -> None:
    old = time.monotonic() - 10
    assert rest_until(engine, lambda: engine.orders.hear(look_ahead(OWNER), old)) == 5
    assert rest_until(Engine(OWNER), lambda: None) == 1, "it has not heard of it yet"


def test_what_is_set_for_lanes_is_read_each_second(engine: Engine) -> None:
    """A budget is used up without a word to those who rest, and a woken worker claims first."""
    set_lane("a", {"weight": 2}, actor=OPERATOR)
    engine.claim()
    hear(engine)
    assert rest_until(engine, lambda: None) == 1


def test_now_and_then_it_looks_all_the_same(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lest a firewall cut a session that says nothing."""
    monkeypatch.setattr(resting, "REST_SECONDS", 0.0)
    assert rest_until(engine, lambda: None) == 1
