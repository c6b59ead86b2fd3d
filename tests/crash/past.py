"""Finished tasks of long ago by the thousand, as copies of one that the product itself made."""

from __future__ import annotations

import datetime as dt
from uuid import UUID

from django.db import connection

from ledger import clock
from ledger.models import Artifact, Event, Spend, StepOutput, Task
from ledger.testing import run
from ledger.workflows import Workflow, registered

DAY = 86_400.0


def make_flow(steps: int = 10) -> Workflow:
    """A task of it is `steps` units with an artifact each."""
    flow = Workflow("past")

    def work(ctx: object) -> dict[str, str]:
        ctx.save_artifact(f"{ctx.step}.txt", b"of " + ctx.step.encode())  # type: ignore[attr-defined]
        return {"text": "some 300 bytes of what a step leaves " * 8}

    for number in range(steps):
        flow.step(work, name=f"s{number}")
    return flow


def fill_past(count: int, days: float, steps: int = 10) -> UUID:
    """`count` finished tasks that ended `days` ago and before, a second apart, `steps` units each;
    the oldest of them is the one that the others are copies of. Returns its id."""
    flow = make_flow(steps)
    with registered(flow):
        ended = run(flow, {"of": "long ago", "text": "x" * 200})
    assert ended.status == "completed", ended.task
    end = clock.now(-days * DAY)
    Task.objects.filter(pk=ended.id).update(finished_at=end, created_at=end, started_at=end)
    copy_task(ended.id, count - 1, days)
    return ended.id


def copy_task(source: UUID, count: int, days: float) -> None:
    """By SQL, in statements of 10,000 tasks."""
    postgresql = connection.vendor == "postgresql"
    key = Task._meta.pk.get_db_prep_value(source, connection)
    fresh = "gen_random_uuid()" if postgresql else "lower(hex(randomblob(16)))"
    series = (
        "generate_series(%s, %s) AS series(n)" if postgresql else
        "(WITH RECURSIVE s(n) AS (SELECT %s UNION ALL SELECT n + 1 FROM s WHERE n < %s) "
        "SELECT n FROM s) AS series"
    )  # fmt: skip
    last = clock.read() - dt.timedelta(days=days)
    moment = (
        "CAST(%s AS timestamptz) - make_interval(secs => n)" if postgresql else
        "strftime('%%Y-%%m-%%d %%H:%%M:%%f', %s, '-' || n || ' seconds')"
    )  # fmt: skip
    given = last if postgresql else clock.store(last, "sqlite")
    changed = {"id": fresh, "idempotency_key": "'past-' || n", "finished_at": moment,
               "created_at": moment, "started_at": moment}  # fmt: skip
    with connection.cursor() as cursor:
        for start in range(1, count + 1, 10_000):
            end = min(count, start + 9_999)
            columns, values = write_columns(Task, changed)
            times = [given] * sum(one == moment for one in values)
            cursor.execute(
                f"INSERT INTO longwatch_task ({', '.join(columns)}) "
                f"SELECT {', '.join(values)} FROM longwatch_task AS old, {series} "
                "WHERE old.id = %s",
                [*times, start, end, key],
            )
            number = "CAST(substr(new.idempotency_key, 6) AS integer)"
            for table in (StepOutput, Event, Spend, Artifact):
                own = {"task_id": "new.id"} | ({"id": fresh} if table is Artifact else {})
                columns, values = write_columns(table, own)
                cursor.execute(
                    f"INSERT INTO {table._meta.db_table} ({', '.join(columns)}) "
                    f"SELECT {', '.join(values)} FROM longwatch_task AS new "
                    f"JOIN {table._meta.db_table} AS old ON old.task_id = %s "
                    f"WHERE new.idempotency_key LIKE 'past-%%' AND {number} BETWEEN %s AND %s",
                    [key, start, end],
                )


def write_columns(table: type, changed: dict[str, str]) -> tuple[list[str], list[str]]:
    """(the columns of a table but for a number of its own, what a copy has in each)."""
    names = [field.column for field in table._meta.concrete_fields]  # type: ignore[attr-defined]
    names = [name for name in names if name != "id" or "id" in changed]
    return [f'"{name}"' for name in names], [changed.get(name, f'old."{name}"') for name in names]
