"""Many copies of a few tasks, by one statement for each table: rows never pass through Python.

A copy keeps every value but its names, and its times are moved as a whole, so what held of the
task holds of it. Unlike `fork_task` this invents a past; only `manage.py demo_data` does so.
"""

from __future__ import annotations

import datetime as dt
import random
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from django.db import connection
from django.db.models import DateTimeField, Field, Model

from ledger import hours, sql
from ledger.management.plays import Play
from ledger.models import Approval, ApprovalVote, Event, Spend, StepOutput, Task
from ledger.transitions.deleting import KEY

NAMES = ("invoice-run", "code-migration", "weekly-report", "data-import")
LANES = ("default", "default", "default", "nightly", "customers")
SUBJECTS = ("Reconcile", "Migrate", "Summarise", "Import", "Classify", "Translate")
THINGS = (
    "invoices",
    "billing service",
    "support mail",
    "sensor data",
    "contracts",
    "release notes",
)
WORKERS = tuple(f"demo-host-{host}:{100 + slot}" for host in range(4) for slot in range(4))
DAYS = 14
"""How far back finished tasks go."""
HOURS = 6
"""How far back unfinished ones go."""


class Copy(NamedTuple):
    """One row of the plan."""

    source: Any
    target: Any
    shift: int
    """Whole seconds, so that no time of SQLite's milliseconds is rounded."""
    title: str
    workflow: str
    lane: str
    worker: str
    key: str


def plan_copies(plays: Sequence[Play], count: int, chance: random.Random) -> list[Copy]:
    """Draw `count` copies of the plays by their shares."""
    began = dict(Task.objects.filter(pk__in=[one.task for one in plays])
                 .values_list("pk", "created_at"))  # fmt: skip
    drawn = chance.choices(plays, [one.share for one in plays], k=count)
    now = dt.datetime.now(dt.UTC)
    plan = []
    for play in drawn:
        reach = HOURS * 3600 if play.lasts else DAYS * 86_400
        at = now - dt.timedelta(seconds=chance.uniform(600, reach))
        target = _make_id_of(at, chance)
        plan.append(Copy(
            _store_id(play.task), _store_id(target), round((at - began[play.task]).total_seconds()),
            f"{chance.choice(SUBJECTS)} {chance.choice(THINGS)} {chance.randrange(10_000)}",
            chance.choice(NAMES), chance.choice(LANES), chance.choice(WORKERS), f"{KEY}{target}",
        ))  # fmt: skip
    return plan


def copy_tasks(plan: Sequence[Copy]) -> int:
    """Write the copies in one commit; how many outputs and events they have."""
    with sql.atomic(), connection.cursor() as cursor:
        asked = _write_plan(cursor, plan)
        _copy(cursor, Task, "id", _task_columns())
        targets = Task.objects.filter(pk__in=[one.target for one in plan])
        hours.note_change(*targets.values_list("finished_at", flat=True))
        rows = _copy(cursor, StepOutput, "task_id", {"worker": "p.worker"})
        rows += _copy(cursor, Event, "task_id", _event_columns(), join=_EVENT_JOIN)
        _copy(cursor, Spend, "task_id", {})
        if asked:
            _copy(cursor, Approval, "task_id", {"id": "a.target"}, join=_APPROVAL_JOIN)
            _copy(cursor, ApprovalVote, "", {"approval_id": "a.target"}, join="")
    return rows


def _write_plan(cursor: Any, plan: Sequence[Copy]) -> bool:
    kind = Task._meta.pk.db_type(connection)
    cursor.execute("DROP TABLE IF EXISTS demo_plan")
    cursor.execute("DROP TABLE IF EXISTS demo_asked")
    cursor.execute(
        f"CREATE TEMPORARY TABLE demo_plan (source {kind}, target {kind} PRIMARY KEY, "
        "shift double precision, title text, workflow text, lane text, worker text, key text)"
    )
    cursor.execute(
        f"CREATE TEMPORARY TABLE demo_asked (source {kind}, told text, task {kind}, "
        f"target {kind}, shift double precision)"
    )
    _insert(cursor, "demo_plan", plan)
    questions: dict[Any, list[uuid.UUID]] = {}
    sources = {one.source for one in plan}
    for task, found in Approval.objects.filter(task__in=list(sources)).values_list("task", "pk"):
        questions.setdefault(_store_id(task), []).append(found)
    asked = [
        (_store_id(one), str(one), copy.target, _store_id(uuid.uuid4()), copy.shift)
        for copy in plan for one in questions.get(copy.source, ())
    ]  # fmt: skip
    _insert(cursor, "demo_asked", asked)
    return bool(asked)


