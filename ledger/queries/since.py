"""What ended since a moment: counts of the last COUNT_CAP, and the newest of them."""

from __future__ import annotations

import datetime as dt

from ledger.models import Task
from ledger.queries.seen import see_tasks
from ledger.queries.tasks import LARGE

NEWEST = 200
"""Ended tasks that are looked through for those to name."""


def list_newest_ended(since: dt.datetime) -> list[Task]:
    """The newest tasks that ended since then, without their large columns."""
    rows = see_tasks().filter(finished_at__gt=since).defer(*LARGE)
    return list(rows.order_by("-finished_at")[:NEWEST])
