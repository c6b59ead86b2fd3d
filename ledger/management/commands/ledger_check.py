"""`manage.py ledger_check`: does the configured database keep the ledger's contract?"""

from __future__ import annotations

from typing import Any

from ledger.management.checking import delete_rows, run_rule
from ledger.management.rules import RULES
from ledger.management.terminal import LedgerCommand


class Command(LedgerCommand):
    """One line per rule; beside live workers, leaving nothing behind."""

    help = (
        "Try to break the ledger's rules on the configured database, beside live workers, with "
        "tasks that only this command claims. One line per rule; exit 1 when one is broken."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        """Raises SystemExit(1) for a broken rule."""
        broken = 0
        try:
            for name, rule in RULES:
                why = run_rule(rule)
                broken += bool(why)
                self.stdout.write(f"FAIL {name}: {why}" if why else f"ok   {name}")
                self.stdout.flush()
        finally:
            delete_rows()
        if broken:
            raise SystemExit(1)
