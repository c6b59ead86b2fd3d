"""At most so many tasks with one concurrency key are under way, and nobody else waits for them."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, connections
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from pydantic import BaseModel, Field

from ledger import clock, lanebudgets, lanes, picking, queries, sql, states
from ledger.errors import InvalidInput
from ledger.models import Lane, StepOutput, Task
from ledger.runner import Engine, run_attempt
from ledger.sql import Claimed
from ledger.sql.keys import find_head, free_keys, has_room
from ledger.transitions import holder, operators, sweeps
from ledger.transitions.edits import edit_task
from ledger.transitions.forks import fork_task
from ledger.transitions.lanes import set_lane
from ledger.workflows import Again, Concurrency, Workflow, registered
from tests.dashboard.fleet import make_worker
from tests.factories import CLIENT, LEASE, OPERATOR, OWNER, submit, wait_for

pytestmark = pytest.mark.both_databases

PROOF = os.environ.get("LONGWATCH_TEST_PROOF") == "1"


def make_keyed(name: str = "fix", **given: Any) -> Workflow:
    """A step of one turn, or of as many as its input says, one task at once for each `on`."""
    bound = Concurrency(**({"key": "input.on"} | given))
    workflow = Workflow(name, concurrency=bound)
    workflow.step(
        lambda ctx: Again() if ctx.turn + 1 < ctx.input.get("turns", 1) else {}, name="turn"
    )
    return workflow


@pytest.fixture
def flow(db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workflow]:
    """Workers look around after each unit, at lists that are never old."""
    monkeypatch.setattr(picking, "FRESH_SECONDS", -1.0)
    monkeypatch.setattr(lanes, "RULES_SECONDS", -1.0)
    monkeypatch.setattr(picking, "BLOCKED_SECONDS", -1.0)
    keyed = make_keyed()
    with registered(keyed), override_settings(LONGWATCH_SLICE_SECONDS=0):
        yield keyed
    clock.offset = 0.0


def put(flow: Workflow, on: str, turns: int = 1, **given: Any) -> Task:
    return submit(flow, input={"on": on, "turns": turns}, **given)


def claim_one(owner: str = OWNER) -> Claimed | None:
    return Engine(owner).claim()


def take(owner: str = OWNER) -> Claimed:
    held = claim_one(owner)
    assert held is not None
    return held


def run_all(most: int = 500) -> list[Any]:
    """The tasks of the units that one worker runs, in order."""
    engine, ran = Engine(OWNER), []
    held = engine.claim()
    while held is not None and len(ran) < most:
        ran.append(held.task_id)
        held = run_attempt(engine, held) or engine.claim()
    return ran


def find_why(task: Task) -> str:
    return str(queries.show_task(task.pk)["claimable"]["why"])


def test_a_second_task_of_a_key_begins_when_the_first_is_done(flow: Workflow) -> None:
    """Not between two of its units, however long it is; another key's takes its turns."""
    first, second, other = put(flow, "a", 4), put(flow, "a", 2), put(flow, "b", 3)
    ran = run_all()
    assert len(ran) == 9
    assert max(n for n, pk in enumerate(ran) if pk == first.pk) < ran.index(second.pk)
    assert ran.index(other.pk) == 1


def test_as_many_hold_a_key_as_may_and_a_null_or_no_bound_is_never_counted(flow: Workflow) -> None:
    two = make_keyed("two", at_most=2)
    whole = make_keyed("whole", key="", at_most=3)
    with registered(two, whole):
        for _ in range(5):
            put(two, "x")
            put(whole, "any")
            submit(flow, input={"on": None})
        held = [claim_one(f"h:{n}:b") for n in range(20)]
    names = [one.workflow for one in held if one is not None]
    assert {name: names.count(name) for name in names} == {"two": 2, "whole": 3, "fix": 5}


