"""Statuses of a task, their reasons, and every edge between them.

`EDGES` is the whole state machine: `transitions/` has one function per edge, named here, and
docs/state-machine.md repeats the table for people; a test compares the three.
"""

from __future__ import annotations

from typing import NamedTuple

QUEUED = "queued"
SCHEDULED = "scheduled"
RUNNING = "running"
WAITING = "waiting"
PAUSED = "paused"
COMPLETED = "completed"
FAILED = "failed"
DEAD = "dead"
CANCELLED = "cancelled"

STATUSES = (QUEUED, SCHEDULED, RUNNING, WAITING, PAUSED, COMPLETED, FAILED, DEAD, CANCELLED)
FINISHED = frozenset({COMPLETED, FAILED, DEAD, CANCELLED})
"""Ended. `failed` and `dead` are left only by an operator, the others never."""
FINAL = frozenset({COMPLETED, CANCELLED})
UNFINISHED = frozenset(STATUSES) - FINISHED
WALL_RUNS = frozenset({QUEUED, RUNNING, SCHEDULED})
"""Statuses in which the wall limit counts, unless a timer holds the task: see `counts_wall`."""

# Reasons: bare codes, the same on both databases. The text is in Task.error.
RETRIES_EXHAUSTED = "retries_exhausted"
RECLAIMS_EXHAUSTED = "reclaims_exhausted"
REPAIRS_EXHAUSTED = "repairs_exhausted"
LIMIT_UNITS = "limit_units"
LIMIT_TOKENS = "limit_tokens"
LIMIT_COST = "limit_cost"
LIMIT_WALL = "limit_wall"
LIMIT_DEADLINE = "limit_deadline"
APPROVAL_EXPIRED = "approval_expired"
SIGNAL_EXPIRED = "signal_expired"
UNSERIALISABLE_OUTPUT = "unserialisable_output"
WORKFLOW_FAILED = "workflow_failed"
APPROVAL_REJECTED = "approval_rejected"
APPROVAL = "approval"
DECIDED = "decided"
SIGNAL = "signal"
CHILDREN = "children"
BUDGET = "budget"
BACKOFF = "backoff"
SLEEP = "sleep"
NOT_BEFORE = "not_before"
RELEASED = "released"
PAUSED_BY_OPERATOR = "paused_by_operator"
VERSION_MISFIT = "version_misfit"
CANCELLED_BY_OPERATOR = "cancelled_by_operator"
CANCELLED_BY_PARENT = "cancelled_by_parent"
COMPENSATING = "compensating"
COMPENSATION_FAILED = "compensation_failed"

LIMIT_REASONS = frozenset({LIMIT_UNITS, LIMIT_TOKENS, LIMIT_COST, LIMIT_WALL, LIMIT_DEADLINE})
FOR_PEOPLE = frozenset({APPROVAL, DECIDED})
UNDONE_FIRST = frozenset({FAILED, CANCELLED})
"""Ends before which the effects that have a compensation are undone."""
TIMERS = frozenset({SLEEP, NOT_BEFORE})
"""Reasons of `scheduled` that somebody asked for, unlike a backoff."""


def counts_wall(status: str, reason: str) -> bool:
    """True while the wall limit counts: queued, running, backing off; never waiting or paused.

    Nor while a timer runs: a task that sleeps for two weeks has used none of its seven days.
    """
    return status in WALL_RUNS and reason not in TIMERS


class Edge(NamedTuple):
    """One arrow of the diagram: `function` of `transitions/` moves `source` to `target`."""

    function: str
    source: str
    target: str
    by: str


def _edges(function: str, sources: str, targets: str, by: str) -> list[Edge]:
    return [Edge(function, s, t, by) for s in sources.split() for t in targets.split()]


def _loops(function: str, sources: str, by: str) -> list[Edge]:
    return [Edge(function, s, s, by) for s in sources.split()]


_UNHELD = "queued scheduled waiting paused"
_BY_HAND = "queued scheduled paused cancelled"

