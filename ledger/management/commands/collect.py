"""`manage.py collect`: remove the files that nothing names any more."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from ledger import conf, forgetting, uploads
from ledger.collecting import GRACE, NotCollectable, collect_files
from ledger.management.terminal import LedgerCommand, find_actor
from ledger.retention import expire_artifacts


class Command(LedgerCommand):
    """Looks at every file of the artifact store; harmless beside workers, and again."""

    help = "Remove files of the artifact store that no task and no workspace names."

    def add_arguments(self, parser: CommandParser) -> None:
        """How old they have to be."""
        parser.add_argument(
            "--hours", type=float, default=GRACE / 3600, help="leave younger ones (default 24)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Remove them, and say how many."""
        if not options["hours"] >= 0:
            raise CommandError("--hours takes a number from 0.")
        while uploads.drop_expired():
            pass
        if days := conf.load().artifact_days:
            expired = expire_artifacts(days, find_actor())
            if options["verbosity"]:
                self.stdout.write(
                    f"{expired.of_tasks} artifacts and {expired.uploads} uploads have expired"
                )
        try:
            self._apply_rules(options["verbosity"])
            files, size, young = collect_files(options["hours"] * 3600)
        except NotCollectable:
            if not options["verbosity"]:  # the one that comes by itself
                return
            raise
        if options["verbosity"]:
            self.stdout.write(f"{files} files removed, {size} bytes; {young} are too young")

    def _apply_rules(self, verbosity: int) -> None:
        """Those of LONGWATCH_RETENTION, for half of the time until the next time."""
        hours = conf.load().collect_hours or 24.0
        gone = forgetting.forget(find_actor(), seconds=1800 * hours)
        if verbosity and gone.numbers:
            self.stdout.write(forgetting.describe(gone))
