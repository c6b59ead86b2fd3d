"""The hot statements on PostgreSQL: one statement each, prepared on the worker's connection."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import psycopg
from django.db import DEFAULT_DB_ALIAS, connection, connections, transaction

from ledger import clock
from ledger.sql.columns import CLAIM_COLUMNS, by_partial_index, write_values
from ledger.sql.driver import find_prepared, number_names

if TYPE_CHECKING:
    from uuid import UUID

    from ledger.sql import Claimed, Group, Lease, Unit

CHANNEL = "longwatch"

HEADS_PER_GROUP = 16
"""Candidates of a group: more than the rows that other workers can hold locked at one instant. The
lanes whose turn comes later are candidates too, lest somebody's long transaction over the heads of
the first lane keeps them waiting."""

LOWEST = -(2**63)
"""Before every rank."""

GUARD = """t.id = %(id)s AND coalesce(t.status, '') = 'running' AND t.fence = %(fence)s
  AND t.lease_owner = %(owner)s"""
# coalesce, here and below: no index but the key's is then an alternative. On an empty table the
# plan would be to look at all that run, beside a million finished tasks at all that have not ended.

# The next unit may start: no flag, and every limit has something left. A limit of 0 tokens or
# money forbids spending, not running, hence greatest(…, 1).
PLAIN = """NOT t.cancel_requested AND NOT t.pause_requested
  AND t.used_units + 1 < t.limit_units
  AND t.used_tokens_in + t.used_tokens_out < greatest(t.limit_tokens, 1)
  AND t.used_cost < greatest(t.limit_cost, 1)
  AND coalesce(t.wall_until > {now}, FALSE) AND (t.deadline_at IS NULL OR t.deadline_at > {now})"""

# What a finished unit changes on its task whatever comes next. Nothing here is indexed.
ADVANCE = """step_index = %(next_index)s, step_name = %(next_name)s, turn = %(next_turn)s,
  progress = coalesce(%(progress)s::jsonb, t.progress),
  progress_done = CASE WHEN t.step_index = %(next_index)s THEN t.progress_done END,
  progress_total = CASE WHEN t.step_index = %(next_index)s THEN t.progress_total END,
  progress_note = CASE WHEN t.step_index = %(next_index)s THEN t.progress_note ELSE '' END,
  workspace = CASE WHEN %(workspace)s = '' THEN t.workspace ELSE %(workspace)s END,
  attempts = 0, reclaims = 0, releases = 0, error = NULL, used_units = t.used_units + 1,
  revision = t.revision + 1, last_progress_at = {now}, updated_at = {now}"""

STORE = """INSERT INTO longwatch_step_output (task_id, seq, round, step_index, step_name, turn,
    output, started_at, finished_at, worker, fence, tokens, cost, log_tail, workspace)
  SELECT id, seq, %(round)s, %(step_index)s, %(step_name)s, %(turn)s, %(output)s::jsonb,
    %(started_at)s, {now}, %(owner)s, %(fence)s, %(tokens)s, %(cost)s, %(log_tail)s, %(workspace)s
  FROM {source}"""

KEEP = """
WITH me AS (
  UPDATE longwatch_task t SET {advance}, fence = t.fence + 1, event_seq = t.event_seq + 1,
    lease_until = {lease}, claimed_at = {now}
  WHERE {guard} AND {plain}
  RETURNING t.id, t.event_seq AS seq)
{store} RETURNING fence + 1, finished_at"""

PICK = """SELECT t.id, t.rank, t.lane FROM longwatch_task t JOIN (
    SELECT h.id, g.place FROM unnest(%(lanes)s::text[], %(workflows)s::text[], %(versions)s::text[],
        %(floors)s::bigint[], %(places)s::int[]) AS g(lane, workflow, version, floor, place)
    CROSS JOIN LATERAL (
      SELECT q.id, q.rank FROM longwatch_task q WHERE q.status = 'queued' AND q.lane = g.lane
        AND q.workflow = g.workflow AND q.workflow_version = g.version AND q.rank >= g.floor
      ORDER BY q.rank, q.id LIMIT {heads}) h
    ORDER BY g.place, h.rank, h.id LIMIT 4 * {heads}) c ON c.id = t.id
  WHERE coalesce(t.status, '') = 'queued' {when}
  ORDER BY c.place, t.rank, t.id LIMIT 1 FOR UPDATE OF t SKIP LOCKED"""
# coalesce: no index on the status is then an alternative to the candidates' ids. Right after a
# burst of submissions the statistics say that one row is queued, and the join would read them all.

PICK_ONE = """SELECT t.id, t.rank, t.lane FROM longwatch_task t WHERE t.status = 'queued'
    AND t.lane = %(lane)s AND t.workflow = %(workflow)s AND t.workflow_version = %(version)s
    AND t.rank >= %(floor)s::bigint {when}
  ORDER BY t.rank, t.id LIMIT 1 FOR UPDATE OF t SKIP LOCKED"""
"""The same of a single group: the index gives the order, at a quarter of the cost."""

PICK_THIS = """SELECT t.id, t.rank, t.lane FROM longwatch_task t
  WHERE coalesce(t.status, '') = 'queued' AND t.id = %(task)s {when} FOR UPDATE OF t SKIP LOCKED"""

TAKE = """status = 'running', status_reason = '', fence = t.fence + 1, lease_owner = %(owner)s,
  lease_until = {lease}, claimed_at = {now}, started_at = coalesce(t.started_at, {now}),
  last_progress_at = {now}, updated_at = {now}, revision = t.revision + 1"""

CLAIM = """
WITH pick AS MATERIALIZED ({pick})
UPDATE longwatch_task t SET {take} FROM pick WHERE t.id = pick.id RETURNING {columns}"""

ENDED = """ended AS (
  INSERT INTO longwatch_event (task_id, seq, at, kind, actor, step, turn, fence, data)
  SELECT id, seq + 1, {now}, 'completed', 'worker:' || %(owner)s, %(step_name)s, %(turn)s,
    %(fence)s, '{{}}'::jsonb FROM settled),
