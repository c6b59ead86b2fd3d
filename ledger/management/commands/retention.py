"""`manage.py retention`: the rules by which contents and tasks go, and what would go now."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from ledger import forgetting
from ledger.keeping import read_rules
from ledger.management.terminal import LedgerCommand, find_actor


class Command(LedgerCommand):
    """Changes nothing without --run. Harmless beside workers, and again; may be killed."""

    help = "Show the rules of LONGWATCH_RETENTION and what they would remove now."

    def add_arguments(self, parser: CommandParser) -> None:
        """Whether to do it, and for how long."""
        parser.add_argument("--run", action="store_true", help="remove it")
        parser.add_argument("--minutes", type=float, default=60, help="at most so long (60)")

    def handle(self, *args: Any, **options: Any) -> None:
        """Count, or remove and say how much."""
        rules = read_rules()
        for number, rule in enumerate(rules, 1):
            self.stdout.write(f"{number}. {rule.describe()}")
        if not rules:
            self.stdout.write("LONGWATCH_RETENTION has no rules: everything is kept.")
            return
        run = options["run"]
        gone = forgetting.forget(find_actor(), seconds=60 * options["minutes"], dry=not run)
        self.stdout.write(f"{'Removed' if run else 'Would remove'}: {forgetting.describe(gone)}")
