"""`python -m tests.chaos.rerun`: how long from a worker's SIGKILL until its unit runs again.

Two clusters with a worker free for each one that is killed, and nothing else the matter. The bound
is the lease and 2 s: the lease is what tells a dead worker from one that is merely silent.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Iterator

from tests.chaos.ground import Ground, make_parser, open_ground, report_on, say_progress
from tests.chaos.report import find_quantile

SLACK_SECONDS = 2.0
HEAD = "| date | commit | database | lease | kills | p50 | p99 | most | bound | load |"


def measure_reruns(options: argparse.Namespace) -> Iterator[tuple[str, bool]]:
    """One row: its cells, and whether p99 is within the bound."""
    chance = random.Random(options.seed)
    settings = {"LEASE_SECONDS": options.lease, "HEARTBEAT_SECONDS": options.heartbeat}
    seconds: list[float] = []
    with open_ground(options.database, **settings) as ground:
        ground.start(2, options.at_once)
        while len(seconds) < options.count:
            phases = [2 * options.heartbeat * chance.random() for _ in range(options.at_once)]
            seconds += kill_holders(ground, phases)
            say_progress(f"{len(seconds)} kills, most {max(seconds):.2f} s")
    seconds.sort()
    p50, p99 = find_quantile(seconds, 0.5), find_quantile(seconds, 0.99)
    bound = options.lease + SLACK_SECONDS
    cells = [
        options.database, f"{options.lease:g} s", len(seconds), f"{p50:.2f} s", f"{p99:.2f} s",
        f"{seconds[-1]:.2f} s", f"{bound:g} s",
    ]  # fmt: skip
    yield " | ".join(map(str, cells)), p99 <= bound


def kill_holders(ground: Ground, phases: list[float]) -> list[float]:
    """Kill a worker in its unit after each of these times; until each unit ran again."""
    tasks = [ground.submit(3600) for _ in phases]
    holders = {task: ground.wait_for_attempts(task, 1)["pid"] for task in tasks}
    began = time.monotonic()
    killed = {}
    for phase, task in sorted(zip(phases, tasks, strict=True)):
        time.sleep(max(0.0, began + phase - time.monotonic()))
        os.kill(holders[task], signal.SIGKILL)
        killed[task] = time.time()
    return [ground.wait_for_attempts(task, 2)["at"] - at for task, at in killed.items()]


def main() -> int:
    """0 if p99 is within the bound."""
    parser = make_parser("rerun", count=100, at_once=2)
    parser.add_argument("--lease", type=float, default=3.0)
    parser.add_argument("--heartbeat", type=float, default=1.0)
    return report_on(measure_reruns, parser.parse_args(), HEAD)


if __name__ == "__main__":
    sys.exit(main())
