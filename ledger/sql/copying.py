"""One statement for the outputs of a copied task: thousands of rows, none through Python."""

from __future__ import annotations

import datetime as dt

from django.db import connection

from ledger import clock
from ledger.models import Task

COPY = """
INSERT INTO longwatch_step_output (task_id, seq, round, step_index, step_name, turn, output,
  started_at, finished_at, worker, fence, tokens, cost, log_tail, workspace, copied_from)
SELECT %s, %s + row_number() OVER (ORDER BY seq), 0, step_index, step_name, turn, output,
  %s, %s, worker, 0, 0, 0, '', workspace, {origin}
FROM longwatch_step_output
WHERE task_id = %s AND superseded_in_round IS NULL AND step_index < %s"""

ORIGIN = {
    "postgresql": "jsonb_build_object('task', %s::text, 'seq', seq)",
    "sqlite": "json_object('task', %s, 'seq', seq)",
}


def copy_outputs(source: Task, copy: Task, below: int, now: dt.datetime) -> int:
    """Give `copy` the live outputs of `source` that stand below a step index; returns how many.

    As they are, but under fence 0: this task did no work for them, so they took no time and cost
    nothing. Their numbers follow `copy.event_seq`, which the caller raises.
    """
    vendor, key = connection.vendor, Task._meta.pk
    own, other = (key.get_db_prep_value(task.pk, connection) for task in (copy, source))
    moment = clock.store(now, vendor)
    with connection.cursor() as cursor:
        cursor.execute(
            COPY.format(origin=ORIGIN[vendor]),
            [own, copy.event_seq, moment, moment, str(source.pk), other, below],
        )
        return int(cursor.rowcount)
