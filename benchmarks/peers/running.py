"""What the peers' runs share: the command line, two workers that begin together, the figure."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable

from benchmarks import work, workers
from benchmarks.workers import READY, ROOT, die_with_parent


def parse_options() -> argparse.Namespace:
    """The command line of every peer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--way", default="")
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--worker", type=int)
    return parser.parse_args()


def work_share(options: argparse.Namespace, run: Callable[[int], object]) -> None:
    """In a worker of a peer without a queue: wait for the word, then every second task."""
    print(READY, flush=True)
    sys.stdin.readline()
    begun = time.time()
    for number in range(options.worker, options.tasks, 2):
        run(number)
    print(json.dumps([begun, time.time()]), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)  # its threads are of no interest any more


def measure_shares(options: argparse.Namespace) -> float:
    """Steps per second of two such workers, from the first one's begin to the last one's end."""
    pair = [
        subprocess.Popen(
            [*rebuild_command(), "--worker", str(number)], cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=die_with_parent,
        )
        for number in range(2)
    ]  # fmt: skip
    try:
        for worker in pair:
            _read_until(worker.stdout or [], READY)
        for worker in pair:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        spans = [json.loads(_read_until(worker.stdout or [], "[")) for worker in pair]
    finally:
        for worker in pair:
            worker.kill()
            worker.wait()
    took: float = max(span[1] for span in spans) - min(span[0] for span in spans)
    return options.tasks * options.steps / took


def measure_queue(
    options: argparse.Namespace, enqueue: Callable[[int], object], is_done: Callable[[], bool]
) -> float:
    """Steps per second of two workers of a peer's queue, from the first task enqueued to the last
    one done."""
    command = rebuild_command()[1:]
    with (
        workers.running(*command, "--worker", "0") as one,
        workers.running(*command, "--worker", "1") as two,
    ):
        work.wait_for("both are ready", lambda: all(READY in log() for log in (one, two)))
        begun = 0.0
        for number in range(options.tasks):
            enqueue(number)
            begun = begun or time.time()
        work.wait_for("all is done", is_done)
        return options.tasks * options.steps / (time.time() - begun)


def rebuild_command() -> list[str]:
    """The command that runs this module with the same options, without its interpreter's name."""
    spec = sys.modules["__main__"].__spec__
    assert spec is not None
    return [sys.executable, "-m", spec.name, *sys.argv[1:]]


def _read_until(lines: Iterable[str], start: str) -> str:
    for line in lines:
        if line.startswith(start):
            return line
    raise RuntimeError("a worker ended by itself")


def print_rate(rate: float, stored: int, options: argparse.Namespace) -> None:
    """The figure, as a line of JSON. Raises RuntimeError when less was stored than asked."""
    if stored < options.tasks * options.steps:
        raise RuntimeError(f"{stored} outputs instead of {options.tasks * options.steps}")
    print(json.dumps({"rate": rate}), flush=True)
