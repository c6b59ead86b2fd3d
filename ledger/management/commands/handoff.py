"""`manage.py handoff TASK`: what the next unit of a task is told."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from django.core.management.base import CommandParser

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

    def handle(self, *args: Any, **options: Any) -> None:
        """Print it."""
        sent = build_handoff(options["task"], options["tokens"])
        text = json.dumps(sent.data, ensure_ascii=False, indent=2, sort_keys=True)
        self.stdout.write(text if options["json"] else sent.markdown, ending="\n" * options["json"])
