"""`manage.py handoff TASK`: what the next unit of a task is told, or what one was told."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser

from ledger import queries
from ledger.handoff import build_handoff
from ledger.management.terminal import LedgerCommand


class Command(LedgerCommand):
    """Markdown, or JSON."""

    help = "Print the hand-off of a task: what its next unit is told of the work before it."

    def add_arguments(self, parser: CommandParser) -> None:
        """The task, the form and the bound."""
        parser.add_argument("task", type=UUID)
        parser.add_argument("--json", action="store_true", help="as data")
        parser.add_argument("--tokens", type=int, metavar="N", help="at most; of four bytes each")

        parser.add_argument("--sent", type=int, metavar="ID", help="what a unit was told instead")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print it."""
        if options["sent"] is not None:
            return self.stdout.write(read_sent(options["task"], options["sent"]), ending="")
        sent = build_handoff(options["task"], options["tokens"])
        text = json.dumps(sent.data, ensure_ascii=False, indent=2, sort_keys=True)
        self.stdout.write(text if options["json"] else sent.markdown, ending="\n" * options["json"])


def read_sent(task_id: UUID, key: int) -> str:
    """The Markdown. Raises NotFound, and CommandError where only the digest is kept."""
    row = queries.find_handoff(task_id, key)
    if not row["text"]:
        raise CommandError(f"Its text is no longer kept; its SHA-256 was {row['digest']}.")
    return str(row["text"])
