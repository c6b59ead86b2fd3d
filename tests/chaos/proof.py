"""`python -m tests.chaos.proof`: the long runs, and their rows in docs/reliability.md.

About an hour on a machine of two cores: PostgreSQL 1,000 kills and 200 faults (22 min), SQLite 500
and 100 (16 min), then the state machine under hypothesis (20 min).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.__main__ import read_commit, say
from tests.chaos.report import HEAD, RULE
from tests.conftest import ROOT
from tests.rings import provide

REPORT = ROOT / "docs" / "reliability.md"
AMOUNTS = {"postgresql": (1000, 200), "sqlite": (500, 100)}
"""Kills and faults."""
MINUTES = {"postgresql": 22, "sqlite": 16, "hypothesis": 20}
PACE = ("--clusters=3", "--pace=1,6,4")
BEGIN, END = "<!-- runs -->", "<!-- /runs -->"


def run_chaos(database: str, seed: int, scale: float) -> str | None:
    """The run's row for the table; None if it failed, or was left out."""
    kills, faults = (max(1, int(amount * scale)) for amount in AMOUNTS[database])
    with tempfile.TemporaryDirectory(prefix="lw-proof-", dir="/tmp") as folder:
        row = Path(folder) / "row"
        command = [sys.executable, "-m", "tests.chaos", f"--database={database}", f"--seed={seed}"]
        command += [f"--kills={kills}", f"--faults={faults}", f"--row={row}", *PACE]
        done = subprocess.run(command, cwd=ROOT).returncode == 0
        return row.read_text().strip() if done and row.exists() else None


def run_hypothesis() -> str | None:
    """One sentence about the long run of the state machine on both databases; None if it failed."""
    took = []
    for ring in ("sqlite", "postgresql"):
        began = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-q", "tests/ledger/test_machine.py"]
        with provide(ring) as environment:
            environment = {**environment, "LONGWATCH_TEST_PROOF": "1"}
            if subprocess.run(command, cwd=ROOT, env=environment).returncode:
                return None
        took.append(f"{ring} {(time.monotonic() - began) / 60:.0f} min")
    return f"the state machine held: {', '.join(took)}"


def append_rows(rows: list[str], text: str) -> str:
    """The report with the rows added at the end of its table."""
    before, _, rest = text.partition(BEGIN)
    table, _, after = rest.partition(END)
    lines = table.strip().splitlines() or [HEAD, RULE]
    return f"{before}{BEGIN}\n" + "\n".join([*lines, *rows]) + f"\n{END}{after}"


def main() -> int:
    """0 when everything held; the rows are written either way, as far as there are any."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.proof")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--scale", type=float, default=1.0, help="of the amounts, for a try")
    parser.add_argument("--without-hypothesis", action="store_true")
    options = parser.parse_args()
    minutes = {name: n for name, n in MINUTES.items()
               if name != "hypothesis" or not options.without_hypothesis}  # fmt: skip
    say(f"proof of {read_commit()}: about {sum(minutes.values()) * options.scale:.0f} min, "
        + ", ".join(f"{name} {n * options.scale:.0f}" for name, n in minutes.items()))  # fmt: skip
    rows = {name: run_chaos(name, options.seed, options.scale) for name in AMOUNTS}
    said = "" if options.without_hypothesis else run_hypothesis()
    REPORT.write_text(append_rows([row for row in rows.values() if row], REPORT.read_text()))
    for name, row in rows.items():
        say(row or f"FAILED {name}: see above; no row is written")
    say("FAILED: the state machine" if said is None else said)
    return int(said is None or None in rows.values())


if __name__ == "__main__":
    sys.exit(main())