"""

# The shape that holds under races: `me` locks the own row and is all that may block; `pick` runs
# after it and skips what others hold; nothing after `pick` can wait for anyone.
SETTLE = """
WITH me AS MATERIALIZED (
  SELECT t.id, t.lane, {micros} - t.priority * 60000000::bigint AS place FROM longwatch_task t
  WHERE {guard} AND ({finish} OR ({plain})) FOR UPDATE),
pick AS MATERIALIZED ({pick}),
keep AS MATERIALIZED (
  SELECT me.id, me.place, NOT {finish} AND NOT EXISTS (
    SELECT 1 FROM pick WHERE pick.lane <> me.lane OR pick.rank <= me.place) AS stays FROM me),
settled AS (
  UPDATE longwatch_task t SET {advance}, event_seq = t.event_seq + 1 + {finish}::int,
    status = CASE WHEN {finish} THEN 'completed' WHEN k.stays THEN 'running' ELSE 'queued' END,
    result = CASE WHEN {finish} THEN %(result)s::jsonb ELSE t.result END,
    fence = t.fence + k.stays::int,
    lease_owner = CASE WHEN k.stays THEN t.lease_owner ELSE '' END,
    lease_until = CASE WHEN k.stays THEN {lease} END,
    claimed_at = CASE WHEN k.stays THEN {now} ELSE t.claimed_at END,
    rank = CASE WHEN k.stays OR {finish} THEN t.rank ELSE k.place END,
    available_at = CASE WHEN k.stays OR {finish} THEN t.available_at ELSE {now} END,
    finished_at = CASE WHEN {finish} THEN {now} END,
    cancel_requested = t.cancel_requested AND NOT {finish},
    pause_requested = t.pause_requested AND NOT {finish},
    wall_left = CASE WHEN {finish} THEN extract(epoch FROM t.wall_until - {now}) END,
    wall_until = CASE WHEN NOT {finish} THEN t.wall_until END
  FROM keep k WHERE t.id = k.id
  RETURNING t.id, t.fence, t.claimed_at, k.stays, t.status, t.lane, t.workflow,
    t.workflow_version, t.event_seq - {finish}::int AS seq),