def _insert(cursor: Any, table: str, rows: Iterable[Sequence[Any]]) -> None:
    found = list(rows)
    if found:
        marks = ", ".join(["%s"] * len(found[0]))
        cursor.executemany(f"INSERT INTO {table} VALUES ({marks})", found)


_EVENT_JOIN = "LEFT JOIN demo_asked a ON a.task = p.target AND a.told = {told}"
_APPROVAL_JOIN = "JOIN demo_asked a ON a.task = p.target AND a.source = r.id"
_TOLD = {"postgresql": "r.data->>'approval'", "sqlite": "json_extract(r.data, '$.approval')"}
_NAMED = {
    "postgresql": "jsonb_set(r.data, '{{approval}}', to_jsonb(a.target::text))",
    "sqlite": "json_set(r.data, '$.approval', ({hyphens}))",
}
_HYPHENS = (
    "substr(a.target, 1, 8) || '-' || substr(a.target, 9, 4) || '-' || substr(a.target, 13, 4)"
    " || '-' || substr(a.target, 17, 4) || '-' || substr(a.target, 21)"
)


def _task_columns() -> dict[str, str]:
    micros = "CAST(p.shift * 1000000 AS bigint)"
    return {
        "id": "p.target", "title": "p.title", "workflow": "p.workflow", "lane": "p.lane",
        "idempotency_key": "p.key", "rank": f"r.rank + {micros}",
    }  # fmt: skip


def _event_columns() -> dict[str, str]:
    named = _NAMED[connection.vendor].format(hyphens=_HYPHENS)
    return {
        "actor": "CASE WHEN r.actor LIKE 'worker:%%' THEN 'worker:' || p.worker ELSE r.actor END",
        "data": f"CASE WHEN a.told IS NULL THEN r.data ELSE {named} END",
    }


def _copy(cursor: Any, model: type[Model], link: str, own: dict[str, str], join: str = "") -> int:
    """Insert a copy of each row that hangs on a source, with the values of `own`."""
    columns, values = [], []
    for field in model._meta.concrete_fields:
        if field.primary_key and str(field.column) not in own:
            continue  # the database counts on
        columns.append(f'"{field.column}"')
        values.append(own.get(str(field.column)) or _value_of(field))
    table = model._meta.db_table
    where = f"JOIN demo_plan p ON p.source = r.{link}"
    if not link:  # hangs on a question
        where = (
            "JOIN demo_asked a ON a.source = r.approval_id JOIN demo_plan p ON p.target = a.task"
        )
    join = join.format(told=_TOLD[connection.vendor])
    cursor.execute(
        f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(values)} "
        f"FROM {table} r {where} {join}",
        [],
    )
    return int(cursor.rowcount)


def _value_of(field: Field[Any, Any]) -> str:
    if field.column == "task_id":
        return "p.target"
    column = f'r."{field.column}"'
    if not isinstance(field, DateTimeField):
        return column
    if connection.vendor == "postgresql":
        return f"{column} + p.shift * interval '1 second'"
    return f"strftime('%%Y-%%m-%%d %%H:%%M:%%f', {column}, p.shift || ' seconds')"


def _make_id_of(at: dt.datetime, chance: random.Random) -> uuid.UUID:
    """A UUIDv7 of that moment."""
    stamp = int(at.timestamp() * 1000)
    rest, tail = chance.getrandbits(12), chance.getrandbits(62)
    return uuid.UUID(int=(stamp << 80) | (0x7 << 76) | (rest << 64) | (0b10 << 62) | tail)


def _store_id(key: uuid.UUID) -> Any:
    return Task._meta.pk.get_db_prep_value(key, connection)
