"""The work that every runner does: the step's output, the stamps, the clock of the driver."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

STAMPS = "LONGWATCH_BENCH_STAMPS"
"""The file that first instructions are noted in: one short appended line each."""

LONGEST = 120.0
"""Seconds after which a run that has not ended is given up."""


def make_output(task: int, step: int) -> dict[str, object]:
    """What a step that does nothing returns: about 200 bytes of JSON."""
    return {"task": task, "step": step, "ok": True, "note": "x" * 150}


def wait_for(what: str, condition: Callable[[], object], seconds: float = LONGEST) -> None:
    """Look every 20 ms until the condition holds. Raises TimeoutError, naming `what`."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"after {seconds:g} s still not: {what}")
        time.sleep(0.02)


def stamp(number: int, at: float) -> None:
    """Note when task `number` began; safe from several processes at once."""
    file = os.open(os.environ[STAMPS], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{number} {at:.6f}\n".encode())
    os.close(file)


def measure_latencies(submit: Callable[[int], object], count: int) -> list[float]:
    """Submit `count` tasks 50 to 100 ms apart to an idle system; milliseconds from just before
    each submission to the first instruction of its first step, in ascending order."""
    spacing = random.Random(7)
    submitted = {}
    for number in range(count):
        time.sleep(spacing.uniform(0.05, 0.1))
        submitted[number] = time.time()
        submit(number)
    wait_for("every task has begun", lambda: len(_read_stamps()) == count)
    begun = _read_stamps()
    return sorted((begun[number] - at) * 1000 for number, at in submitted.items())


def _read_stamps() -> dict[int, float]:
    file = Path(os.environ[STAMPS])
    lines = file.read_text().splitlines() if file.exists() else []
    return {int(number): float(at) for number, at in map(str.split, lines)}
