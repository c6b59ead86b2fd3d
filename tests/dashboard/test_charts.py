"""The geometry of the charts: buckets at round times, nothing outside of its frame."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard import charts

MOMENTS = st.integers(1_577_836_800, 2_208_988_800).map(
    lambda seconds: dt.datetime.fromtimestamp(seconds + 0.25, dt.UTC)
)
NAMES = st.sampled_from(["1h", "24h", "7d"])


@given(NAMES, MOMENTS, st.floats(0, 1e7))
def test_every_age_in_the_range_has_its_bucket(name: str, now: dt.datetime, ago: float) -> None:
    span = charts.make_span(name, now)
    bucket = span.find_bucket(ago)
    if ago >= span.seconds:
        assert bucket is None
        return
    assert bucket is not None
    assert 0 <= bucket < span.count
    # The bucket holds the moment itself; floats are good to a microsecond here.
    last = now.timestamp() // span.size * span.size
    begin = last - (span.count - 1 - bucket) * span.size
    assert begin - 1e-3 <= now.timestamp() - ago <= begin + span.size + 1e-3


@given(NAMES, MOMENTS)
def test_ticks_stand_at_round_times_inside(name: str, now: dt.datetime) -> None:
    ticks = charts.make_span(name, now).list_ticks()
    assert 3 <= len(ticks) <= 9
    assert all(0 < x < 100 for x, _ in ticks)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), min_size=1, max_size=60))
def test_bars_stay_in_the_plot(pairs: list[tuple[float, float]]) -> None:
    low, high = zip(*pairs, strict=True)
    top = charts.find_top(max(map(sum, pairs)))
    for bar in charts.draw_bars((low, high), ("c-ok", "c-bad"), top):
        assert bar.y >= charts.TOP - 1e-6
        assert bar.y + bar.height <= charts.BOTTOM + 1e-6
        assert 0 <= bar.x <= bar.x + bar.width <= 100
    for bar in charts.draw_spark(low):
        assert 0 <= bar.y <= bar.y + bar.height <= charts.SPARK_HEIGHT + 1e-6


def test_a_curve_has_gaps_and_dots() -> None:
    lines = charts.draw_curve([1, 2, None, 3], "l-mid", 4)
    assert [(line.x1, line.x2) for line in lines] == [(12.5, 37.5), (87.5, 87.5)]
    assert [line.alone for line in lines] == [False, True]


@pytest.mark.parametrize(
    ("highest", "top"), [(0, 1), (1, 1), (7, 8), (11, 20), (32, 40), (0.03, 0.03), (95, 100)]
)
def test_an_axis_ends_at_a_round_number(highest: float, top: float) -> None:
    assert charts.find_top(highest) == pytest.approx(top)


def test_a_quantile_is_one_of_the_values() -> None:
    assert charts.find_quantile([], 0.5) is None
    assert charts.find_quantile([3, 1, 2], 0.5) == 2
    assert charts.find_quantile(list(range(1, 101)), 0.95) == 95
