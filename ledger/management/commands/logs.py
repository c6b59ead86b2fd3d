"""`manage.py logs ID`: what a task's attempts logged and printed."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

from django.core.management.base import CommandParser

from ledger import queries, states
from ledger.management.terminal import LedgerCommand

LOOK_SECONDS = 0.5


class Command(LedgerCommand):
    """One attempt's log; with --follow each, one after the other, until the task is finished."""

    help = "Print the log of the unit that runs, or of the last attempt there was."

    def add_arguments(self, parser: CommandParser) -> None:
        """The task, and what of it."""
        parser.add_argument("task", metavar="ID", type=UUID)
        parser.add_argument("--unit", metavar="STEP:TURN", default="", help="this unit's")
        parser.add_argument("--fence", type=int, default=0, help="this attempt's")
        parser.add_argument(
            "--follow", "-f", action="store_true", help="go on until it is finished"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Logs are text of others, cleaned before they were stored: safe for a terminal."""
        task_id, unit = options["task"], options["unit"]
        if options["follow"]:
            return self._follow(task_id, unit, options["fence"])
        found = queries.read_log(task_id, unit=unit, fence=options["fence"], whole=True)
        if found["fence"]:
            self.hint(
                _name(queries.Attempt(*(found[k] for k in ("fence", "step", "turn", "state"))))
            )
        self.stdout.write(found["text"], ending="")

    def _follow(self, task_id: UUID, unit: str, fence: int) -> None:
        """From the attempt that is last now, or of `fence`, to the end of the task."""
        latest = queries.list_attempts(task_id, unit=unit, newest=1)
        seen = fence - 1 if fence else max(0, latest[-1].fence - 1) if latest else 0
        while True:
            # Read before the attempts: what is finished now begins no other.
            over = queries.show_task(task_id)["status"] in states.FINISHED
            for attempt in queries.list_attempts(task_id, unit=unit, after=seen):
                self.hint(_name(attempt))
                self._follow_attempt(task_id, attempt.fence)
                seen, over = attempt.fence, False
            if over:
                return
            time.sleep(LOOK_SECONDS)

    def _follow_attempt(self, task_id: UUID, fence: int) -> None:
        after = 0
        while True:
            found = queries.read_log(task_id, fence=fence, after=after)
            self.stdout.write(found["text"], ending="")
            self.stdout.flush()
            if found["next"] == after:
                if found["state"] != "running":
                    return
                time.sleep(LOOK_SECONDS)
            after = found["next"]


def _name(attempt: queries.Attempt) -> str:
    return f"— {attempt.step}:{attempt.turn}, fence {attempt.fence}, {attempt.state}"
