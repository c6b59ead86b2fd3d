"""`manage.py submit WORKFLOW`: a task from the terminal; stdout is its id alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser

from ledger import client, queries
from ledger.errors import InvalidInput
from ledger.management.following import follow_task
from ledger.management.storing import put_file
from ledger.management.terminal import EXIT_CODES, LedgerCommand, find_actor, read_object


class Command(LedgerCommand):
    """Submit, and with --wait stay until the task is finished."""

    help = (
        "Submit a task. Prints its id. With --wait the exit code tells how it ended: "
        "0 completed, 3 failed, 4 dead, 5 cancelled."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """What a submission over the API takes, too."""
        parser.add_argument("workflow")
        parser.add_argument("--workflow-version", metavar="VERSION")
        parser.add_argument("--input", metavar="JSON", default="{}", help="an object; @FILE, @-")
        parser.add_argument(
            "--file", metavar="NAME=PATH", action="append", default=[],
            help="upload PATH and put the artifact's id into the input as NAME",
        )  # fmt: skip
        parser.add_argument("--title", default="")
        parser.add_argument("--lane", default="default")
        parser.add_argument("--priority", type=int, default=0, help="-100 to 100")
        parser.add_argument("--tag", metavar="TAG", action="append", default=[])
        parser.add_argument("--key", help="the same key and body give the same task again")
        parser.add_argument("--wait", action="store_true", help="until the task is finished")

    def handle(self, *args: Any, **options: Any) -> None:
        """Raises SystemExit with the exit code of --wait."""
        actor = find_actor()
        workflow = queries.find_workflow(options["workflow"], options["workflow_version"])
        data = read_object(options["input"], "--input")
        for given in options["file"]:
            name, path = _split_file(given)
            data[name] = str(put_file(path, path.name, actor).pk)
        task_id = client.submit(
            workflow,
            data,
            options["key"],
            actor=actor,
            title=options["title"],
            lane=options["lane"],
            priority=options["priority"],
            tags=options["tag"],
        )
        self.stdout.write(str(task_id))
        self.stdout.flush()
        task = queries.show_task(task_id)
        if task["status"] == "queued" and not task["claimable"]["ok"]:
            self.hint(f"It waits: {task['claimable']['why']}.")
        if not options["wait"]:
            self.hint(f"Watch it: manage.py watch {task_id}")
            return
        ended = follow_task(task_id, self._show_questions)
        raise SystemExit(EXIT_CODES[ended["status"]])

    def _show_questions(self, task: dict[str, Any], events: list[dict[str, Any]]) -> None:
        for event in events:
            if event["kind"] == "approval_requested":
                self.hint(f"It asks: {event['data'].get('subject', '')}")
                self.hint(f"Answer: manage.py answer {event['data'].get('approval')} approve")


def _split_file(given: str) -> tuple[str, Path]:
    name, equals, path = given.partition("=")
    if not (name and equals and path):
        raise InvalidInput("--file", f"{given!r} is not NAME=PATH.")
    if not Path(path).is_file():
        raise InvalidInput("--file", f"{path} is no file.")
    return name, Path(path)
