"""From what was measured to a table, a verdict, and the page in docs/."""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import os
import platform
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from benchmarks.workers import ROOT

type Measured = dict[tuple[str, str], list[float]]
"""(database, label) -> one figure a round."""

NAMES = {"postgresql": "PostgreSQL", "sqlite": "SQLite"}
BEGIN, END = "<!-- figures: written by make bench -->", "<!-- end of figures -->"
BEGIN_PAGES = "<!-- pages: written by make bench-ui -->"


@dataclasses.dataclass(frozen=True)
class Target:
    """A bound on the median of a figure over the rounds."""

    bound: float
    at_least: bool

    def is_met(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        return f"at {'least' if self.at_least else 'most'} {self.bound:g}"


AT_LEAST, AT_MOST = True, False
TARGETS = {
    ("postgresql", "w1 ratio"): Target(1.25, AT_LEAST),
    ("postgresql", "w1 ratio slice 0"): Target(1.0, AT_LEAST),
    ("sqlite", "w1 ratio"): Target(0.5, AT_LEAST),
    ("postgresql", "peer absurd ratio"): Target(1.8, AT_LEAST),
    ("postgresql", "peer langgraph ratio"): Target(2.5, AT_LEAST),
    ("postgresql", "peer dbos direct ratio"): Target(3.5, AT_LEAST),
    ("postgresql", "peer dbos queue ratio"): Target(6.0, AT_LEAST),
    ("sqlite", "peer dbos direct ratio"): Target(4.0, AT_LEAST),
    ("postgresql", "commits"): Target(1.15, AT_MOST),
    ("postgresql", "w2 ours p50"): Target(3.0, AT_MOST),
    ("postgresql", "w2 ours p99"): Target(10.0, AT_MOST),
    ("sqlite", "w2 ours p50"): Target(8.0, AT_MOST),
    ("sqlite", "w2 ours p99"): Target(30.0, AT_MOST),
    **{
        ("postgresql", f"w3 {case} ratio"): Target(0.9, AT_LEAST)
        for case in ("queued", "scheduled", "unclaimable", "finished", "snapshot")
    },
    ("postgresql", "many missed"): Target(0.0, AT_MOST),
    ("postgresql", "idle cpu"): Target(3.0, AT_MOST),
    ("postgresql", "idle writes"): Target(0.0, AT_MOST),
    ("postgresql", "answers p99"): Target(250.0, AT_MOST),
    ("postgresql", "tree ratio"): Target(3.0, AT_MOST),
    ("sqlite", "tree ratio"): Target(3.0, AT_MOST),
}

PEERS = {
    "absurd": "Absurd 0.5.1",
    "langgraph": "LangGraph 1.2.24, checkpoint-postgres 3.2.0",
    "dbos direct": "DBOS 3.4.0, called directly",
    "dbos queue": "DBOS 3.4.0, its queue",
}

CASES = {
    "queued": "100,000 queued",
    "scheduled": "100,000 scheduled beside",
    "unclaimable": "100,000 that no worker knows beside",
    "finished": "1,000,000 finished beside",
    "snapshot": "100,000 queued, an old snapshot open",
}
"""Of W3, with the sizes of a whole run."""

ROWS = [
    ("w1 raw", "raw loop: steps/s", "{:,.0f}"),
    ("w1 ours", "Longwatch: steps/s", "{:,.0f}"),
    ("w1 ratio", "**Longwatch / raw loop**", "{:.2f}"),
    ("w1 ours slice 0", "Longwatch, released at each unit: steps/s", "{:,.0f}"),
    ("w1 ratio slice 0", "**Longwatch, released at each unit / raw loop**", "{:.2f}"),
    ("peers ours", "Longwatch, beside the peers: steps/s", "{:,.0f}"),
    *(
        row
        for label, words in PEERS.items()
        for row in (
            (f"peer {label}", f"{words}: steps/s", "{:,.0f}"),
            (f"peer {label} ratio", f"**Longwatch / {words}**", "{:.2f}"),
        )
    ),
    ("submit", "one submission meanwhile: ms", "{:.1f}"),
    ("commits", "**commits per unit: a run of twice the tasks less a run**", "{:.2f}"),
    (
        "commits whole",
        "commits per unit: a whole run, with its start and 13 idle seconds",
        "{:.2f}",
    ),
    ("fsyncs", "log fsyncs per unit", "{:.2f}"),
    ("hot", "share of heap-only updates of the task", "{:.2f}"),
    ("w2 raw p50", "raw LISTEN loop: ms to the first instruction, p50", "{:.1f}"),
    ("w2 raw p99", "raw LISTEN loop: p99", "{:.1f}"),
    ("w2 ours p50", "**Longwatch: ms to the first instruction, p50**", "{:.1f}"),
    ("w2 ours p99", "**Longwatch: p99**", "{:.1f}"),
    ("w3 1k", "Longwatch, 1,000 tasks queued: steps/s", "{:,.0f}"),
    *(
        row
        for label, words in CASES.items()
        for row in (
            (f"w3 {label}", f"Longwatch, {words}: steps/s", "{:,.0f}"),
            (f"w3 {label} ratio", f"**{words} / 1,000 queued**", "{:.2f}"),
        )
    ),
    ("many started", "200 workers: seconds until all are there", "{:.0f}"),
    ("many memory", "200 workers, each in a step: MB of all processes (PSS)", "{:,.0f}"),
    ("many each", "the same for each worker: MB", "{:.1f}"),
    ("many connections", "200 workers: sessions of the database", "{:.0f}"),
    ("many late", "200 workers: oldest beat, due every 15 s: seconds", "{:.1f}"),
    ("many missed", "**200 workers: missed beats**", "{:.0f}"),
    ("idle cpu", "**five idle minutes: processor seconds of the whole product**", "{:.2f}"),
    ("idle commits", "idle: transactions a second", "{:.1f}"),
    ("idle beats", "idle: beats written a minute", "{:.1f}"),
    ("idle writes", "**idle: rows written but beats**", "{:.0f}"),
    ("answers p50", "Longwatch: ms from an answer by API to the next unit, p50", "{:.1f}"),
    ("answers p99", "**Longwatch: ms from an answer by API to the next unit, p99**", "{:.1f}"),
    ("tree hash", "hashing a large tree: ms", "{:.0f}"),
    ("tree open", "Longwatch: ms until the next unit has it as its workspace", "{:.0f}"),
    ("tree checkpoint", "Longwatch: ms of its checkpoint, ten files changed", "{:.0f}"),
    ("tree ratio", "**Longwatch: that checkpoint / hashing**", "{:.2f}"),
]


def find_missed(measured: Measured) -> list[str]:
    """One line for each target that was not met."""
    return [
        f"{NAMES[key[0]]} {key[1]} is {statistics.median(measured[key]):.2f}, {target} is asked"
        for key, target in TARGETS.items()
        if measured.get(key) and not target.is_met(statistics.median(measured[key]))
    ]


def write_table(
    measured: Mapping[tuple[str, str], list[float]],
    options: argparse.Namespace,
    versions: list[str],
    minutes: float,
    left_out: Sequence[str] = (),
) -> str:
    """Everything that was measured as Markdown, and on what."""
    lines = [
        f"{write_stamp()}, "
        f"{options.rounds} rounds of {options.tasks} tasks x {options.steps} steps, "
        f"{minutes:.1f} minutes. {describe_machine()}. "
        + ", ".join([*versions, *_list_versions()])
        + ".",
    ]
    for name, title in NAMES.items():
        rows = [
            _write_row(name, label, words, form, measured[name, label])
            for label, words, form in ROWS
            if measured.get((name, label))
        ]
        if rows:
            lines += ["", f"| {title} | median | min to max (n) | target |", "|---|---|---|---|"]
            lines += rows
    if left_out:
        lines += ["", *(f"Left out: {line}" for line in left_out)]
    return "\n".join(lines)


def _write_row(name: str, label: str, words: str, form: str, values: list[float]) -> str:
    middle, least, most = statistics.median(values), min(values), max(values)
    spread = f"{form.format(least)} to {form.format(most)} ({len(values)})"
    return f"| {words} | {form.format(middle)} | {spread} | {TARGETS.get((name, label), '')} |"


def put_into(page: Path, text: str, begin: str = BEGIN) -> None:
    """Replace what stands between the line `begin` and the next END. Raises ValueError."""
    before, mark, rest = page.read_text().partition(begin)
    _, end, after = rest.partition(END)
    if not (mark and end):
        raise ValueError(f"{page} lacks the line {begin!r} or {END!r}")
    page.write_text(f"{before}{begin}\n{text}\n{END}{after}")


def write_stamp() -> str:
    """When, and of which commit."""
    return f"{dt.datetime.now(dt.UTC):%Y-%m-%d}, commit {_read_commit()}"


def _read_commit() -> str:
    def run_git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.strip()

    changed = run_git("status", "--porcelain", "--untracked-files=no", "--", "ledger", "benchmarks")
    commit = run_git("rev-parse", "--short", "HEAD") or "unknown"
    return f"{commit} with changes" if changed else commit


def describe_machine() -> str:
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        found = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = found[0].partition(":")[2].strip() if found else model
    load = os.getloadavg()[1]
    words = f"{os.cpu_count()} cores ({model}), {platform.system()}, load of 5 minutes {load:.1f}"
    if hasattr(os, "SCHED_OTHER") and os.sched_getscheduler(0) != os.SCHED_OTHER:
        words += ", run with real-time priority beside it"
    return words


def _list_versions() -> list[str]:
    packages = [f"{name} {version(name)}" for name in ("Django", "django-q2", "psycopg")]
    return [f"Python {platform.python_version()}", *packages]
