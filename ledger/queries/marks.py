"""What tells a page that polls that nothing was written since it was answered: one statement.

Every change of a task leaves a row (an event or an output) or is seen on one of the few tasks that
run: their claims, beats and reports, and what time alone makes of them. What shows in none of it (a
count of the last day that an old task drops out of, a person's groups) is found within SECONDS.
"""

from __future__ import annotations

from django.db import connection

from ledger import clock, states
from ledger.calls import read_call
from ledger.queries.fleet import count_live_seconds

SECONDS = 120
"""A mark is good for no longer: then the page is looked at anew, changed or not. That is one poll
of 24 where one comes every 5 s, so that 95 % of them stay cheap."""


def mark_ledger(*, beats: bool = False) -> str:
    """Whatever changes with anything that the present caller is shown; `beats`: with each beat of
    a worker too.

    Rows get their numbers before they are committed, so the highest one misses what is under way:
    PostgreSQL names those transactions, each by the lock on itself; SQLite has one at a time.
    """
    vendor, now = connection.vendor, clock.fragment(connection.vendor)
    under_way = "''"
    if vendor == "postgresql":
        under_way = (
            "(SELECT string_agg(transactionid::text, ',') FROM pg_locks "
            "WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock')"
        )
    live = clock.fragment(vendor, f"-{count_live_seconds():f}")
    workers = _join(
        "count(*)", "sum(CASE WHEN draining THEN 1 ELSE 0 END)",
        f"sum(CASE WHEN seen_at > {live} THEN 1 ELSE 0 END)", *(["max(seen_at)"] if beats else []),
    )  # fmt: skip
    past, soon = clock.fragment(vendor, "-600"), clock.fragment(vendor, "600")
    stalled = clock.fragment(vendor, "-stall_after")
    counted = _join(
        "count(*)", "sum(fence)", "sum(revision)", "sum(beat)", "sum(used_cost)",
        f"sum(CASE WHEN lease_until < {now} THEN 1 ELSE 0 END)",
        f"sum(CASE WHEN last_progress_at < {stalled} THEN 1 ELSE 0 END)",
    )  # fmt: skip
    rows = [
        under_way,
        f"{clock.micros_fragment(vendor)} / {SECONDS * 1_000_000}",
        "(SELECT max(id) FROM longwatch_event)",
        "(SELECT max(id) FROM longwatch_step_output)",
        "(SELECT max(id) FROM longwatch_audit_entry)",
        "(SELECT max(finished_at) FROM longwatch_task WHERE finished_at IS NOT NULL)",
        # A decision takes effect without a row of its own, when its time to undo is over.
        f"(SELECT {_join('count(*)', 'min(available_at)')} FROM longwatch_task "
        f"WHERE status = '{states.WAITING}' AND available_at BETWEEN {past} AND {soon})",
        f"(SELECT {counted} FROM longwatch_task WHERE status = '{states.RUNNING}')",
        f"(SELECT {workers} FROM longwatch_worker WHERE stopped_at IS NULL)",
    ]
    statement = f"SELECT {', '.join(rows)}"
    with connection.cursor() as cursor:
        # Without values nothing is put in, so the signs of SQLite's strftime stand as they are.
        cursor.execute(statement)
        found = cursor.fetchall()
    call = read_call()
    return repr((found, call.actor, sorted(call.lanes or ()), call.lanes is None, call.payload))


def _join(*figures: str) -> str:
    return " || '.' || ".join(f"coalesce(CAST({one} AS text), '')" for one in figures)