stored AS ({store}),
{ended}taken AS (
  UPDATE longwatch_task t SET {take} FROM pick, keep WHERE t.id = pick.id AND NOT keep.stays
  RETURNING {columns})
SELECT CASE WHEN s.stays THEN s.fence END, CASE WHEN s.stays THEN s.claimed_at END, taken.*,
  CASE WHEN s.status = 'queued' AND (s.lane, s.workflow, s.workflow_version)
    IS DISTINCT FROM (taken.lane, taken.workflow, taken.workflow_version)
  THEN pg_notify('{channel}', '')::text END
FROM settled s LEFT JOIN taken ON true"""
# Nobody is woken for one task in the place of another of its kind: who is idle could have had that.

INSERT = """
WITH made AS (INSERT INTO longwatch_task ({names}) VALUES ({values})
  RETURNING id, status, step_name, event_seq, created_at, available_at, rank, wall_until),
noted AS (
  INSERT INTO longwatch_event (task_id, seq, at, kind, actor, step, turn, fence, data)
  SELECT id, event_seq, created_at, 'submitted', %(actor)s, step_name, 0, 0, %(note)s::jsonb
  FROM made)
SELECT created_at, available_at, rank, wall_until, pg_backend_pid(),
  CASE WHEN status = 'queued' THEN pg_notify('{channel}', '')::text END
FROM made"""

# What the database fills in, unless it is given.
FILLED = {
    "created_at": "{now}",
    "updated_at": "{now}",
    "last_progress_at": "{now}",
    "available_at": "{now}",
    "rank": "{micros} - %(priority)s::smallint * 60000000::bigint",
    "wall_until": "{wall}",
}

BEAT = """
UPDATE longwatch_task t SET lease_until = {lease}, beat = t.beat + 1
FROM unnest(%(ids)s::uuid[], %(fences)s::bigint[]) AS b(id, fence)
WHERE t.id = b.id AND t.status = 'running' AND t.fence = b.fence AND t.lease_owner = %(owner)s
RETURNING t.id, t.fence, t.cancel_requested"""

GROUPS = """
WITH RECURSIVE g AS (
  (SELECT lane, workflow, workflow_version, rank FROM longwatch_task WHERE status = 'queued'
   ORDER BY lane, workflow, workflow_version, rank LIMIT 1)
  UNION ALL
  SELECT n.* FROM g CROSS JOIN LATERAL (
    SELECT q.lane, q.workflow, q.workflow_version, q.rank FROM longwatch_task q
    WHERE q.status = 'queued'
      AND (q.lane, q.workflow, q.workflow_version) > (g.lane, g.workflow, g.workflow_version)
    ORDER BY q.lane, q.workflow, q.workflow_version, q.rank LIMIT 1) n)
