"""`python -m benchmarks`: reference, ours, reference, ours …; prints the table and judges it."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from pathlib import Path

from benchmarks import figures
from benchmarks.bench import Bench
from benchmarks.parts import PARTS


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART",
                        help=f"of {' '.join(PARTS)}")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--steps", type=int, default=10, choices=[3, 10])
    parser.add_argument("--latencies", type=int, default=100, help="submissions of w2")
    parser.add_argument(
        "--backlog",
        type=int,
        default=100_000,
        help="tasks beside those that w3 runs; finished ones ten times as many",
    )
    parser.add_argument("--units", type=int, default=7_000, help="of one measurement of w3")
    parser.add_argument("--workers", type=int, default=200, help="of many")
    parser.add_argument("--waiting", type=float, default=30.0, help="seconds of a step of many")
    parser.add_argument("--idle", type=float, default=300.0, help="seconds")
    parser.add_argument("--answers", type=int, default=200)
    parser.add_argument("--tree", default="Django", help="distribution whose files are the tree")
    parser.add_argument("--database", choices=["postgresql", "sqlite"], help="only this one")
    parser.add_argument("--report", type=Path, help="write the table into this page too")
    return parser.parse_args()


def main() -> int:
    """Measure, print, write; 1 if a target was missed."""
    options = parse_options()
    began = time.monotonic()
    broken: list[str] = []
    with contextlib.ExitStack() as stack:
        bench = Bench(options, stack)
        for name in options.only:
            try:
                PARTS[name](bench)
            except (RuntimeError, TimeoutError) as error:  # the other parts' figures count
                print(f"{name} broke off: {error}", file=sys.stderr)
                broken.append(name)
        versions = [database.describe() for database in bench.databases]
    minutes = (time.monotonic() - began) / 60
    missed = [f"{name} broke off" for name in broken] + figures.find_missed(bench.measured)
    text = figures.write_table(bench.measured, options, versions, minutes, bench.left_out)
    print(text)
    for line in missed:
        print(f"MISSED: {line}")
    if options.report:
        figures.put_into(options.report, text)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
