"""A quiet place to measure: a database, clusters, nobody who hurts them but the measurement."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.chaos.__main__ import read_commit, say, set_django_up
from tests.chaos.fleet import WORKER, Fleet, make_environment
from tests.chaos.journal import Folder, Line
from tests.chaos.report import make_rule
from tests.chaos.schedule import FAULTS
from tests.chaos.stages import STAGES
from tests.crash.cluster_kit import wait_for

PATIENCE_SECONDS = 120.0
"""How long a start, or an attempt, may take on a machine that is busy with other things."""


class Ground:
    """One database with its clusters, and what their attempts wrote down."""

    def __init__(self, root: Path, url: str, settings: dict[str, float]) -> None:
        self.folder = Folder(root)
        self.fleet = Fleet(root, make_environment(root, url))
        self.fleet.environment |= {f"LONGWATCH_{k}": f"{v:g}" for k, v in settings.items()}
        self._begun: dict[str, list[Line]] = {}

    def start(self, clusters: int, workers: int) -> None:
        """Start clusters and wait until all of their workers are there."""
        self.fleet.start_clusters(clusters, workers)

        def count_workers() -> bool:
            return all(len(c.list_pids(WORKER)) == workers for c in self.fleet.clusters)

        wait_for("every worker runs", count_workers, PATIENCE_SECONDS)

    def submit(self, seconds: float) -> str:
        """A task whose first attempt takes so long, below 0 for ever and with the GIL."""
        from ledger import client

        return str(client.submit("chaos_held", {"seconds": seconds}))

    def wait_for_attempts(self, task: str, count: int) -> Line:
        """The line of the task's attempt number `count`, once it has begun."""

        def look() -> Line | None:
            for line in self.folder.sink.read_new():
                if line["what"] == "begin":
                    self._begun.setdefault(line["task"], []).append(line)
            found = self._begun.get(task, [])
            return found[count - 1] if len(found) >= count else None

        found = wait_for(f"attempt {count} at {task}", look, PATIENCE_SECONDS)
        assert found is not None
        return found


@contextlib.contextmanager
def open_ground(database: str, **settings: float) -> Iterator[Ground]:
    """A ground whose processes run with these `LONGWATCH_*` settings. One per process."""
    root = Path(tempfile.mkdtemp(prefix="lw-ground-", dir="/tmp"))
    with STAGES[database](root) as stage:
        set_django_up(stage.direct_url, root)
        ground = Ground(root, stage.direct_url, settings)
        ground.fleet.migrate()
        try:
            yield ground
        finally:
            ground.fleet.stop(30)
    shutil.rmtree(root, ignore_errors=True)


def make_parser(module: str, count: int, at_once: int) -> argparse.ArgumentParser:
    """The options of every measurement."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.chaos.{module}")
    parser.add_argument("--database", choices=[*FAULTS], default="postgresql")
    parser.add_argument("--count", type=int, default=count)
    parser.add_argument("--at-once", type=int, default=at_once)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--row", type=Path, help="append what held to this file")
    return parser


def report_on(
    measure: Callable[[argparse.Namespace], Iterator[tuple[str, bool]]],
    options: argparse.Namespace,
    head: str,
) -> int:
    """Measure, print the rows of the table, append those that held; 1 if one did not."""
    print(head)
    print(make_rule(head))
    failed = 0
    for cells, held in measure(options):
        load = f"{os.getloadavg()[0]:.1f}"
        row = f"| {time.strftime('%Y-%m-%d', time.gmtime())} | {read_commit()} | {cells} | {load} |"
        say(row if held else f"FAILED {row}")
        failed |= not held
        if held and options.row:
            with options.row.open("a") as file:
                file.write(row + "\n")
    return failed


def say_progress(text: str) -> None:
    """Beside the table, not in it."""
    print(text, file=sys.stderr, flush=True)
