"""`python -m tests.rings [RING…] [--require-all] [-- PYTEST ARGUMENTS]`: the tests, ring by ring.

Each ring is one pytest process with a budget. The last lines say what ran and what was left out.
Where the machine has room they run side by side: each in a process of this program, as it looks
for what its tests left running among all of its children. Their lines begin with the ring's name.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from tests.pg import Cluster, die_with_parent, find_binaries

ROOT = Path(__file__).resolve().parent.parent
BUDGETS = {"sqlite": 3600, "postgresql": 3600, "browser": 3600}
"""Seconds after which a ring is ended: a hung test must not hang the gate. Half as much again as a
quiet machine with two cores needs for all of them side by side."""

LEAST_CORES = 2
LEAST_MEMORY = 4 * 2**30

TAIL = 80
"""Lines that are shown once more of a ring that failed beside another."""

FEW = 5
"""So many failures may be the machine's; more are the code's."""

GRACE = 10
PR_SET_CHILD_SUBREAPER = 36


@dataclass
class Result:
    """How one ring ended. `line` is what the summary says; `trouble` is empty if all is well."""

    line: str
    trouble: str = ""
    left_out: bool = False


def find_chromium() -> str | None:
    """A Chromium or Chrome on this machine."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next(filter(None, map(shutil.which, names)), None)


def find_reason_to_leave_out(ring: str) -> str | None:
    """What this machine lacks for the ring, in words that name the cure."""
    if ring == "postgresql" and find_binaries() is None:
        return "no PostgreSQL server here: apt install postgresql"
    if ring == "browser" and find_chromium() is None:
        return "no browser here: apt install chromium"
    return None


def find_lacks(ring: str) -> str:
    """What is missing for some of the ring's tests, which then don't run; empty if nothing is."""
    from tests.crash.netns import find_lack

    return find_lack() if ring == "postgresql" and find_binaries() is not None else ""


@contextlib.contextmanager
def provide(ring: str) -> Iterator[dict[str, str]]:
    """The environment of a ring: a folder, and for PostgreSQL a server that lives as long."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="lw-ring-", ignore_cleanup_errors=True)
        )
        extra = {
            "LONGWATCH_TEST_RING": ring,
            "LONGWATCH_TEST_DIR": folder,
            "LONGWATCH_TEST_TALLY": f"{folder}/tally.json",
        }
        if ring == "postgresql":
            extra["LONGWATCH_TEST_POSTGRESQL"] = stack.enter_context(Cluster()).url
        # A make that a test starts is no part of the one that started us.
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
        yield inherited | extra


def run_ring(ring: str, pytest_arguments: list[str], again: bool = False) -> Result:
    """Run one ring to its end, or to the end of its budget, and leave no process behind.

    With `again`, a few tests that failed are run once more by themselves: on a shared machine a
    deadline may pass that the code did not miss. They are named either way.
    """
    if reason := find_reason_to_leave_out(ring):
        return Result(f"ring {ring}: LEFT OUT ({reason})", left_out=True)
    print(f"\n=== ring {ring}", flush=True)
    started = time.monotonic()
    with provide(ring) as environment:
        before = {child.pid for child in psutil.Process().children()}
        code = run_pytest(environment, pytest_arguments, BUDGETS[ring])
        left_over = end_left_overs(before)
        tally = read_tally(Path(environment["LONGWATCH_TEST_TALLY"]))
        if again and code == 1 and tally["failed"] <= FEW and not left_over:
            print(
                f"=== ring {ring}: {tally['failed']} failed; once more, by themselves", flush=True
            )
            environment["LONGWATCH_TEST_ONLY"] = json.dumps(tally["names"])
            code = run_pytest(environment, pytest_arguments, BUDGETS[ring])
            left_over = end_left_overs(before)
            if code == 0:
                print(f"=== ring {ring}: FLAKY, passed when run alone", flush=True)
    trouble = describe_trouble(ring, code, tally, left_over)
    print(f"=== ring {ring} took {time.monotonic() - started:.0f} s", flush=True)
    return Result(f"ring {ring}: ran {tally['ran']} tests", trouble)


def run_pytest(environment: dict[str, str], arguments: list[str], budget: int) -> int | None:
    """pytest's exit code, or None if its budget ended first."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        preexec_fn=die_with_parent,
        process_group=0,
    )
    try:
        return process.wait(budget)
    except subprocess.TimeoutExpired:
        return None
    finally:
        # Also when a signal ends us: first as Ctrl-C, so that fixtures can clean up.
        for how in (signal.SIGINT, signal.SIGKILL):
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(process.pid, how)
                    process.wait(GRACE)


def end_left_overs(before: set[int], grace: float = GRACE) -> list[str]:
    """Kill what the tests left running, and say what it was. Orphans come to us, the subreaper."""

    def list_new() -> list[psutil.Process]:
        children = psutil.Process().children(recursive=True)
        own = [child for child in children if child.pid in before]
        kept = {grand.pid for child in own for grand in child.children(recursive=True)}
        return [child for child in children if child.pid not in before | kept]

    _, alive = psutil.wait_procs(list_new(), timeout=grace)
    lines = []
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            lines.append(f"{process.pid} {' '.join(process.cmdline())[:150] or process.name()}")
            process.kill()
    psutil.wait_procs(alive, timeout=GRACE)
    return lines


def read_tally(file: Path) -> dict[str, Any]:
    """What tests/conftest.py counted, and the names of the tests that failed; nothing if pytest did
    not come so far."""
    if file.exists():
        return dict(json.loads(file.read_text()))
    return {"ran": 0, "failed": 0, "skipped": 0, "names": []}


