"""The judge itself: a sound ledger passes every rule, and each way of breaking one is seen."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ledger.models import StepOutput
from ledger.workflows import Workflow, registered
from tests.chaos import checker, flows, plans
from tests.chaos.checker import BROKEN, DOUBLED, LOST, STUCK, History, judge, judge_keys
from tests.chaos.client import Client
from tests.chaos.evidence import gather
from tests.ledger.test_runner import drive

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]
SEED, TASKS = 172, 20

Break = Callable[[History], Any]


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[Client]:
    """A seed's first tasks, submitted, answered, poked and run to their ends in this process."""
    monkeypatch.setenv("LONGWATCH_CHAOS_DIR", str(tmp_path))
    monkeypatch.setitem(plans.WEIGHTS, "chaos_slow", 0)
    settings.LONGWATCH_VAR = str(tmp_path / "var")
    settings.LONGWATCH_ARTIFACTS = str(tmp_path / "artifacts")
    with registered(*(value for value in vars(flows).values() if isinstance(value, Workflow))):
        client = Client(SEED, TASKS)
        client.submit_next()
        client.folder.quiet.touch()
        until = time.monotonic() + 60
        while not client.is_done():
            assert time.monotonic() < until
            client.poke_due()
            drive(10_000)
            client.answer_open()
            client.observe_finished()
        yield client


def read(client: Client) -> list[History]:
    return gather(client.folder, SEED, client.folder.root / "artifacts")


def pick(histories: list[History], workflow: str) -> History:
    """A completed task of that workflow."""
    return next(
        h for h in histories
        if h.task["workflow"] == workflow and h.task["status"] == "completed"
    )  # fmt: skip


def test_every_break_of_a_sound_ledger_is_seen(played: Client) -> None:
    sound = read(played)
    assert len(sound) == TASKS
    assert judge(sound) == []
    assert {h.task["status"] for h in sound} == {"completed", "failed", "dead", "cancelled"}
    assert {rule for _, rule, _, _ in BREAKS} == set(checker.RULES)
    for sort, rule, workflow, damage in BREAKS:
        broken = copy.deepcopy(pick(sound, workflow))
        damage(broken)
        found = {(violation.sort, violation.rule) for violation in judge([broken])}
        assert (sort, rule) in found, (rule, damage)


def test_a_row_that_is_gone_from_the_database_is_seen(played: Client) -> None:
    last = StepOutput.objects.filter(step_name="conclude").order_by("id").last()
    assert last is not None
    StepOutput.objects.filter(pk=last.pk).delete()
    found = judge(read(played))
    assert {violation.task for violation in found} == {str(last.task_id)}
    assert LOST in {violation.sort for violation in found}


def test_a_key_that_is_lost_or_doubled_is_seen(played: Client) -> None:
    said = played.folder.client.read_all()
    tasks = [history.task for history in read(played)]
    assert judge_keys(said, tasks) == []
    (lost,) = judge_keys(said, tasks[1:])
    assert lost.sort == LOST
    (doubled,) = judge_keys(said, [*tasks, {**tasks[0], "id": "another"}])
    assert doubled.sort == DOUBLED
    unanswered = [line for line in said if line.get("number") != 0 or line["what"] != "got"]
    assert [v.sort for v in judge_keys(unanswered, tasks)] == [LOST]


# --- Ways to break a ledger: the rule that has to see it, a task of which workflow, how -----------


def double_output(h: History) -> None:
    h.task["event_seq"] += 1
    h.task["used_units"] += 1
    h.outputs.append({**h.outputs[0], "seq": h.task["event_seq"], "fence": h.task["fence"]})


def lose_output(h: History) -> None:
    """Without a trace: the numbers after it are closed up."""
    gone = h.outputs.pop(0)
    h.task["event_seq"] -= 1
    h.task["used_units"] -= 1
    for row in [*h.outputs, *h.events]:
        row["seq"] -= row["seq"] > gone["seq"]


def lower_fence(h: History) -> None:
    h.outputs[-1]["fence"] = h.outputs[0]["fence"] - 1


def charge_outage(h: History) -> None:
    failed = {"type": "OperationalError", "message": "the connection is lost"}
    h.events.append(
        {"seq": 0, "kind": "attempt_failed", "fence": 1, "step": "", "data": {"error": failed}}
        | {"actor": "worker:x"}
    )


def go_on_after_end(h: History) -> None:
    h.task["event_seq"] += 1
    h.outputs.append({**h.outputs[-1], "seq": h.task["event_seq"], "turn": 99})


def end_twice(h: History) -> None:
    h.events.append(
        {"seq": 0, "kind": "reclaimed", "fence": h.outputs[0]["fence"], "actor": "system"}
    )


BREAKS: list[tuple[str, str, str, Break]] = [
    (STUCK, "every task comes to an end", "chaos_fast",
     lambda h: h.task.update(status="waiting")),
    (LOST, "a task ends in a status that its plan allows", "chaos_fast",
     lambda h: h.task.update(status="dead")),
    (DOUBLED, "a unit is accepted at most once", "chaos_loop", double_output),
    (LOST, "every unit of a completed task has its output", "chaos_loop", lose_output),
    (LOST, "what a later unit saw accepted is there for good", "chaos_loop", lose_output),
    (LOST, "what a later unit saw accepted is there for good", "chaos_repairing",
     lambda h: h.outputs[0].update(fence=99)),
    (BROKEN, "an output's attempt was seen to come to its end", "chaos_fast",
     lambda h: h.sink.pop()),
    (DOUBLED, "an attempt begins once and ends once", "chaos_fast",
     lambda h: h.sink.append(h.lines("begin")[0])),
    (DOUBLED, "an attempt begins once and ends once", "chaos_fast", end_twice),
    (BROKEN, "the fence rises", "chaos_loop", lower_fence),
    (BROKEN, "what is finished stays finished", "chaos_fast", go_on_after_end),
    (BROKEN, "what is finished stays finished", "chaos_fast",
     lambda h: h.seen_finished.append("cancelled")),
    (BROKEN, "no lease outside running", "chaos_fast",
     lambda h: h.task.update(lease_owner="host:1:boot")),
    (LOST, "the record has no gap", "chaos_fast", lambda h: h.events.pop(0)),
    (BROKEN, "the record has no gap", "chaos_fast", lambda h: h.task.update(used_units=1)),
    (BROKEN, "nobody is charged for a fault", "chaos_fast", charge_outage),
    (LOST, "money is recorded once, all of it", "chaos_paying", lambda h: h.spends.pop()),
    (DOUBLED, "money is recorded once, all of it", "chaos_paying",
     lambda h: h.spends.append(dict(h.spends[0]))),
    (DOUBLED, "money is recorded once, all of it", "chaos_paying",
     lambda h: h.spends.append({**h.spends[0], "key": "never charged"})),
    (BROKEN, "money is recorded once, all of it", "chaos_paying",
     lambda h: h.spends[0].update(cost=1)),
    (BROKEN, "money is recorded once, all of it", "chaos_paying",
     lambda h: h.task.update(used_cost=1)),
    (LOST, "an artifact is the accepted attempt's, byte for byte", "chaos_making",
     lambda h: h.artifacts[0].update(found_digest="")),
    (LOST, "an artifact is the accepted attempt's, byte for byte", "chaos_making",
     lambda h: h.artifacts.clear()),
    (BROKEN, "an artifact is the accepted attempt's, byte for byte", "chaos_making",
     lambda h: h.artifacts[0].update(fence=99)),
]  # fmt: skip
