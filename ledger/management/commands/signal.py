"""`manage.py signal TASK NAME`: tell a task what it waits for."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.core.management.base import CommandParser

from ledger import client
from ledger.management.terminal import LedgerCommand, find_actor, read_value


class Command(LedgerCommand):
    """Sends one signal; an early one waits in the task's mailbox."""

    help = "Send a signal to a task. It counts also when the task does not wait for it yet."

    def add_arguments(self, parser: CommandParser) -> None:
        """The task, the signal's name and what it carries."""
        parser.add_argument("task", type=UUID)
        parser.add_argument("name")
        parser.add_argument("--data", metavar="JSON", help="what the signal carries, or @FILE")
        parser.add_argument("--key", help="the same key sends the same signal once")

    def handle(self, *args: Any, **options: Any) -> None:
        """Send it."""
        data = None if options["data"] is None else read_value(options["data"], "--data")
        sent = client.signal(
            options["task"], options["name"], data, options["key"], actor=find_actor()
        )
        self.stdout.write("sent" if sent else "sent before")
