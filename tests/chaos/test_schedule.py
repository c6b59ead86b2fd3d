"""A seed is a schedule: the same acts, the same tasks, and each kind of fault in a short run."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.chaos.journal import Journal
from tests.chaos.plans import WEIGHTS, make_plan
from tests.chaos.schedule import FAULTS, KILLS, SIGNALS, Pace, draw_acts


@pytest.mark.parametrize("database", FAULTS)
def test_a_seed_replays_the_same_acts(database: str) -> None:
    first, again, other = (
        list(itertools.islice(draw_acts(seed, database, Pace()), 500)) for seed in (7, 7, 8)
    )
    assert first == again
    assert first != other
    assert [act.at for act in first] == sorted(act.at for act in first)


@pytest.mark.parametrize("database", FAULTS)
def test_every_kind_of_fault_comes_within_two_minutes(database: str) -> None:
    for seed in range(20):
        acts = itertools.takewhile(lambda a: a.at < 120, draw_acts(seed, database, Pace()))
        seen = {(act.stream, act.kind) for act in acts}
        assert {kind for stream, kind in seen if stream == "fault"} == set(FAULTS[database])
        assert {kind for stream, kind in seen if stream == "kill"} == set(KILLS)
        assert {kind for stream, kind in seen if stream == "signal"} >= set(SIGNALS) - {
            "kill client", "stop cluster",
        }  # fmt: skip


def test_a_seed_submits_the_same_tasks() -> None:
    plans = [make_plan(5, number) for number in range(500)]
    assert plans == [make_plan(5, number) for number in range(500)]
    assert plans != [make_plan(6, number) for number in range(500)]
    assert {plan.workflow for plan in plans} == set(WEIGHTS)
    assert {action for plan in plans for _, action in plan.pokes} == {
        "cancel", "pause", "resume", "restart", "retry",
    }  # fmt: skip


def test_a_line_that_a_kill_cut_in_two_spoils_no_other(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "sink")
    journal.write(what="begin")
    with journal.path.open("ab") as file:
        file.write(b'\n{"what":"en')
    assert [line["what"] for line in journal.read_new()] == ["begin"]
    journal.write(what="end")
    assert [line["what"] for line in journal.read_new()] == ["end"]
    assert journal.torn == 1
