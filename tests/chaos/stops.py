"""`python -m tests.chaos.stops`: SIGTERM to clusters whose workers are all in a unit.

Three sorts of units: those that end within the grace, those that outlast it but let go of the GIL,
and those that hold it. Every second signal goes to the main process alone, the others to the group.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator

from tests.chaos.fleet import Cluster
from tests.chaos.ground import (
    PATIENCE_SECONDS,
    Ground,
    make_parser,
    open_ground,
    report_on,
    say_progress,
)
from tests.chaos.report import find_quantile
from tests.crash.cluster_kit import wait_for

WORKERS = 2
HEAD = (
    "| date | commit | database | units | stops | as promised | exit codes | grace | p50 | most | "
    "bound | load |"
)


@dataclasses.dataclass(frozen=True)
class Sort:
    """Units of one sort, and what is promised of a stop while they run."""

    name: str
    shortest: float
    longest: float
    exit_code: int
    beyond: float
    """Seconds after the grace that the stop may take."""
    task: tuple[str, int]
    """Status and releases of each task after it."""


SORTS = (
    Sort("end within the grace", 0.5, 2.5, 0, 0.0, ("completed", 0)),
    Sort("outlast it, let go of the GIL", 3600, 3600, 0, 0.0, ("queued", 1)),
    Sort("hold the GIL", -1, -1, 70, 3.0, ("running", 0)),
)


def measure_stops(options: argparse.Namespace) -> Iterator[tuple[str, bool]]:
    """A row for each sort: its cells, and whether every stop was as promised."""
    chance = random.Random(options.seed)
    # A lease longer than all of it: a worker without the GIL is killed when its lease is over.
    more = {"DRAIN_SECONDS": options.grace, "LEASE_SECONDS": 60, "HEARTBEAT_SECONDS": 15}
    with open_ground(options.database, **more) as ground:
        for sort in SORTS:
            stops: list[tuple[int, float, bool]] = []
            while len(stops) < options.count:
                stops += stop_clusters(ground, sort, min(options.at_once, options.count), chance)
                say_progress(f"{sort.name}: {len(stops)} stops, {Counter(s[0] for s in stops)}")
            yield describe_stops(options, sort, stops)


def describe_stops(
    options: argparse.Namespace, sort: Sort, stops: list[tuple[int, float, bool]]
) -> tuple[str, bool]:
    """The row of these stops."""
    bound = options.grace + sort.beyond
    good = sum(code == sort.exit_code and took <= bound and sound for code, took, sound in stops)
    codes = ", ".join(f"{code}: {n}" for code, n in Counter(stop[0] for stop in stops).items())
    took = sorted(stop[1] for stop in stops)
    cells = [
        options.database, sort.name, len(stops), f"{good} of {len(stops)}", codes,
        f"{options.grace:g} s", f"{find_quantile(took, 0.5):.2f} s", f"{took[-1]:.2f} s",
        f"{bound:g} s",
    ]  # fmt: skip
    return " | ".join(map(str, cells)), good == len(stops)


def stop_clusters(
    ground: Ground, sort: Sort, count: int, chance: random.Random
) -> list[tuple[int, float, bool]]:
    """Stop so many clusters at once: exit code, seconds, and whether it left all in order."""
    ground.start(count, WORKERS)
    tasks = [
        ground.submit(chance.uniform(sort.shortest, sort.longest)) for _ in range(count * WORKERS)
    ]
    owners = {task: ground.wait_for_attempts(task, 1)["pid"] for task in tasks}
    clusters = ground.fleet.clusters
    pids = [set(cluster.list_pids()) for cluster in clusters]
    began = [terminate(cluster, group=n % 2 == 1) for n, cluster in enumerate(clusters)]
    took: dict[int, float] = {}

    def have_ended() -> bool:
        for n, cluster in enumerate(clusters):
            if n not in took and cluster.process is not None and cluster.process.poll() is not None:
                took[n] = time.monotonic() - began[n]
        return len(took) == count

    wait_for("every cluster has ended", have_ended, PATIENCE_SECONDS)
    left = {process.pid for process in ground.fleet.find_living()}
    ends = read_ends(tasks)
    return [
        (
            cluster.process.returncode if cluster.process else -1,
            took[n],
            not left & pids[n]
            and all(ends[task] == sort.task for task in tasks if owners[task] in pids[n]),
        )
        for n, cluster in enumerate(clusters)
    ]


def terminate(cluster: Cluster, *, group: bool) -> float:
    """SIGTERM; the time."""
    now = time.monotonic()
    if group:
        cluster.send_group(signal.SIGTERM, "SIGTERM to the group")
    else:
        cluster.send(signal.SIGTERM, "SIGTERM")
    return now


def read_ends(tasks: list[str]) -> dict[str, tuple[str, int]]:
    """Status and releases of each."""
    from ledger.models import Task

    rows = Task.objects.filter(pk__in=tasks).values_list("pk", "status", "releases")
    return {str(pk): (status, releases) for pk, status, releases in rows}


def main() -> int:
    """0 if every stop was as promised."""
    parser = make_parser("stops", count=100, at_once=4)
    parser.add_argument("--grace", type=float, default=8.0)
    return report_on(measure_stops, parser.parse_args(), HEAD)


if __name__ == "__main__":
    sys.exit(main())
