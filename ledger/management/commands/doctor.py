"""`manage.py doctor`: what is wrong with this installation, and the cure."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from ledger.management.diagnosis import diagnose
from ledger.management.terminal import LedgerCommand


class Command(LedgerCommand):
    """A line per look; below each problem its cure."""

    help = "Look for problems and name their cures. Exit 1 when there is one."

    def add_arguments(self, parser: CommandParser) -> None:
        """How far it looks."""
        parser.add_argument(
            "--deep", action="store_true", help="read every artifact and file in the store, too"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Raises SystemExit(1) for a problem."""
        found = diagnose(deep=options["deep"])
        for one in found:
            self.stdout.write(f"{'FAIL' if one.cure else 'ok  '} {one.subject}: {one.seen}")
            if one.cure:
                self.stdout.write(f"     {one.cure}")
        if any(one.cure for one in found):
            raise SystemExit(1)
