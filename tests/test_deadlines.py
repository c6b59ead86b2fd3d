"""A unit ends at its deadline, and nothing of it reaches what comes after."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from ledger import deadlines
from ledger.deadlines import UnitStopped, UnitTimeout, unit_deadline

# pytest-timeout's other way needs no SIGALRM, so that an alarm here is always our own.
pytestmark = pytest.mark.timeout(60, method="thread")


def spin(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def test_a_unit_in_time_is_left_alone() -> None:
    with unit_deadline(60):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize("work", [time.sleep, spin])
def test_a_unit_past_its_deadline_gets_an_exception(work: object) -> None:
    begun = time.monotonic()
    with pytest.raises(UnitTimeout, match=r"longer than 0.05 s"), unit_deadline(0.05):
        work(60)  # type: ignore[operator]
    assert time.monotonic() - begun < 30


def test_except_exception_does_not_swallow_it() -> None:
    assert not issubclass(UnitTimeout, Exception)
    assert not issubclass(UnitStopped, Exception)


def test_another_thread_can_end_the_unit_with_a_reason() -> None:
    unit = unit_deadline(60)
    threading.Timer(0.05, unit.interrupt, args=["cancelled"]).start()
    with pytest.raises(UnitStopped) as caught, unit:
        time.sleep(60)
    assert caught.value.reason == "cancelled"


def test_a_unit_interrupted_before_it_began_ends_at_once() -> None:
    unit = unit_deadline(60)
    unit.interrupt("cancelled")
    with pytest.raises(UnitStopped, match="cancelled"), unit:
        time.sleep(60)


def test_a_unit_that_has_ended_can_not_be_interrupted() -> None:
    with unit_deadline(60) as first:
        pass
    with unit_deadline(60):
        first.interrupt("too late")
        spin(0.05)


def test_a_signal_that_came_too_early_does_not_lose_the_deadline() -> None:
    threading.Timer(0.05, os.kill, args=[os.getpid(), signal.SIGALRM]).start()
    with pytest.raises(UnitTimeout), unit_deadline(0.3):
        time.sleep(60)


def test_a_step_that_took_the_signal_loses_it_with_its_unit() -> None:
    with unit_deadline(60):
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
    with pytest.raises(UnitTimeout), unit_deadline(0.05):
        time.sleep(60)


def test_one_unit_at_a_time() -> None:
    with unit_deadline(60), pytest.raises(RuntimeError, match="armed already"), unit_deadline(60):
        pass


def test_nothing_escapes_from_the_block_and_nothing_stays_armed() -> None:
    """Deadlines that fall on every line of the block's own code: 3,000 of up to 300 us."""
    ended = 0
    for number in range(3000):
        inside = False
        try:
            with unit_deadline((number % 100 + 1) * 3e-6):
                inside = True
                spin(1.5e-4)
                inside = False
        except UnitTimeout:
            ended += inside
        # Out here an exception fails the test; a timer left behind would raise one soon.
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert ended > 100


def test_outside_the_main_thread_only_the_hard_stop_holds() -> None:
    seen: list[object] = []

    def run() -> None:
        with unit_deadline(0.01, margin=60):
            spin(0.05)
            seen.append("ran on")

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == ["ran on"]


def ring(signum: int, frame: object) -> None:
    raise TimeoutError("an alarm around the unit")


@pytest.mark.parametrize("seconds", [0.1, 60.0])
def test_an_alarm_around_the_unit_rings_on_time(seconds: float) -> None:
    """As pytest-timeout's around a workflow under test."""
    before = signal.signal(signal.SIGALRM, ring)
    begun = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(TimeoutError, match="around"):
            run_into_alarm(seconds)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert 0.29 <= time.monotonic() - begun < 30  # the two clocks tick apart by a little


def run_into_alarm(seconds: float) -> None:
    try:
        with unit_deadline(seconds):
            time.sleep(60)
    except UnitTimeout:
        time.sleep(60)


def test_a_process_stuck_in_c_ends_with_a_traceback() -> None:
    ended = run_script("with unit_deadline(0.1, margin=0.2):\n    while True: sum(range(10**10))")
    assert ended.returncode == 1
    assert "Timeout (0:00:00.299" in ended.stderr
    assert 'File "<string>", line 6' in ended.stderr


KEPT = "unit_deadline(0.2, margin=0.2, keep=True)"


def test_a_kept_hard_stop_serves_the_next_unit() -> None:
    ended = run_script(
        f"with {KEPT}: pass",
        "first = deadlines._hard_stop",
        f"with {KEPT}:",
        "    assert deadlines._hard_stop == first > 0",
        "    while True: sum(range(10**10))",
    )
    assert ended.returncode == 1
    assert "Timeout (0:00:00.599" in ended.stderr  # two margins after the first unit's deadline
    assert 'File "<string>", line 9' in ended.stderr


def test_a_kept_hard_stop_is_none_for_a_unit_that_may_run_longer() -> None:
    ended = run_script(
        f"with {KEPT}: pass",
        "with unit_deadline(60, keep=True):",
        "    time.sleep(1)",
        "deadlines.cancel_hard_stop()",
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_kept_hard_stop_can_be_cancelled() -> None:
    ended = run_script(f"with {KEPT}: pass", "deadlines.cancel_hard_stop()", "time.sleep(1)")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_hard_stop_that_is_near_is_not_kept() -> None:
    with unit_deadline(deadlines.KEEP_SECONDS - 10, keep=True):
        assert deadlines._hard_stop > time.monotonic()
    assert deadlines._hard_stop == 0


def run_script(*lines: str) -> subprocess.CompletedProcess[str]:
    """A process that keeps hard stops however near they are."""
    code = "\n".join(
        [
            "import time",
            "from ledger import deadlines",
            "from ledger.deadlines import unit_deadline",
            "deadlines.KEEP_SECONDS = 0",
            *lines,
        ]
    )
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
