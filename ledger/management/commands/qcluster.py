"""`manage.py qcluster`: the workers as a service of their own."""

from __future__ import annotations

import sys
from typing import Any

from django.core.checks import Tags
from django.core.management.base import BaseCommand, CommandError, CommandParser

from ledger.checks import TAG, check_workers
from ledger.cluster import supervise


class Command(BaseCommand):
    """Stands in for django-q2's command of this name, since this app is listed before it."""

    help = (
        "Run the workers in the foreground. SIGTERM or Ctrl-C to this process: units in hand "
        "finish within LONGWATCH_DRAIN_SECONDS; a later second one gives their leases back at once."
    )

    # Not those of addresses, forms and templates, which load all the pages: 0.7 s of the start.
    requires_system_checks = (TAG, Tags.models, Tags.caches)

    def add_arguments(self, parser: CommandParser) -> None:
        """`--workers` wins over LONGWATCH_WORKERS."""
        parser.add_argument("--workers", type=int, default=None, help="number of workers")

    def handle(self, *args: Any, **options: Any) -> None:
        """Exit 0 drained, 69 a part died by itself, 70 something had to be killed."""
        workers: int | None = options["workers"]
        if workers is not None and workers < 1:
            raise CommandError(f"--workers is {workers}; it takes a number from 1.")
        for warning in check_workers():
            self.stderr.write(str(warning))
        sys.exit(supervise(workers))