EDGES: tuple[Edge, ...] = (
    Edge("submit_task", "", QUEUED, "client"),
    Edge("submit_task", "", SCHEDULED, "client"),
    Edge("fork_task", "", QUEUED, "operator"),
    *_loops("fork_task", " ".join(STATUSES), "operator"),
    *_edges("claim_task", QUEUED, RUNNING, "worker"),
    *_edges("checkpoint_unit", RUNNING, "running queued completed", "holder"),
    *_edges("settle_unit", RUNNING, "queued scheduled waiting paused cancelled dead", "holder"),
    *_edges("ask_approval", RUNNING, "waiting queued cancelled", "holder"),
    *_edges("await_signal", RUNNING, "waiting queued paused completed cancelled", "holder"),
    *_edges("spawn_children", RUNNING, "waiting queued cancelled", "holder"),
    *_edges("await_budget", RUNNING, "waiting queued cancelled", "holder"),
    *_edges("fail_task", RUNNING, "queued failed", "holder"),
    *_edges("bury_task", RUNNING, "queued waiting cancelled dead", "holder"),
    *_edges("record_failure", RUNNING, "queued scheduled waiting cancelled dead", "holder"),
    *_edges("repair_task", RUNNING, "queued waiting paused cancelled dead", "holder"),
    *_edges("release_task", RUNNING, "queued scheduled waiting paused cancelled dead", "holder"),
    *_edges("misfit_task", RUNNING, "queued paused cancelled", "holder"),
    *_edges("settle_undo", RUNNING, "queued paused failed dead cancelled", "holder"),
    *_edges("reclaim_task", RUNNING, "queued paused cancelled dead", "sweeper"),
    *_edges("promote_due", SCHEDULED, "queued paused", "sweeper"),
    *_edges("apply_decision", WAITING, "queued paused completed failed", "sweeper"),
    *_edges("go_on_after_limit", WAITING, "queued scheduled waiting paused", "approver"),
    Edge("end_by_limit", WAITING, DEAD, "approver"),
    *_edges("expire_approval", WAITING, "queued paused failed dead", "sweeper"),
    *_loops("expire_approval", WAITING, "sweeper"),
    *_loops("remind_approval", WAITING, "sweeper"),
    *_edges("send_signal", WAITING, "queued paused completed", "client"),
    *_loops("send_signal", f"{_UNHELD} running", "client"),
    *_edges("expire_signal", WAITING, "queued paused completed dead", "sweeper"),
    *_edges("join_children", WAITING, "queued paused completed failed", "sweeper"),
    *_edges("go_on_with_budget", WAITING, "queued paused", "sweeper"),
    *_edges("cancel_child", _UNHELD, "queued cancelled", "sweeper"),
    *_loops("cancel_child", RUNNING, "sweeper"),
    *_edges("enforce_limit", _UNHELD, "waiting dead", "sweeper"),
    *_loops("decide_approval", WAITING, "approver"),
    *_loops("undo_decision", WAITING, "approver"),
    *_edges("cancel_task", f"{_UNHELD} failed dead", "queued cancelled", "operator"),
    *_loops("cancel_task", RUNNING, "operator"),
    *_edges("stop_task", RUNNING, "queued cancelled", "operator"),
    *_edges("compensate_task", "failed dead", QUEUED, "operator"),
    *_edges("pause_task", QUEUED, PAUSED, "operator"),
    *_loops("pause_task", "running scheduled waiting", "operator"),
    *_edges("resume_task", PAUSED, QUEUED, "operator"),
    *_loops("resume_task", "running scheduled waiting", "operator"),
    *_edges("retry_task", "scheduled failed dead running", QUEUED, "operator"),
    *_edges("retry_task", "failed dead", WAITING, "operator"),
    *_edges("restart_task", f"{_UNHELD} running failed dead", QUEUED, "operator"),
    *_edges("edit_output", f"{_UNHELD} running failed dead", QUEUED, "operator"),
    *_loops("change_task", f"{_UNHELD} running failed dead", "operator"),
    *_loops("steer_task", f"{_UNHELD} running", "operator"),
    *_loops("withdraw_message", f"{_UNHELD} running failed dead", "operator"),
    *_loops("mark_effect", " ".join(STATUSES), "operator"),
    *_edges("extend_limits", DEAD, "queued waiting", "operator"),
    *_loops("extend_limits", f"{_UNHELD} running", "operator"),
    *_edges("edit_task", "running waiting failed dead", _BY_HAND, "admin"),
    *_edges("edit_task", QUEUED, "scheduled paused cancelled", "admin"),
    *_edges("edit_task", SCHEDULED, "queued paused cancelled", "admin"),
    *_edges("edit_task", PAUSED, "queued scheduled cancelled", "admin"),
    *_loops("edit_task", f"{_UNHELD} completed failed dead cancelled", "admin"),
)

_ARROWS = frozenset((edge.function, edge.source, edge.target) for edge in EDGES)


def allow_edge(function: str, source: str, target: str) -> bool:
    """True when the diagram has this arrow."""
    return (function, source, target) in _ARROWS
