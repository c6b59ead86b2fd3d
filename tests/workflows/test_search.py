"""The search for what breaks the tests."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_site.workflows.modernise.search import Search


def hunt(count: int, fails: set[frozenset[int]]) -> tuple[Search, int]:
    """Search among `count` changes where a run fails that has all of one of the sets `fails`."""
    search, runs = Search.start(list(range(count))), 0
    while not search.done:
        search = Search.from_json(json.loads(json.dumps(search.to_json())))
        runs += 1
        search.record(passed=not any(group <= set(search.trial) for group in fails))
    return search, runs


@pytest.mark.parametrize("count", [1, 2, 3, 7, 35, 100])
def test_one_guilty_change_is_found_in_two_runs_for_each_halving(count: int) -> None:
    for guilty in range(count):
        search, runs = hunt(count, {frozenset([guilty])})
        assert search.guilty == [guilty]
        assert sorted(search.good) == [n for n in range(count) if n != guilty]
        assert runs <= 2 * math.ceil(math.log2(count)) if count > 1 else runs == 0


@given(st.data())
def test_every_guilty_change_is_found_and_no_other(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 40))
    guilty = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=6))
    search, runs = hunt(count, {frozenset([number]) for number in guilty})
    assert set(search.guilty) == guilty
    assert set(search.good) == set(range(count)) - guilty
    assert runs <= 2 * len(guilty) * math.ceil(math.log2(count) + 1)


@given(st.data())
def test_what_is_left_passes_also_when_changes_fail_only_together(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 20))
    numbers = st.integers(0, count - 1)
    fails = data.draw(st.sets(st.frozensets(numbers, min_size=1, max_size=3), min_size=1))
    search, _ = hunt(count, fails)
    assert sorted(search.good + search.guilty) == list(range(count))
    assert not any(group <= set(search.good) for group in fails)
    assert search.guilty
