"""The hot statements on SQLite: the same steps as on PostgreSQL, under one BEGIN IMMEDIATE.

The write lock makes every step after BEGIN serial, so there is nothing to skip and no row lock to
take. Statements go to the driver itself: Django's cursor rewrites placeholders on each call.
"""

from __future__ import annotations

import datetime as dt
import functools
import sqlite3
import uuid
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from django.db import transaction

from ledger import clock
from ledger.sql.columns import CLAIM_COLUMNS, write_values
from ledger.sql.turns import atomic as atomic
from ledger.sql.turns import connect, write_lock

if TYPE_CHECKING:
    from ledger.sql import Claimed, Group, Lease, Unit

GUARD = "id = :id AND status = 'running' AND fence = :fence AND lease_owner = :owner"

PLAIN = """NOT cancel_requested AND NOT pause_requested AND used_units + 1 < limit_units
  AND used_tokens_in + used_tokens_out < max(limit_tokens, 1) AND used_cost < max(limit_cost, 1)
  AND wall_until > {now} AND (deadline_at IS NULL OR deadline_at > {now})"""

ADVANCE = """step_index = :next_index, step_name = :next_name, turn = :next_turn,
  progress = coalesce(:progress, progress),
  progress_done = CASE WHEN step_index = :next_index THEN progress_done END,
  progress_total = CASE WHEN step_index = :next_index THEN progress_total END,
  progress_note = CASE WHEN step_index = :next_index THEN progress_note ELSE '' END,
  workspace = CASE WHEN :workspace = '' THEN workspace ELSE :workspace END,
  attempts = 0, reclaims = 0, releases = 0, error = NULL, used_units = used_units + 1,
  revision = revision + 1, last_progress_at = {now}, updated_at = {now}"""

KEEP = """UPDATE longwatch_task SET {advance}, fence = fence + 1, event_seq = event_seq + 1,
    lease_until = {lease}, claimed_at = {now}
  WHERE {guard} AND {plain}"""

# RETURNING goes through a table of its own: twice as long as to look again.
KEPT = "SELECT fence, claimed_at, event_seq FROM longwatch_task WHERE id = ?"

ME = """SELECT lane, {micros} - priority * 60000000 FROM longwatch_task
  WHERE {guard} AND (:finish OR ({plain}))"""

YIELD = """UPDATE longwatch_task SET {advance}, event_seq = event_seq + 1, status = 'queued',
    lease_owner = '', lease_until = NULL, rank = :place, available_at = {now}
  WHERE {guard} RETURNING event_seq"""

FINISH = """UPDATE longwatch_task SET {advance}, event_seq = event_seq + 2, status = 'completed',
    result = :result, lease_owner = '', lease_until = NULL, finished_at = {now},
    cancel_requested = 0, pause_requested = 0,
    wall_left = (julianday(wall_until) - julianday({now})) * 86400, wall_until = NULL
  WHERE {guard} RETURNING event_seq - 1"""

STORE = """INSERT INTO longwatch_step_output (task_id, seq, round, step_index, step_name, turn,
    output, started_at, finished_at, worker, fence, tokens, cost, log_tail, workspace)
  VALUES (:id, :seq, :round, :step_index, :step_name, :turn, :output, :started_at, {now}, :owner,
    :fence, :tokens, :cost, :log_tail, :workspace)"""

ENDED = """INSERT INTO longwatch_event (task_id, seq, at, kind, actor, step, turn, fence, data)
  VALUES (:id, :seq + 1, {now}, 'completed', 'worker:' || :owner, :step_name, :turn, :fence,
    '{{}}')"""

_HEAD = "SELECT id, rank, lane, workflow, workflow_version FROM longwatch_task WHERE"

THIS = f"{_HEAD} status = 'queued' AND id = ?"

HEAD = f"""{_HEAD} status = 'queued' AND lane = ? AND workflow = ? AND workflow_version = ?
  ORDER BY rank, id LIMIT 1"""

TAKE = """UPDATE longwatch_task SET status = 'running', status_reason = '', fence = fence + 1,
    lease_owner = :owner, lease_until = {lease}, claimed_at = {now},
    started_at = coalesce(started_at, {now}), last_progress_at = {now}, updated_at = {now},
    revision = revision + 1
  WHERE id = :pick AND status = 'queued' RETURNING {columns}"""

INSERT = """INSERT INTO longwatch_task ({names}) VALUES ({values})
  RETURNING created_at, available_at, rank, wall_until"""

# What the database fills in, unless it is given.
FILLED = {
    "created_at": "{now}",
    "updated_at": "{now}",
    "last_progress_at": "{now}",
    "available_at": "{now}",
    "rank": "{micros} - :priority * 60000000",
    "wall_until": "{wall}",
}

