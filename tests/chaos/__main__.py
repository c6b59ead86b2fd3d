"""`python -m tests.chaos`: one run for each database; exit 1 on any broken rule, with evidence."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.run import Options
from tests.chaos.schedule import FAULTS, Pace
from tests.pg import find_binaries

SHOWN = 20
"""Violations that are printed; all of them are in the folder that is kept."""


def parse_arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--database", choices=[*FAULTS, ""], default="", help="both by default")
    parser.add_argument("--seconds", type=float, default=75.0, help="how long each is hurt")
    parser.add_argument("--seed", type=int, default=None, help="drawn and printed by default")
    parser.add_argument("--kills", type=int, default=0, help="until so many, instead of seconds")
    parser.add_argument("--faults", type=int, default=0, help="and so many faults")
    parser.add_argument("--clusters", type=int, default=2)
    parser.add_argument("--backlog", type=int, default=24, help="tasks that are kept unfinished")
    parser.add_argument("--pace", default="1.6,5,5", help="mean s between kills, signals, faults")
    parser.add_argument("--least-kills", type=int, default=0, help="fewer are a failure")
    parser.add_argument("--require-all", action="store_true", help="a database left out fails")
    parser.add_argument("--row", type=Path, help="append the run's row of the table to this file")
    parser.add_argument("--keep", action="store_true", help="keep the run's folder")
    return parser.parse_args(given)


def say(text: str) -> None:
    """To the terminal at once."""
    print(text, flush=True)


def run_one(database: str, options: argparse.Namespace, seed: int) -> bool:
    """Whether it held. One run per process, since Django knows one database."""
    from tests.chaos.judgement import judge_run
    from tests.chaos.report import write_lines, write_row
    from tests.chaos.run import Run
    from tests.chaos.stages import STAGES

    root = Path(tempfile.mkdtemp(prefix="lw-chaos-", dir="/tmp"))
    say(f"=== chaos {database}, seed {seed}, files in {root}")
    with STAGES[database](root) as stage:
        set_django_up(stage.direct_url, root)
        wanted = Options(
            seed, options.seconds, options.kills, options.faults, clusters=options.clusters,
            backlog=options.backlog,
            pace=Pace(*(float(mean) for mean in options.pace.split(","))),
        )  # fmt: skip
        run = Run(root, stage, wanted, lambda text: say(f"chaos {database} {text}"))
        run.run()
        figures, violations = judge_run(run)
        if violations or options.keep:
            stage.save(root / "ledger")
    if figures.kills < options.least_kills:
        violations.append(f"only {figures.kills} kills, at least {options.least_kills} are due")
    with contextlib.suppress(OSError):
        (root / "violations").write_text("\n".join(violations))
        (root / "kills").write_text("\n".join(json.dumps(vars(kill)) for kill in run.kills))
    for line in [*violations[:SHOWN], *write_lines(figures)]:
        say(line)
    if options.row:
        date, commit = time.strftime("%Y-%m-%d", time.gmtime()), read_commit()
        with options.row.open("a") as file:
            file.write(write_row(figures, date, commit) + "\n")
    if violations or options.keep:
        say(f"Replay: make chaos DATABASE={database} SEED={seed}. What it left is in {root}")
    else:
        shutil.rmtree(root, ignore_errors=True)
    return not violations


def set_django_up(url: str, root: Path) -> None:
    """This process reads the ledger past the proxy."""
    import django
    from django.db import connection

    os.environ |= {
        "LONGWATCH_DATABASE_URL": url,
        "LONGWATCH_VAR": str(root / "var"),
        "LONGWATCH_CHAOS_DIR": str(root),
        "LONGWATCH_WORKFLOWS": "tests.chaos.flows",
        "DJANGO_SETTINGS_MODULE": "harness_site.settings",
    }
    django.setup()
    if connection.vendor == "sqlite":
        connection.settings_dict["OPTIONS"]["timeout"] = 5  # a victim that stands still may lock


def read_commit() -> str:
    """The commit that is checked out."""
    import subprocess

    asked = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True).stdout.strip() or "?"


def run_each(options: argparse.Namespace, seed: int) -> int:
    """Each database in a process of its own."""
    import subprocess

    failed = 0
    for database in FAULTS:
        if database == "postgresql" and find_binaries() is None:
            say("chaos postgresql: LEFT OUT (no PostgreSQL server here: apt install postgresql)")
            failed |= options.require_all
            continue
        command = [sys.executable, "-m", "tests.chaos", "--database", database, "--seed", str(seed)]
        command += [a for a in sys.argv[1:] if not a.startswith("--seed=")]
        failed |= subprocess.run(command).returncode != 0
    return int(failed)


def main() -> int:
    """0 when every rule held."""
    options = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    seed = int(time.time()) % 100_000 if options.seed is None else options.seed
    if not options.database:
        return run_each(options, seed)
    return int(not run_one(options.database, options, seed))


if __name__ == "__main__":
    sys.exit(main())