SELECT lane, workflow, workflow_version, rank FROM g"""


HOT = ("claim_one", "keep", "yield_one", "finish_one", "claim", "yield", "finish")
"""What is made ready while a worker is idle, in the order in which it is wanted."""


@functools.lru_cache(maxsize=64)
def _write(name: str, offset: float) -> tuple[str, list[str]]:
    """A statement with $1, $2 … and the names of its parameters in that order; `offset` keys the
    cache because tests move the clock.

    Numbered here, once: psycopg would look for the names in each call, and it does not keep what it
    found in a text as long as the settle statement, which cost 0.2 ms each time.
    """
    now = clock.fragment("postgresql")
    lease = clock.fragment("postgresql", "%(lease)s")
    advance, plain = ADVANCE.format(now=now), PLAIN.format(now=now)
    take, micros = TAKE.format(now=now, lease=lease), clock.micros_fragment("postgresql")
    columns = ", ".join(f"t.{column}" for column in CLAIM_COLUMNS)
    common = {"now": now, "lease": lease, "advance": advance, "plain": plain, "guard": GUARD}
    after_me = "AND (SELECT count(*) FROM me) = 1"
    picks = {"": by_partial_index(PICK), "_one": by_partial_index(PICK_ONE), "_this": PICK_THIS}
    texts = {
        "keep": KEEP.format(**common, store=STORE.format(now=now, source="me")),
        **{
            f"claim{which}": CLAIM.format(
                pick=pick.format(heads=HEADS_PER_GROUP, when=""), take=take, columns=columns
            )
            for which, pick in picks.items()
        },
        # Two texts and no parameter: a generic plan takes both courses along at each execution.
        **{
            f"{kind}{which}": SETTLE.format(
                **common,
                pick=pick.format(heads=HEADS_PER_GROUP, when=after_me),
                take=take,
                columns=columns,
                channel=CHANNEL,
                store=STORE.format(now=now, source="settled"),
                micros=micros,
                finish=finish,
                ended=ENDED.format(now=now) if kind == "finish" else "",
            )
            for which, pick in picks.items()
            for kind, finish in (("yield", "FALSE"), ("finish", "TRUE"))
        },
        "beat": BEAT.format(lease=lease),
        "groups": by_partial_index(GROUPS),
    }
    return number_names(texts[name])


@functools.lru_cache(maxsize=64)
def _write_insert(given: Collection[str], offset: float) -> tuple[str, list[str]]:
    """The same of the insert, which has a form for each set of columns that are given."""
    now = clock.fragment("postgresql")
    wall = clock.fragment("postgresql", "%(limit_wall)s")
    filled = {
        column: text.format(now=now, micros=clock.micros_fragment("postgresql"), wall=wall)
        for column, text in FILLED.items()
    }
    values = write_values(given, "%({})s", filled)
    return number_names(
        INSERT.format(names=", ".join(values), values=", ".join(values.values()), channel=CHANNEL)
    )


def _execute(name: str, params: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Run a worker's hot statement."""
    text, names = _write(name, clock.offset)
    return _run(text, [params[key] for key in names], prepare=True)


def _run(text: str, params: Sequence[Any], *, prepare: bool) -> list[tuple[Any, ...]]:
    """Run a statement on Django's own connection and in its transaction, if any.

    Django's cursor binds on the client, which can't be prepared; planning the settle statement
    anew each time costs more than running it. `prepare` is for workers, and for connections that
    are known to be no pooler's.
    """
    database = connections[DEFAULT_DB_ALIAS]
    if database.connection is None:
        database.ensure_connection()
    raw = database.connection
    try:
        prepared = find_prepared(raw, make=prepare)
        if prepared is not None:
            return prepared.run(text, params)
        return psycopg.RawCursor(raw).execute(text, params, prepare=False).fetchall()
    except psycopg.Error:
        with database.wrap_database_errors:
            raise


def fetch_row(text: str, params: Sequence[Any], *, prepare: bool) -> Sequence[Any]:
    """See `ledger.sql.fetch_row`."""
    return _run(text, params, prepare=prepare)[0]


def _execute_pick(
    name: str, params: dict[str, Any], groups: Sequence[Group]
) -> list[tuple[Any, ...]]:
    """Run a statement that picks from `groups`, in the form for one or for several of them."""
    if len(groups) == 1:
        lane, workflow, version = groups[0]
        one = {
            "lane": lane, "workflow": workflow, "version": version, "floor": _read_floor(groups[0]),
        }  # fmt: skip
        return _execute(f"{name}_one", params | one)
    lanes = list(dict.fromkeys(group[0] for group in groups))
    several = {
        "lanes": [g[0] for g in groups],
        "workflows": [g[1] for g in groups],
        "versions": [g[2] for g in groups],
        "floors": [_read_floor(g) for g in groups],
        "places": [lanes.index(g[0]) for g in groups],
    }
    return _execute(name, params | several)