SUBMITTED = """INSERT INTO longwatch_event (task_id, seq, at, kind, actor, step, turn, fence, data)
  VALUES (:id, :event_seq, :at, 'submitted', :actor, :step_name, 0, 0, :note)"""

BEAT = """UPDATE longwatch_task SET lease_until = {lease}, beat = beat + 1
  WHERE {guard} RETURNING cancel_requested"""

QUEUED = "FROM longwatch_task INDEXED BY longwatch_task_claim WHERE status = 'queued'"
"""By the index whose order is asked for: of itself SQLite takes that of statuses, and sorts."""

NEXT_GROUP = f"""coalesce(
    (SELECT rowid {QUEUED} AND lane = g.lane AND workflow = g.workflow
      AND workflow_version > g.workflow_version ORDER BY workflow_version, rank, id LIMIT 1),
    (SELECT rowid {QUEUED} AND lane = g.lane AND workflow > g.workflow
      ORDER BY workflow, workflow_version, rank, id LIMIT 1),
    (SELECT rowid {QUEUED} AND lane > g.lane
      ORDER BY lane, workflow, workflow_version, rank, id LIMIT 1))"""
"""The row that is first in the group after `g`. One comparison of three columns would say the same,
and read all rows of the lane: SQLite looks for its first column alone."""

GROUPS = f"""
WITH RECURSIVE g(lane, workflow, workflow_version, rank) AS (
  SELECT * FROM (SELECT lane, workflow, workflow_version, rank {QUEUED}
    ORDER BY lane, workflow, workflow_version, rank, id LIMIT 1)
  UNION ALL
  SELECT q.lane, q.workflow, q.workflow_version, q.rank
  FROM g JOIN longwatch_task q ON q.rowid = {NEXT_GROUP})
SELECT lane, workflow, workflow_version, rank FROM g"""


Head = tuple[str, int, str, str, str]
"""The best of a group: id, rank, lane, workflow, version."""


@functools.lru_cache(maxsize=8)
def _write(offset: float) -> dict[str, str]:
    """The texts of all statements; `offset` keys the cache because tests move the clock."""
    now, lease = clock.fragment("sqlite"), clock.fragment("sqlite", ":lease")
    parts = {
        "now": now, "lease": lease, "guard": GUARD, "plain": PLAIN.format(now=now),
        "advance": ADVANCE.format(now=now), "columns": ", ".join(CLAIM_COLUMNS),
        "micros": clock.micros_fragment("sqlite"),
    }  # fmt: skip
    texts = {"keep": KEEP, "me": ME, "yield": YIELD, "finish": FINISH, "store": STORE,
             "ended": ENDED, "take": TAKE, "beat": BEAT}  # fmt: skip
    return {name: text.format(**parts) for name, text in texts.items()}


@functools.lru_cache(maxsize=64)
def _write_insert(given: Collection[str], offset: float) -> str:
    """The same of the insert, which has a form for each set of columns that are given."""
    now, wall = clock.fragment("sqlite"), clock.fragment("sqlite", ":limit_wall")
    filled = {
        column: text.format(now=now, micros=clock.micros_fragment("sqlite"), wall=wall)
        for column, text in FILLED.items()
    }
    values = write_values(given, ":{}", filled)
    return INSERT.format(names=", ".join(values), values=", ".join(values.values()))


def _read_time(text: str | None) -> dt.datetime | None:
    return None if text is None else clock.parse(text)


def _read_row(row: sqlite3.Row | tuple[Any, ...] | None) -> list[Any] | None:
    if row is None:
        return None
    values = list(row)
    values[0] = uuid.UUID(values[0])
    values[-1] = _read_time(values[-1])
    return values


def _pick(raw: sqlite3.Connection, groups: Sequence[Group]) -> Head | None:
    """The head that ranks first, lanes in the order in which `groups` names them."""
    best: Head | None = None
    for group in groups:
        if best is not None and best[2] != group[0]:
            return best
        head = raw.execute(HEAD, group).fetchone()
        if head is not None and (best is None or (head[1], head[0]) < (best[1], best[0])):
            best = head
    return best


def _take(raw: sqlite3.Connection, owner: str, lease: float, pick: str) -> list[Any] | None:
    params = {"owner": owner, "lease": lease, "pick": pick}
    return _read_row(raw.execute(_write(clock.offset)["take"], params).fetchone())


def claim(*, owner: str, groups: Sequence[Group], lease: float) -> Sequence[Any] | None:
    """See `ledger.sql.claim_task`. Looks before it locks: an idle poll takes no write lock."""
    database = connect()
    with database.wrap_database_errors:
        if _pick(database.connection, groups) is None:
            return None
    with write_lock() as raw:
        pick = _pick(raw, groups)
        return None if pick is None else _take(raw, owner, lease, pick[0])


