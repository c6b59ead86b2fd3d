"""`manage.py watch ID`: a task's progress until it is finished."""

from __future__ import annotations

import sys
from typing import Any
from uuid import UUID

from django.core.management.base import CommandParser
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ledger.management.following import describe_event, describe_result, follow_task
from ledger.management.terminal import EXIT_CODES, LedgerCommand

LINES_SHOWN = 12


class Command(LedgerCommand):
    """Live on a terminal, a line per event anywhere else."""

    help = (
        "Watch a task until it is finished; the exit code tells how it ended: "
        "0 completed, 3 failed, 4 dead, 5 cancelled."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """The task."""
        parser.add_argument("task", metavar="ID", type=UUID)

    def handle(self, *args: Any, **options: Any) -> None:
        """Raises SystemExit with the exit code."""
        terminal = sys.stdout.isatty()
        ended = (self._watch_live if terminal else self._watch_lines)(options["task"])
        raise SystemExit(EXIT_CODES[ended["status"]])

    def _watch_lines(self, task_id: UUID) -> dict[str, Any]:
        def show(task: dict[str, Any], events: list[dict[str, Any]]) -> None:
            for event in events:
                self.stdout.write(describe_event(event))
            self.stdout.flush()

        ended = follow_task(task_id, show)
        for line in describe_result(ended):
            self.stdout.write(line)
        self.stdout.write(f"{ended['status']}  {ended['status_reason']}".rstrip())
        return ended

    def _watch_live(self, task_id: UUID) -> dict[str, Any]:
        lines: list[str] = []
        with Live(console=Console(file=sys.stdout), refresh_per_second=4) as live:

            def show(task: dict[str, Any], events: list[dict[str, Any]]) -> None:
                lines.extend(describe_event(event) for event in events)
                del lines[:-LINES_SHOWN]
                live.update(_draw(task, lines))

            ended = follow_task(task_id, show)
        for line in describe_result(ended):
            self.stdout.write(line)
        return ended


def _draw(task: dict[str, Any], lines: list[str]) -> Group:
    """The task as a few lines: state, bar, last events. Text of others is never markup."""
    step, report = task["step"], task["progress_report"]
    done = task["total_steps"] if task["status"] == "completed" else step["index"]
    facts = Table.grid(padding=(0, 2))
    facts.add_row(Text(task["title"] or task["workflow"], style="bold"), Text(task["id"]))
    facts.add_row(Text(f"{task['status']} {task['status_reason']}".strip()), Text(_tell_why(task)))
    facts.add_row(
        Text(f"step {step['index'] + 1} of {task['total_steps']}: {step['name']}, "
             f"turn {step['turn']}, round {task['round']}"),
        ProgressBar(total=max(1, task["total_steps"]), completed=done, width=30),
    )  # fmt: skip
    if report["note"] or report["total"]:
        count = f"{report['done']:g} of {report['total']:g} " if report["total"] else ""
        facts.add_row(Text(f"{count}{report['note']}"), Text(""))
    return Group(facts, Text(""), *(Text(line, no_wrap=True) for line in lines))


def _tell_why(task: dict[str, Any]) -> str:
    if task["error"]:
        return str(task["error"].get("message", ""))[:200]
    if task["lease"]:
        return f"held by {task['lease']['owner']}"
    why = str(task["claimable"]["why"])
    return "" if why == task["status"] else why