def _read_floor(group: Group) -> int:
    return getattr(group, "floor", LOWEST)


def claim(*, owner: str, groups: Sequence[Group], lease: float) -> Sequence[Any] | None:
    """See `ledger.sql.claim_task`."""
    return _find_one(_execute_pick("claim", {"owner": owner, "lease": lease}, groups))


def claim_this(*, owner: str, task: UUID, lease: float) -> Sequence[Any] | None:
    """See `ledger.sql.claim_this`."""
    return _find_one(_execute("claim_this", {"owner": owner, "lease": lease, "task": task}))


def _find_one(rows: list[tuple[Any, ...]]) -> Sequence[Any] | None:
    return rows[0] if rows else None


def checkpoint(
    *,
    held: Claimed,
    unit: Unit,
    lease: float,
    groups: Sequence[Group] | None,
    this: UUID | None = None,
) -> Sequence[Any] | None:
    """See `ledger.sql.checkpoint_unit`."""
    params: dict[str, Any] = {
        "id": held.task_id, "fence": held.fence, "owner": held.owner, "lease": lease,
        "round": held.round, "step_index": held.step_index, "step_name": held.step_name,
        "turn": held.turn, "started_at": held.started_at, "output": unit.output,
        "progress": unit.progress, "next_index": unit.next_index, "next_name": unit.next_name,
        "next_turn": unit.next_turn, "log_tail": unit.log_tail, "tokens": unit.tokens,
        "cost": unit.cost, "workspace": unit.workspace,
    }  # fmt: skip
    if groups is None and unit.result is None:
        return _find_one(_execute("keep", params))
    params["result"] = unit.result
    kind = "yield" if unit.result is None else "finish"
    if this is not None:
        rows = _execute(f"{kind}_this", params | {"task": this})
    else:
        rows = _execute_pick(kind, params, groups or ())
    return rows[0][:-1] if rows else None


def insert_task(*, row: dict[str, Any], actor: str, note: str) -> Sequence[Any]:
    """See `ledger.sql.insert_task`: created_at, available_at, rank, wall_until."""
    text, names = _write_insert(frozenset(row), clock.offset)
    params = row | {"actor": actor, "note": note}
    (made,) = _run(text, [params[key] for key in names], prepare=False)
    *times, pid, _ = made
    raw = connections[DEFAULT_DB_ALIAS].connection
    # A pooler makes up the process that it names at the start. Where that is the one that answers,
    # there is none, and what follows on this connection may be prepared.
    if find_prepared(raw, make=False) is None and pid == raw.info.backend_pid:
        find_prepared(raw, make=True)
    return times


def beat(*, owner: str, held: Sequence[Lease], lease: float) -> list[tuple[Any, ...]]:
    """See `ledger.sql.beat_leases`."""
    params = {
        "owner": owner, "lease": lease,
        "ids": [h.task_id for h in held], "fences": [h.fence for h in held],
    }  # fmt: skip
    return _execute("beat", params)


def groups() -> list[tuple[Any, ...]]:
    """See `ledger.sql.list_heads`."""
    return _execute("groups", {})


def warm_up() -> None:
    """See `ledger.sql.warm_up`: of no task and no group, each of them does nothing. And the first
    five executions are no longer planned one by one, for their values, of which no plan depends."""
    database = connections[DEFAULT_DB_ALIAS]
    database.ensure_connection()
    prepared = find_prepared(database.connection, make=True)
    if prepared is None or prepared.is_warm:
        return
    with connection.cursor() as cursor:
        cursor.execute("SET plan_cache_mode = force_generic_plan")
    for name in HOT:
        _execute(name, dict.fromkeys(_write(name, clock.offset)[1]))
    prepared.is_warm = True


def atomic() -> AbstractContextManager[None]:
    """See `ledger.sql.atomic`."""
    return transaction.atomic()


def wake() -> None:
    """NOTIFY in the caller's transaction: delivered at its commit, never before."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, '')", [CHANNEL])