def describe_trouble(
    ring: str, code: int | None, tally: dict[str, Any], left_over: list[str]
) -> str:
    """Why this ring does not count as passed; empty if it does."""
    troubles = []
    if code is None:
        troubles.append(f"did not end within its {BUDGETS[ring]} s")
    elif code:
        troubles.append(f"{tally['failed']} failed (pytest exit code {code})")
    if tally["skipped"]:
        troubles.append(f"{tally['skipped']} skipped")
    troubles += [f"left running: {line}" for line in left_over]
    return "; ".join(troubles)


@dataclass
class Beside:
    """A ring in a process of its own, and what it said."""

    ring: str
    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    def repeat_lines(self) -> None:
        """Until it ends: each line with the ring's name before it."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            sys.stdout.write(f"{self.ring:10} | {line}")
            sys.stdout.flush()

    def read_result(self) -> Result:
        """From the lines that it ended with, as any run of this program does."""
        trouble = self._find_last(f"FAILED {self.ring}: ")
        if self.process.returncode and not trouble:
            trouble = f"ended with exit code {self.process.returncode}"
        ran = self._find_last(f"ring {self.ring}: ") or "ran 0 tests"
        return Result(f"ring {self.ring}: {ran}", trouble)

    def _find_last(self, start: str) -> str:
        found = (line.strip() for line in reversed(self.lines) if line.startswith(start))
        return next(found, start)[len(start) :]


def run_beside(rings: list[str], arguments: list[str]) -> dict[str, Result]:
    """Run rings that this machine has all for, at once, to the end of the last."""
    before = {child.pid for child in psutil.Process().children()}
    running: list[Beside] = []
    try:
        for ring in rings:
            # A group of its own: an interrupt at the terminal is passed on once, by us.
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.rings", ring, *arguments],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, encoding="utf-8", errors="replace",
                preexec_fn=die_with_parent, process_group=0,
            )  # fmt: skip
            running.append(Beside(ring, process))
        readers = [threading.Thread(target=one.repeat_lines, daemon=True) for one in running]
        for reader in readers:
            reader.start()
        for one in running:
            one.process.wait()
    finally:
        for one in running:
            one.process.terminate()
        for one in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.process.wait(4 * GRACE)
            one.process.kill()
        end_left_overs(before, 0)  # of a ring that was killed itself; they hold its pipe
    for reader in readers:
        reader.join(GRACE)
    results = {one.ring: one.read_result() for one in running}
    for one in running:
        if results[one.ring].trouble:
            print(f"\n=== ring {one.ring} FAILED, and ended so:", flush=True)
            print("".join(one.lines[-TAIL:]), flush=True)
    return results


def choose_beside(rings: Iterable[str], pressed: bool = False) -> list[str]:
    """Those of the rings to run side by side; none where there is no room, unless `pressed`."""
    found = [ring for ring in rings if not find_reason_to_leave_out(ring)]
    roomy = (os.cpu_count() or 1) >= LEAST_CORES
    roomy = roomy and psutil.virtual_memory().available >= LEAST_MEMORY
    return found if len(found) > 1 and (roomy or pressed) else []


def run_rings(options: argparse.Namespace) -> dict[str, Result]:
    """Run each of them, all at once where that goes; the results in the order asked for."""
    rings = list(dict.fromkeys(options.rings or BUDGETS))
    results: dict[str, Result] = {}
    if beside := choose_beside(rings, options.beside):
        again = ["--again"] if options.again else []
        results = run_beside(beside, [*again, "--", *options.pytest])
    for ring in rings:
        if ring not in results:
            results[ring] = run_ring(ring, options.pytest, options.again)
    return {ring: results[ring] for ring in rings}


def _end_on_signal(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would end the clearing up
    sys.exit(128 + number)


def parse_arguments() -> argparse.Namespace:
    """The command line; what follows `--` is pytest's."""
    mine, pytest_arguments = sys.argv[1:], []
    if "--" in mine:
        cut = mine.index("--")
        mine, pytest_arguments = mine[:cut], mine[cut + 1 :]
    parser = argparse.ArgumentParser(prog="python -m tests.rings")
    parser.add_argument("rings", nargs="*", metavar="RING", help=" ".join(BUDGETS))
    parser.add_argument("--require-all", action="store_true", help="fail if a ring is left out")
    parser.add_argument("--again", action="store_true", help="run a few failures once more, alone")
    parser.add_argument("--beside", action="store_true", help="all at once on any machine")
    options = parser.parse_args(mine)
    if unknown := set(options.rings) - set(BUDGETS):
        parser.error(f"no ring {', '.join(sorted(unknown))}; there are {', '.join(BUDGETS)}")
    options.pytest = pytest_arguments
    return options


def main() -> int:
    """Run the rings, print their lines last, and return the exit code."""
    options = parse_arguments()
    signal.signal(signal.SIGTERM, _end_on_signal)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        results = run_rings(options)
    finally:
        end_left_overs(set(), 0)  # after a signal
    print()
    failed = False
    for ring, result in results.items():
        if result.trouble:
            failed = True
            print(f"FAILED {ring}: {result.trouble}")
        if result.left_out and options.require_all:
            failed = True
            print(f"FAILED {ring}: left out, and every ring is required")
        if lacks := find_lacks(ring):
            failed = failed or options.require_all
            print(f"{'FAILED ' * options.require_all}{ring}: without its tests of hosts ({lacks})")
    for result in results.values():
        print(result.line)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
