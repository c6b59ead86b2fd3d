"""`python -m tests.chaos.proof`: the long runs and the measurements, and their rows in
docs/reliability.md.

Almost three hours on a quiet machine of two cores; `--only` picks parts by name.
"""

from __future__ import annotations

import argparse
import dataclasses
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos import bots, report, rerun, stops
from tests.chaos.__main__ import read_commit, say
from tests.chaos.report import make_rule
from tests.conftest import ROOT
from tests.rings import provide

REPORT = ROOT / "docs" / "reliability.md"
HEADS = {"runs": report.HEAD, "bots": bots.HEAD, "reruns": rerun.HEAD, "stops": stops.HEAD}
"""The tables, by the comments around them."""
LONG_FORMS = {"hypothesis": ("tests/ledger/test_machine.py", 20),
              "effects": ("tests/crash/test_site_effects.py", 20),
              "agents": ("tests/agents/test_crash.py tests/agents/test_code_task.py "
                         "tests/agents/test_file_crash.py", 31),
              "workspaces": (
                  "tests/workspaces/test_cost.py tests/workspaces/test_moving.py", 40),
              "retention": ("tests/crash/test_forgetting.py", 300),
              "long-forms": (
                  "tests/crash/test_site_claims.py tests/crash/test_site_fairness.py "
                  "tests/crash/test_site_hosts.py "
                  "tests/crash/test_site_instants.py "
                  "tests/crash/test_site_lanes.py tests/crash/test_site_locks.py "
                  "tests/crash/test_site_pool.py tests/crash/test_site_stalls.py "
                  "tests/crash/test_site_starts.py tests/ledger/test_cancels.py "
                  "tests/ledger/test_concurrency.py "
                  "tests/ledger/test_herds.py tests/ledger/test_lanes.py "
                  "tests/ledger/test_overdue.py "
                  "tests/ledger/test_races_answers.py "
                  "tests/dashboard/test_races_doors.py "
                  "tests/outages/test_postgresql.py tests/poison/test_much.py tests/test_heavy.py "
                  "tests/workspaces/test_cost.py tests/test_benchmarks.py "
                  "tests/test_handoff_bound.py "
                  "tests/upgrades/test_old_code.py", 120)}  # fmt: skip
"""Tests whose long form is a part, and its minutes on both databases."""


@dataclasses.dataclass(frozen=True)
class Part:
    """One command whose rows go to one table."""

    name: str
    minutes: float
    table: str
    module: str
    amounts: dict[str, int]
    """Options that say how much of it."""
    options: tuple[str, ...] = ()

    def run(self, seed: int, scale: float) -> list[str]:
        """Its rows; none if it failed."""
        command = [sys.executable, "-m", self.module, f"--seed={seed}", *self.options]
        command += [f"--{name}={max(1, int(n * scale))}" for name, n in self.amounts.items()]
        with tempfile.TemporaryDirectory(prefix="lw-proof-", dir="/tmp") as folder:
            row = Path(folder) / "row"
            done = subprocess.run([*command, f"--row={row}"], cwd=ROOT).returncode == 0
            return row.read_text().splitlines() if done and row.exists() else []


def _list_parts() -> tuple[Part, ...]:
    pace = ("--clusters=3", "--pace=1,6,4")
    chaos = {"postgresql": (22, 1000, 200), "sqlite": (16, 500, 100)}
    parts = []
    for name, (minutes, kills, faults) in chaos.items():
        amounts = {"kills": kills, "faults": faults}
        options = (f"--database={name}", *pace)
        parts.append(Part(f"chaos-{name}", minutes, "runs", "tests.chaos", amounts, options))
    for name in chaos:
        on, count = (f"--database={name}",), {"count": 100}
        tasks = {"count": 1000}
        parts.append(Part(f"bots-{name}", 6, "bots", "tests.chaos.bots", tasks, on))
        parts.append(Part(f"rerun-{name}", 5, "reruns", "tests.chaos.rerun", count, on))
        parts.append(Part(f"stops-{name}", 12, "stops", "tests.chaos.stops", count, on))
    lease = ("--database=postgresql", "--lease=60", "--heartbeat=15", "--at-once=10")
    parts.append(
        Part("rerun-default-lease", 4, "reruns", "tests.chaos.rerun", {"count": 20}, lease)
    )
    return tuple(parts)


PARTS = _list_parts()


def run_long_form(path: str) -> bool:
    """Of one file or more: whether the long form of these tests held on both databases."""
    for ring in ("sqlite", "postgresql"):
        command = [sys.executable, "-m", "pytest", "-q", *path.split()]
        with provide(ring) as environment:
            environment = {**environment, "LONGWATCH_TEST_PROOF": "1"}
            if subprocess.run(command, cwd=ROOT, env=environment).returncode:
                return False
    return True


def append_rows(rows: list[str], text: str, table: str) -> str:
    """The report with the rows added at the end of that table."""
    begin, end = f"<!-- {table} -->", f"<!-- /{table} -->"
    before, _, rest = text.partition(begin)
    found, _, after = rest.partition(end)
    lines = found.strip().splitlines() or [HEADS[table], make_rule(HEADS[table])]
    return f"{before}{begin}\n" + "\n".join([*lines, *rows]) + f"\n{end}{after}"


def main() -> int:
    """0 when everything held; the rows of what held are written either way, part by part."""
    names = [*(part.name for part in PARTS), *LONG_FORMS]
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.proof")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--scale", type=float, default=1.0, help="of the amounts, for a try")
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    options = parser.parse_args()
    parts = [part for part in PARTS if part.name in options.only]
    minutes = sum(part.minutes * options.scale for part in parts)
    minutes += sum(LONG_FORMS[name][1] for name in LONG_FORMS if name in options.only)
    say(f"proof of {read_commit()}: about {minutes:.0f} min, {', '.join(options.only)}")
    failed = []
    for part in parts:
        rows = part.run(options.seed, options.scale)
        if rows:
            REPORT.write_text(append_rows(rows, REPORT.read_text(), part.table))
        else:
            failed.append(part.name)
    for name, (path, _) in LONG_FORMS.items():
        if name in options.only and not run_long_form(path):
            failed.append(name)
    say(f"FAILED, no row is written: {', '.join(failed)}" if failed else "proof: all held")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
