"""`manage.py signal TASK NAME`: tell a task what it waits for."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser

from ledger import client
from ledger.management.terminal import LedgerCommand, find_actor


class Command(LedgerCommand):
    """Sends one signal; an early one waits in the task's mailbox."""

    help = "Send a signal to a task. It counts also when the task does not wait for it yet."

    def add_arguments(self, parser: CommandParser) -> None:
        """The task, the signal's name and what it carries."""
        parser.add_argument("task", type=UUID)
        parser.add_argument("name")
        parser.add_argument("--data", metavar="JSON", help="what the signal carries")
        parser.add_argument("--key", help="the same key sends the same signal once")

    def handle(self, *args: Any, **options: Any) -> None:
        """Send it."""
        try:
            data = None if options["data"] is None else json.loads(options["data"])
        except ValueError as error:
            raise CommandError(f"--data is no JSON: {error}") from None
        sent = client.signal(
            options["task"], options["name"], data, options["key"], actor=find_actor()
        )
        self.stdout.write("sent" if sent else "sent before")