def test_waiting_gives_the_place_away_and_what_waited_begins(flow: Workflow) -> None:
    first, second = put(flow, "a"), put(flow, "a")
    held = take()
    assert held.task_id == first.pk
    assert claim_one("h:2:b") is None
    wait_for(held, flow)
    other = take("h:2:b")
    assert other.task_id == second.pk
    for leave in (
        lambda one: holder.record_failure(
            one, holder.Attempt({"type": "x", "message": "", "step": "turn", "turn": 0}),
            retries=3, backoff=60),
        lambda one: (operators.pause_task(one.task_id, actor=OPERATOR),
                     holder.release_task(one, why="test")),
    ):  # fmt: skip
        third = put(flow, "a")
        leave(other)
        other = take("h:3:b")
        assert other.task_id == third.pk


@pytest.mark.parametrize("end", ["cancel", "reclaim", "restart", "release"])
def test_a_key_outlives_its_worker_but_not_its_task(flow: Workflow, end: str) -> None:
    first, second = put(flow, "a", 3), put(flow, "a")
    held = take()
    if end == "cancel":
        operators.cancel_task(first.pk, actor=OPERATOR)
        holder.release_task(held, why="cancel")
        assert take().task_id == second.pk
        return
    if end == "reclaim":
        clock.offset += LEASE + 1
        assert sweeps.reclaim_task(first.pk, LEASE)
    elif end == "restart":
        operators.restart_task(first.pk, to_step="turn", note="", actor=OPERATOR)
    else:
        holder.release_task(held, why="drain")
    make_worker(flow)
    assert find_why(second) == f"waits for its concurrency key 'a', held by task {first.pk}"
    assert take().task_id == first.pk
    assert claim_one("h:2:b") is None


@pytest.mark.case(59)
def test_ten_thousand_of_one_key_hide_nobody_else(flow: Workflow, monkeypatch: Any) -> None:
    """The keys take turns once the first of the queue all wait for theirs, and it costs no more."""
    many = put(flow, "many", 99)
    held = take()
    fields = {f.attname: getattr(many, f.attname) for f in Task._meta.concrete_fields}
    fields |= {"status": states.QUEUED, "lease_owner": "", "lease_until": None}
    del fields["id"]
    Task.objects.bulk_create(
        (Task(**fields | {"rank": many.rank + n}) for n in range(1, 1_000)), batch_size=500
    )
    others = [put(flow, on) for on in "zab"]
    plain = Workflow("plain")
    plain.step(lambda ctx: {}, name="turn")
    with registered(plain):
        others.append(submit(plain))
        engine, ran = Engine("h:2:b"), []
        found = engine.claim()
        while found is not None:
            ran.append(found.task_id)
            found = run_attempt(engine, found) or engine.claim()
    assert set(ran) == {task.pk for task in others}
    assert held.task_id == many.pk


def test_a_rank_counts_between_tasks_with_and_without_keys(flow: Workflow) -> None:
    plain = Workflow("plain")
    plain.step(lambda ctx: {}, name="turn")
    with registered(plain):
        low = submit(plain, priority=-50)
        mid = put(flow, "a")
        high = submit(plain, priority=50)
        assert run_all() == [high.pk, mid.pk, low.pk]


@pytest.mark.case(59)
@pytest.mark.parametrize("plain", [False, True])
def test_a_humble_holder_of_a_key_keeps_an_urgent_task_waiting_for_its_own_units_alone(
    flow: Workflow, plain: bool
) -> None:
    """Though there is always a task that ranks between the two, with a key or without."""
    between = Workflow("plain")
    between.step(flow.steps[0].fn, name="turn")
    with registered(between):
        humble = put(flow, "a", 4, priority=-100)
        engine = Engine(OWNER)
        held = engine.claim()
        for _ in range(3):
            if plain:
                submit(between, input={"turns": 50})
            else:
                put(flow, f"other{_}", 50)
        held = run_attempt(engine, held) if held else None
        assert held is not None
        assert held.task_id != humble.pk, "it gives way as long as nobody waits for it"
        urgent = put(flow, "a", priority=100)
        ran = []
        while held is not None and len(ran) < 20:
            ran.append(held.task_id)
            held = run_attempt(engine, held) or engine.claim()
    assert ran[1:5] == [humble.pk] * 3 + [urgent.pk]