def claim_this(*, owner: str, task: uuid.UUID, lease: float) -> Sequence[Any] | None:
    """See `ledger.sql.claim_this`."""
    with write_lock() as raw:
        return _take(raw, owner, lease, task.hex)


def checkpoint(
    *,
    held: Claimed,
    unit: Unit,
    lease: float,
    groups: Sequence[Group] | None,
    this: uuid.UUID | None = None,
) -> Sequence[Any] | None:
    """See `ledger.sql.checkpoint_unit`."""
    finish = unit.result is not None
    params: dict[str, Any] = {
        "id": held.task_id.hex, "fence": held.fence, "owner": held.owner, "lease": lease,
        "round": held.round, "step_index": held.step_index, "step_name": held.step_name,
        "turn": held.turn, "started_at": clock.store(held.started_at, "sqlite"),
        "output": unit.output, "progress": unit.progress, "next_index": unit.next_index,
        "next_name": unit.next_name, "next_turn": unit.next_turn, "log_tail": unit.log_tail,
        "tokens": unit.tokens, "cost": unit.cost, "workspace": unit.workspace,
        "result": unit.result, "finish": finish, "seq": 0, "place": 0,
    }  # fmt: skip
    texts = _write(clock.offset)
    if groups is None and not finish:
        with write_lock() as raw:
            kept = _keep(raw, texts, params)
        return _read_kept(kept)  # the lock is let go
    with write_lock() as raw:
        me = raw.execute(texts["me"], params).fetchone()
        if me is None:
            return None
        lane, params["place"] = me
        if this is not None:
            pick = raw.execute(THIS, [this.hex]).fetchone()
        else:
            pick = _pick(raw, groups or ())
        if not finish and (pick is None or (pick[2] == lane and pick[1] > params["place"])):
            return _read_kept(_keep(raw, texts, params))
        (params["seq"],) = raw.execute(texts["finish" if finish else "yield"], params).fetchone()
        raw.execute(texts["store"], params)
        if finish:
            raw.execute(texts["ended"], params)
        taken = None if pick is None else _take(raw, held.owner, lease, pick[0])
    own = (held.lane, held.workflow, held.workflow_version)
    if not finish and (pick is None or pick[2:] != own):
        wake()  # else who is idle could have had the one that was taken
    return [None, None, *(taken or ())]


def _keep(
    raw: sqlite3.Connection, texts: dict[str, str], params: dict[str, Any]
) -> tuple[int, str] | None:
    """The new fence, and when it was; None: it may not be kept."""
    if raw.execute(texts["keep"], params).rowcount != 1:
        return None
    fence, claimed_at, params["seq"] = raw.execute(KEPT, [params["id"]]).fetchone()
    raw.execute(texts["store"], params)
    return fence, claimed_at


def _read_kept(kept: tuple[int, str] | None) -> Sequence[Any] | None:
    return kept and (kept[0], clock.parse(kept[1]))


def insert_task(*, row: dict[str, Any], actor: str, note: str) -> Sequence[Any]:
    """See `ledger.sql.insert_task`: created_at, available_at, rank, wall_until."""
    with write_lock() as raw:
        text = _write_insert(frozenset(row), clock.offset)
        at, start, rank, wall = raw.execute(text, row).fetchone()
        raw.execute(SUBMITTED, row | {"at": at, "actor": actor, "note": note})
    if row["status"] == "queued":
        wake()
    return clock.parse(at), clock.parse(start), rank, _read_time(wall)


def beat(*, owner: str, held: Sequence[Lease], lease: float) -> list[tuple[Any, ...]]:
    """See `ledger.sql.beat_leases`."""
    text = _write(clock.offset)["beat"]
    beaten = []
    with write_lock() as raw:
        for h in held:
            params = {"id": h.task_id.hex, "fence": h.fence, "owner": owner, "lease": lease}
            row = raw.execute(text, params).fetchone()
            if row is not None:
                beaten.append((h.task_id, h.fence, bool(row[0])))
    return beaten


def groups() -> list[tuple[Any, ...]]:
    """See `ledger.sql.list_heads`."""
    database = connect()
    with database.wrap_database_errors:
        return list(database.connection.execute(GROUPS).fetchall())


def fetch_row(text: str, params: Sequence[Any], *, prepare: bool) -> Sequence[Any]:
    """See `ledger.sql.fetch_row`. The driver keeps its statements prepared by itself."""
    database = connect()
    with database.wrap_database_errors:
        row: Sequence[Any] = database.connection.execute(text, params).fetchone()
    return row


def warm_up() -> None:
    """See `ledger.sql.warm_up`. A statement is ready in microseconds here."""


def wake() -> None:
    """A datagram to the workers of this database once the caller's transaction is committed."""
    from ledger.wakeups import nudge

    transaction.on_commit(nudge)
