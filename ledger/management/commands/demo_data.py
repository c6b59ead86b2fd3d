"""`manage.py demo_data --tasks 100000`: a ledger as it looks after weeks of work."""

from __future__ import annotations

import logging
import random
import time
from argparse import ArgumentParser
from typing import Any

from django.db import connection

from ledger.errors import InvalidInput
from ledger.management.copying import copy_tasks, plan_copies
from ledger.management.plays import perform_all
from ledger.management.terminal import LedgerCommand

AT_ONCE = 1_000
"""Tasks in one commit."""


class Command(LedgerCommand):
    """Runs a dozen tasks for real and copies them, with other names and times."""

    help = (
        "Fill the ledger with tasks of the last two weeks: about a dozen are run here, the rest "
        "are copies of them under other names and times. They carry the tag demo. For trying the "
        "pages out; not for a ledger that is in use."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """How many, and the seed of what is drawn."""
        parser.add_argument("--tasks", type=int, default=1_000)
        parser.add_argument("--seed", type=int, default=1)

    def handle(self, *args: Any, **options: Any) -> None:
        """Raises InvalidInput for a count that makes no sense."""
        total = options["tasks"]
        if not 1 <= total <= 10_000_000:
            raise InvalidInput("--tasks", "takes 1 to 10000000")
        began, chance = time.monotonic(), random.Random(options["seed"])
        logging.disable(logging.WARNING)  # what fails there is meant to
        try:
            plays = perform_all()
        finally:
            logging.disable(logging.NOTSET)
        rows = done = 0
        while done < total:
            plan = plan_copies(plays, min(AT_ONCE, total - done), chance)
            rows += copy_tasks(plan)
            done += len(plan)
            if done % (10 * AT_ONCE) == 0 and done < total:
                self.hint(f"{done:,} of {total:,} tasks, {time.monotonic() - began:.0f} s")
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")
        self.stdout.write(
            f"{total:,} tasks, {rows:,} outputs and events, {time.monotonic() - began:.0f} s"
        )