@pytest.mark.case(59)
def test_an_urgent_task_of_another_lane_waits_for_the_holders_own_units_alone(
    flow: Workflow,
) -> None:
    """Though the holder's lane has always something that ranks before it."""
    humble = put(flow, "a", 4, priority=-100, lane="busy")
    engine = Engine(OWNER)
    held = engine.claim()
    for number in range(3):
        put(flow, f"other{number}", 50, lane="busy")
    held = run_attempt(engine, held) if held else None
    assert held is not None
    assert held.task_id != humble.pk
    urgent = put(flow, "a", priority=100, lane="urgent")
    ran = []
    while held is not None and urgent.pk not in ran and len(ran) < 20:
        ran.append(held.task_id)
        held = run_attempt(engine, held) or engine.claim()
    assert ran.count(humble.pk) == 3
    assert len(ran) <= 6, "one unit before it was raised, and one of its lane"


@pytest.mark.parametrize("how", ["paused", "over its budget"])
def test_a_lane_in_which_nothing_starts_keeps_no_key(flow: Workflow, how: str) -> None:
    """A pause may last for a week, a month's budget for a month. Its holder waits in its turn."""
    first = put(flow, "a", 3, lane="shut")
    engine = Engine(OWNER)
    held = engine.claim()
    assert held is not None
    second = put(flow, "a", lane="open")
    closes = {"paused": True} if how == "paused" else {}
    set_lane("shut", {} if closes else {"cost_day": "0"}, actor=CLIENT, **closes)
    lanebudgets._kept = None
    assert run_attempt(engine, held) is None, "the unit is stored and the task given back"
    other = take("h:2:b")
    assert other.task_id == second.pk
    set_lane("shut", {"cost_day": None}, actor=CLIENT, paused=False)
    assert claim_one("h:3:b") is None, "now it is first who waits"
    finish(other)
    assert take("h:3:b").task_id == first.pk


def finish(held: Claimed) -> None:
    """Its last unit, after which its worker takes up nothing."""
    engine = Engine(held.owner)
    engine.stop = lambda: True
    assert run_attempt(engine, held) is None
    assert Task.objects.get(pk=held.task_id).status == states.COMPLETED


def test_one_whose_key_is_taken_away_just_now_is_not_claimed_as_its_holder(flow: Workflow) -> None:
    """Whose worker still goes by settings from before the pause."""
    first = put(flow, "a", 3, lane="shut")
    held = take()
    holder.release_task(held, why="drain")
    head = find_head(("shut", flow.name, flow.version), "", None)[0]
    assert head is not None
    assert head.holds == "a"
    free_keys({"shut": None})
    with sql.atomic():
        assert not has_room(head, None)
    free_keys({"shut": first.pk})
    assert take().task_id == first.pk, "it takes a place again like any other"
    assert Task.objects.get(pk=first.pk).held_key == "a"


