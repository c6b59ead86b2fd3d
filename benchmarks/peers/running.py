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
    workers = [
        subprocess.Popen(
            [*rebuild_command(), "--worker", str(number)], cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=die_with_parent,
        )
        for number in range(2)
    ]  # fmt: skip
    try:
        for worker in workers:
            _read_until(worker.stdout or [], READY)
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        spans = [json.loads(_read_until(worker.stdout or [], "[")) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    took: float = max(span[1] for span in spans) - min(span[0] for span in spans)
    return options.tasks * options.steps / took


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
