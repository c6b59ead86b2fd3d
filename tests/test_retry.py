"""The wait after a failed attempt."""

from __future__ import annotations

from ledger.retry import bound_backoff, draw_backoff


def test_the_bound_doubles_up_to_five_minutes() -> None:
    assert [bound_backoff(n) for n in (0, 1, 2, 3, 8, 9, 10_000)] == [1, 2, 4, 8, 256, 300, 300]
    assert bound_backoff(-5) == 1


def test_many_failures_of_one_second_come_back_spread_over_the_window() -> None:
    waits = [draw_backoff(9) for _ in range(10_000)]
    assert all(0 <= wait <= 300 for wait in waits)
    by_tenth = [sum(30 * n <= wait < 30 * (n + 1) for wait in waits) for n in range(10)]
    assert min(by_tenth) > 700, "full jitter: no tenth of the window is empty"
