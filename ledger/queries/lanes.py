"""Lanes as people see them: what is set, what runs and waits, what of the budgets is used."""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from django.db import connection
from django.db.models import Count

from ledger import clock, conf, sql, states
from ledger.calls import sees_lane
from ledger.errors import InvalidInput, NotFound
from ledger.lanebudgets import has_budget, read_used
from ledger.lanes import find_closed
from ledger.models import Lane
from ledger.models.lane import BUDGETS
from ledger.queries.paging import DEFAULT_LIMIT, Page, clamp_limit
from ledger.queries.seen import hide_text, see_tasks
from ledger.queries.tasks import COUNT_CAP
from ledger.sql.keys import UNDER_WAY


def list_lanes(limit: int = DEFAULT_LIMIT, cursor: str = "") -> Page[dict[str, Any]]:
    """By name, the lanes that have a row, or a task that runs or waits in the queue."""
    size, running = clamp_limit(limit), _count_running()
    rows = {row.name: row for row in Lane.objects.order_by()}
    names = rows.keys() | running.keys()
    names |= {lane for lane, _, _ in sql.list_groups()}
    last = _read_cursor(cursor)
    found = sorted(name for name in names if sees_lane(name) and name > last)
    shown = _show_lanes(found[:size], rows, running)
    more = len(found) > size
    return Page(shown, _make_cursor(found[size - 1]) if more else None)


def find_lane(name: str) -> dict[str, Any]:
    """One lane; of one that nobody set anything for, the defaults. Raises NotFound."""
    if not 1 <= len(name) <= 100 or "\0" in name or not sees_lane(name):
        raise NotFound("lane", name)
    return _show_lanes([name], Lane.objects.in_bulk([name]), _count_running())[0]


def list_keys(limit: int = DEFAULT_LIMIT) -> list[dict[str, Any]]:
    """The concurrency keys that tasks hold, by workflow and key, the first of them: who holds each,
    and how many wait for it among the first COUNT_CAP queued tasks that hold none. Of tasks that
    the caller sees."""
    columns = ("workflow", "held_key", "concurrency_limit", "pk", "title", "status")
    rows = see_tasks().filter(UNDER_WAY).order_by("workflow", "held_key", "-status", "pk")
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for workflow, key, at_most, task_id, title, status in rows.values_list(*columns)[: 4 * limit]:
        one = found.setdefault(
            (workflow, key),
            {"workflow": workflow, "key": hide_text(key), "at_most": at_most, "tasks": [],
             "waiting": 0},
        )  # fmt: skip
        one["tasks"].append({"id": str(task_id), "title": title, "status": status})
    if found:
        queued = see_tasks().filter(
            status=states.QUEUED, concurrency_key__isnull=False, held_key__isnull=True
        )
        waiting = queued.order_by().values_list("workflow", "concurrency_key")[:COUNT_CAP]
        for pair, count in Counter(waiting).items():
            if pair in found:
                found[pair]["waiting"] = count
    return list(found.values())[:limit]


def _count_running() -> dict[str, int]:
    rows = see_tasks().filter(status=states.RUNNING).order_by()
    return dict(rows.values_list("lane").annotate(Count("pk")))


def _count_queued(names: Sequence[str]) -> dict[str, tuple[int, Any]]:
    """Lane -> how many tasks are queued, up to COUNT_CAP, and since when the oldest of them is."""
    one = f"""SELECT %s, count(*), min(available_at) FROM (SELECT available_at FROM longwatch_task
      WHERE status = '{states.QUEUED}' AND lane = %s LIMIT {COUNT_CAP}) AS waiting"""
    if not names:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join([one] * len(names)), [n for n in names for _ in "12"])
        return {
            lane: (count, at and clock.parse(at)) for lane, count, at in cursor.fetchall() if count
        }


def _show_lanes(
    names: Sequence[str], every: Mapping[str, Lane], running: dict[str, int]
) -> list[dict[str, Any]]:
    rows = {name: every[name] for name in names if name in every}
    closed, queued = find_closed(rows.values()), _count_queued(names)
    used = read_used(name for name, row in rows.items() if has_budget(row))
    shown = []
    for name in names:
        row = rows.get(name) or Lane(name=name, revision=0)
        count, oldest = queued.get(name, (0, None))
        shown.append(
            {
                "name": name, "weight": row.weight, "cap": row.cap, "rate": row.rate,
                "per": row.per, "burst": row.burst, "paused": row.paused,
                "running_one": str(row.let_through) if row.paused and row.let_through else None,
                "closed": closed.get(name, ""),
                **_show_amounts({one: getattr(row, one) for one in BUDGETS}),
                "used": _show_amounts(used[name]) if name in used else None,
                "running": running.get(name, 0), "queued": count, "oldest_queued_at": oldest,
                "revision": row.revision, "updated_at": row.updated_at,
            }
        )  # fmt: skip
    return shown


def _show_amounts(amounts: Mapping[str, int | None]) -> dict[str, Any]:
    return {
        one: conf.format_money(nano) if nano is not None and one.startswith("cost") else nano
        for one, nano in amounts.items()
    }


def _make_cursor(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")


def _read_cursor(cursor: str) -> str:
    try:
        return base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
    except (binascii.Error, ValueError):
        raise InvalidInput("cursor", "is not what an earlier page gave.") from None
