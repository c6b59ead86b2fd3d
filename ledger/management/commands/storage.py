"""`manage.py storage`: what the ledger takes of the disk, by table, and of a task by workflow."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandParser

from ledger.management.measuring import measure_files, measure_tables, measure_workflows
from ledger.management.terminal import LedgerCommand


class Command(LedgerCommand):
    """Reads only; on SQLite it reads the whole file."""

    help = "Show the bytes of every table with its indexes, and of a task of each workflow."

    def add_arguments(self, parser: CommandParser) -> None:
        """For people, or for programs."""
        parser.add_argument("--json", action="store_true", help="one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        """Write two tables."""
        tables, flows, files = measure_tables(), measure_workflows(), measure_files()
        if options["json"]:
            shown = {
                "tables": [table._asdict() for table in tables],
                "workflows": [flow._asdict() for flow in flows],
                "files": {"number": files[0], "size": files[1]},
            }
            self.stdout.write(json.dumps(shown))
            return
        self.stdout.write(
            f"{'table':<32}{'rows':>12}{'MB':>10}{'indexes MB':>12}{'bytes a row':>13}"
        )
        for table in tables:
            whole = table.size + table.indexes
            self.stdout.write(
                f"{table.name:<32}{table.rows:>12,}{table.size / 1e6:>10,.1f}"
                f"{table.indexes / 1e6:>12,.1f}{whole / max(1, table.rows):>13,.0f}"
            )
        self.stdout.write(f"{files[0]:,} files on record, {files[1] / 1e6:,.1f} MB\n")
        head = f"{'a finished task of':<32}{'units':>12}{'bytes':>10}{'a unit':>12}{'files':>13}"
        self.stdout.write(head)
        for one in flows:
            a_unit = one.rows / max(1.0, one.units)
            self.stdout.write(
                f"{one.workflow:<32}{one.units:>12,.1f}{one.rows:>10,.0f}{a_unit:>12,.0f}"
                f"{one.files:>13,.0f}"
            )
