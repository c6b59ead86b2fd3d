"""From what a run left to its verdict: the rules about tasks, and those about the run itself."""

from __future__ import annotations

from django.db import connection

from tests.chaos import checker
from tests.chaos.evidence import gather
from tests.chaos.report import Figures, count_up
from tests.chaos.run import Run

LEAST_HITS = 0.5
"""Of the kills, at least this share has to meet a lease; else the run has proved little."""


def judge_run(run: Run) -> tuple[Figures, list[str]]:
    """The figures, and every violation as a line."""
    connection.close()  # the server may have been restarted since it was used
    histories = gather(run.folder, run.options.seed, run.folder.root / "var" / "artifacts")
    violations = checker.judge(histories)
    violations += checker.judge_keys(run.folder.client.read_all(), [h.task for h in histories])
    figures = count_up(run, histories, violations)
    lines = [str(violation) for violation in violations]
    lines += [f"left running: {line}" for line in run.left_running]
    lines += run.stage.problems
    if run.kills and figures.hit_share < LEAST_HITS:
        lines.append(f"only {figures.hits} of {figures.kills} kills met a lease")
    workers = run.options.clusters * run.options.workers
    if figures.false_reclaims > workers:
        lines.append(f"{figures.false_reclaims} reclaims of workers that lived: a mass of them")
    return figures, lines