@pytest.mark.case(59)
def test_lanes_that_all_wait_for_one_key_cost_a_claim_no_more(
    flow: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither an idle worker's nor one's that has a task in hand."""
    monkeypatch.setattr(picking, "BLOCKED_SECONDS", 0.25)
    counts = []
    put(flow, "a", 99)
    take()
    for few, many in ((0, 20), (20, 1_000 if PROOF else 90)):
        for number in range(few, many):
            put(flow, "a", lane=f"a{number:04}")
        for busy in (False, True):
            engine, others = Engine("h:2:b"), [put(flow, on, lane=f"z{on}") for on in "bc"]
            held = engine.claim() if busy else None
            with CaptureQueriesContext(connection) as asked:
                found = run_attempt(engine, held) if held else engine.claim()
            assert found is not None
            assert found.task_id in {one.pk for one in others}
            counts.append(len(asked))
            finish(found)
            while (rest := claim_one("h:3:b")) is not None:
                finish(rest)
    assert max(counts) <= (60 if PROOF else 30), counts


def test_one_that_is_let_through_a_pause_waits_for_its_key_too(flow: Workflow) -> None:
    first, second = put(flow, "a"), put(flow, "a", lane="shut")
    held = take()
    set_lane("shut", {}, actor=CLIENT, paused=True)
    Lane.objects.filter(pk="shut").update(let_through=second.pk)
    assert claim_one("h:2:b") is None
    operators.cancel_task(first.pk, actor=OPERATOR)
    holder.release_task(held, why="cancel")
    assert take("h:2:b").task_id == second.pk
    assert Task.objects.get(pk=second.pk).held_key == "a"


def test_a_copy_and_an_edit_have_the_key_of_their_input(flow: Workflow) -> None:
    task = put(flow, "a")
    copy, _ = fork_task(task.pk, from_step="turn", actor=OPERATOR)
    other, _ = fork_task(task.pk, from_step="turn", actor=OPERATOR, input={"on": 7})
    assert (copy.concurrency_key, other.concurrency_key, other.concurrency_limit) == ("a", "7", 1)
    copy.refresh_from_db()
    edit_task(
        copy.pk, actor=OPERATOR, revision=copy.revision, reason="wrong",
        changes={"input": {"on": "b"}},
    )  # fmt: skip
    copy.refresh_from_db()
    assert copy.concurrency_key == "b"


def test_a_bad_key_is_refused_with_its_field_and_the_cure(flow: Workflow) -> None:
    class Fix(BaseModel):
        where: str = Field(alias="repo")

    for bad in ("repo", "input", "input.", "input.a b", 3):
        with pytest.raises(ValueError, match=r'write key="input.FIELD"'):
            Concurrency(key=bad)  # type: ignore[arg-type]
    for number in (0, True, "2", 10_001):
        with pytest.raises(ValueError, match="takes a whole number from 1"):
            Concurrency(at_most=number)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="names no field of Fix, which has repo"):
        Workflow("w", input=Fix, concurrency=Concurrency(key="input.where"))
    with pytest.raises(ValueError, match="takes a Concurrency"):
        Workflow("w", concurrency="input.repo")  # type: ignore[arg-type]
    for given, why in (({}, "is missing"), ({"on": {}}, "is a dict"), ({"on": "x" * 201}, "long")):
        with pytest.raises(InvalidInput, match=why) as caught:
            submit(flow, input=given)
        assert caught.value.field == "input.on"


@pytest.mark.django_db(transaction=True)
def test_a_bound_holds_whoever_races_for_it(flow: Workflow) -> None:
    """Workers that claim, settle, finish, wait and lose their tasks, all at once."""
    two = make_keyed("two", at_most=2)
    with registered(two):
        for number in range(24):
            put(flow, "ab"[number % 2], 2)
            put(two, "c", 2)
        broken: list[str] = []

        def work(number: int) -> None:
            dice, engine = random.Random(number), Engine(f"h:{number}:b")
            misses = 0
            while misses < 20:
                held = engine.claim()
                misses = 0 if held else misses + 1
                while held is not None:
                    look(broken)
                    if dice.random() < 0.15:
                        holder.release_task(held, why="drain")
                        held = None
                    else:
                        held = run_attempt(engine, held)

        run_together(work, 4)
        assert run_all()[500:] == []
    assert broken == []
    assert set(Task.objects.values_list("status", flat=True)) == {states.COMPLETED}
    assert StepOutput.objects.count() == 96


def look(broken: list[str]) -> None:
    rows = Task.objects.filter(status=states.RUNNING, concurrency_key__isnull=False)
    keys = list(rows.values_list("workflow", "concurrency_key", "concurrency_limit"))
    broken += [str(key) for key in set(keys) if keys.count(key) > key[2]]


def run_together(work: Callable[[int], None], count: int) -> None:
    errors: list[BaseException] = []

    def guard(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=guard, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert connection is not None
