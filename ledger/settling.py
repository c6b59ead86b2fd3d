"""How an attempt's outcome reaches the ledger, also when the database does not answer at once."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psutil
from django.db import DatabaseError, InterfaceError

from ledger import artifacts, canonical, clock, queries, retry, secrets, sql, states, workflows
from ledger.context import Context
from ledger.deadlines import cancel_hard_stop
from ledger.durability import forget_connections
from ledger.errors import AlreadySettled, LeaseLost, LedgerError
from ledger.failures import describe_failure
from ledger.models import Task, Worker
from ledger.models.worker import DEAD_ALL, DEADS, DRAIN_ALL
from ledger.queries.fleet import MISSED_BEATS
from ledger.sql import Claimed, Unit
from ledger.sql.lanes import await_lock
from ledger.transitions import asking, children, holder, waits
from ledger.workflows import (
    Again,
    AskApproval,
    Finish,
    Outcome,
    Repair,
    Sleep,
    Spawn,
    Step,
    WaitFor,
    Workflow,
)

if TYPE_CHECKING:
    from ledger.runner import Engine

log = logging.getLogger(__name__)

type Plan = Callable[[], Any]
"""A write that settles an attempt; returns what the worker holds next (Claimed) or None."""

SHOWN = ("subject", "body", "payload", "form", "proposal")
"""The parts of a question that people are shown."""

LOOK_SECONDS = 0.25
LONGEST_WAIT = 5.0
"""Between two tries while the database is away; never longer than a heartbeat, so that the unit is
in before a sweeper, which waits for two, may take the task for lost."""


def plan_outcome(
    engine: Engine, held: Claimed, ctx: Context, workflow: Workflow, step: Step, outcome: Outcome
) -> Plan:
    """The write that `outcome` asks for. Artifacts are stored here, before it.

    Raises Unserialisable, InvalidInput, and what the artifact store or the workspace raises.
    """
    position = (held.step_index, held.step_name)
    here = workflow.index_of(step.name)
    last = here + 1 >= len(workflow.steps)
    if isinstance(outcome, Again):
        unit = _make_unit(engine, held, ctx, outcome.data, (*position, held.turn + 1))
        if outcome.after > 0:
            return lambda: holder.settle_unit(held, unit, delay=outcome.after)
        return lambda: _checkpoint(engine, held, unit)
    if isinstance(outcome, Repair):
        unit = _make_unit(engine, held, ctx, outcome.data, (*position, held.turn))
        to = workflow.index_of(outcome.to)
        feedback = secrets.mask_json(outcome.feedback)
        text = canonical.dump_json(feedback, "feedback")
        if len(text) > engine.tunables.inline_output_bytes:
            feedback = artifacts.spill(held, "feedback", feedback)
        named = [one.name for one in workflow.steps[to:]]
        return lambda: holder.repair_task(
            held, unit, to_index=to, to_name=named[0], feedback=feedback, named=named
        )
    if isinstance(outcome, AskApproval):
        shown = {name: secrets.mask_json(getattr(outcome, name)) for name in SHOWN}
        for name, value in shown.items():
            canonical.check_json(value, name)
        ask = dataclasses.replace(outcome, **shown)
        attached = asking.describe_attached(held.task_id, ask)
        unit = _make_unit(engine, held, ctx, outcome.data, (*position, held.turn))
        return lambda: asking.ask_approval(held, unit, ask, workflow, attached) and None
    if isinstance(outcome, WaitFor) or (isinstance(outcome, Spawn) and outcome.children):
        again = isinstance(outcome, Spawn) and outcome.then == "again"
        there = (*position, held.turn + again)
        if not last and not again:
            there = (here + 1, workflow.steps[here + 1].name, 0)
        unit = _make_unit(engine, held, ctx, outcome.data, there)
        if isinstance(outcome, WaitFor):
            return lambda: waits.await_signal(held, unit, outcome, last=last)
        for child in outcome.tasks:
            ctx.grant.require("lanes", held.lane if child.lane is None else child.lane)
        drafts = children.draft_children(held, outcome)
        return lambda: children.spawn_children(held, unit, drafts, outcome, last=last)
    if isinstance(outcome, Finish) or last:
        given = outcome.result if isinstance(outcome, Finish) else None
        unit = _make_unit(
            engine, held, ctx, outcome.data, (*position, held.turn), finish=True, result=given
        )
        return lambda: _checkpoint(engine, held, unit)
    # Counted on from where the task stands: its version's list of steps may have changed, and a
    # place that a live output has can't be taken twice.
    following = (held.step_index + 1, workflow.steps[here + 1].name, 0)
    unit = _make_unit(engine, held, ctx, outcome.data, following)
    if isinstance(outcome, Sleep):
        delay, until = outcome.seconds or 0.0, outcome.until
        return lambda: holder.settle_unit(held, unit, delay=delay, until=until)
    return lambda: _checkpoint(engine, held, unit)


def _make_unit(
    engine: Engine,
    held: Claimed,
    ctx: Context,
    data: dict[str, Any],
    position: tuple[int, str, int],
    *,
    finish: bool = False,
    result: Any = None,
) -> Unit:
    """The unit's rows-to-be: values too large for a row become artifacts, secrets are masked."""
    tunables = engine.tunables
    data = secrets.mask_json(data)
    output = canonical.dump_json(data, "output")
    if len(output) > tunables.inline_output_bytes:
        data = artifacts.fit_values(held, data, tunables.inline_output_bytes)
        output = canonical.dump_json(data, "output")
    progress = None
    if data:
        # Either may be spilled as one: an output by very many small values.
        before, new = (artifacts.open_whole(one, held.task_id) for one in (held.progress, data))
        merged = {**before, **new}
        progress = canonical.write_checked(merged)
        if len(progress) > tunables.inline_progress_bytes:
            bound = tunables.inline_progress_bytes
            merged = artifacts.fit_values(held, merged, bound, "progress")
            progress = canonical.dump_json(merged, "progress")
        held.progress = merged
    text = None
    if finish:
        text = output
        if result is not None:
            result = secrets.mask_json(result)
            text = canonical.dump_json(result, "result")
            if len(text) > tunables.inline_output_bytes:
                text = canonical.dump_json(artifacts.spill(held, "result", result))
    index, name, turn = position
    return Unit(
        output=output, progress=progress, next_index=index, next_name=name, next_turn=turn,
        log_tail=ctx.finish_log(insist=True)[0], tokens=ctx.spent_tokens, cost=ctx.spent_nano,
        workspace=ctx.snapshot_workspace(), result=text,
    )  # fmt: skip


def _checkpoint(engine: Engine, held: Claimed, unit: Unit) -> Claimed | None:
    """The plain course: store and go on, give way past the slice, or complete and claim next."""
    tunables = engine.tunables
    picker, finishes = engine.picker, unit.result is not None
    in_slice = time.monotonic() < engine.slice_ends
    leaving = engine.stop() or not engine.can_beat()
    leaving = leaving or ((finishes or not in_slice) and picker.find_through() is not None)
    if not finishes and (leaving or picker.must_yield(held)):
        holder.settle_unit(held, unit)
        return None
    groups: Sequence[sql.Group] | None = None
    if leaving:
        groups = []
    elif finishes or not in_slice:
        groups = picker.choose(time.monotonic() - engine.began)
        if not finishes and picker.keeps_turn(held.lane, groups):
            groups = None

    def write(open_: Sequence[sql.Group] | None, this: UUID | None) -> sql.Settled | None:
        lease = tunables.lease_seconds
        return sql.checkpoint_unit(held, unit, lease_seconds=lease, groups=open_, this=this)

    settled = picker.admit(groups, write, held, ends=finishes) if groups else write(groups, None)
    if finishes and settled is not None and picker.had_key(held):
        sql.wake_workers()
    if settled is None:
        holder.settle_unit(held, unit)
        return None
    if not in_slice or settled.claimed is not None:
        engine.open_slice(held.lane if settled.claimed is None else settled.claimed.lane)
    if settled.kept_fence is not None and settled.kept_at is not None:
        return _go_on(held, unit, settled.kept_fence, settled)
    return settled.claimed


def _go_on(held: Claimed, unit: Unit, fence: int, settled: sql.Settled) -> Claimed:
    """The same task at its next unit, as the checkpoint left it: no need to read it again."""
    assert settled.kept_at is not None
    held.fence, held.started_at = fence, settled.kept_at
    held.step_index, held.step_name, held.turn = unit.next_index, unit.next_name, unit.next_turn
    held.attempts = held.reclaims = held.releases = 0
    held.used_units += 1
    held.kept = True
    held.workspace = unit.workspace or held.workspace
    return held


def fail_attempt(held: Claimed, attempt: holder.Attempt, step: Step) -> None:
    """A charged failure: run again after a backoff, or dead."""
    backoff = retry.draw_backoff(held.attempts + 1)
    holder.record_failure(held, attempt, retries=step.retries, backoff=backoff)


def settle(engine: Engine, held: Claimed, plan: Plan) -> Claimed | None:
    """Carry `plan` out, however long the database is away; returns what this worker holds next.

    A commit whose answer was lost may or may not have happened, so the plan is tried again, and its
    guard says which: AlreadySettled, or a lost lease. Refused for good (a value that the database
    or its driver can't hold) is a failed attempt.
    """
    waited = 0.05
    while True:
        try:
            found = plan()
            return found if isinstance(found, Claimed) else None
        except AlreadySettled:
            return adopt_running(engine)
        except LedgerError as error:
            log.info("task %s: %s", held.task_id, error)
            if isinstance(error, LeaseLost):
                engine.orders.doubt()
            return None
        except Exception as error:
            if not sql.is_outage(error):
                _settle_refused(held, error)
                return None
            log.warning("task %s: no answer to its settle, trying again: %s", held.task_id, error)
        engine.suspect = True
        cancel_hard_stop()
        forget_connections()
        time.sleep(waited * random.uniform(0.5, 1.0))
        waited = min(LONGEST_WAIT, engine.tunables.heartbeat_seconds, waited * 2)


def _settle_refused(held: Claimed, error: Exception) -> None:
    """The write itself is refused: a charged attempt with the reason, never a loop."""
    log.error("task %s: the ledger refused its output", held.task_id, exc_info=error)
    attempt = holder.Attempt(describe_failure(error, held))
    step = workflows.get(held.workflow, held.workflow_version)
    try:
        fail_attempt(held, attempt, step.steps[step.index_of(held.step_name)])
    except (LedgerError, DatabaseError):
        log.exception("task %s: giving its lease up; it will expire", held.task_id)


def adopt_running(engine: Engine) -> Claimed | None:
    """A task that this process claimed without getting to know of it; None without one.

    Its lease may be nearly over, so it is renewed. A worker that is leaving gives it back.
    """
    row = Task.objects.filter(status=states.RUNNING, lease_owner=engine.owner).first()
    if row is None:
        return None
    held = sql.read_task(row)
    if engine.stop():
        with contextlib.suppress(LedgerError):
            holder.release_task(held, why="drain")
        return None
    lease_seconds = engine.tunables.lease_seconds
    return held if sql.beat_leases(engine.owner, [held.lease], lease_seconds) else None


def sign_off(owner: str) -> None:
    """Mark this process's row among the workers as stopped; nothing depends on it."""
    with contextlib.suppress(DatabaseError, InterfaceError):
        Worker.objects.filter(owner=owner, stopped_at=None).update(stopped_at=clock.now())


class Registration:
    """Keeps this process's row among the workers fresh; called by the guardian thread."""

    def __init__(self, engine: Engine, cluster: str = "") -> None:
        self.engine = engine
        self.cluster = cluster
        self._due = 0.0

    def hurry(self) -> None:
        """Write the row at the next tick."""
        self._due = 0.0

    def tick(self) -> float:
        """Write the row if a heartbeat has passed and the worker can claim; seconds until the next
        time."""
        wait = self._due - time.monotonic()
        if wait > 0:
            return wait
        if not self._can_claim() or self.engine.orders.told in DEADS:
            return LOOK_SECONDS
        host, pid, _ = self.engine.owner.rsplit(":", 2)
        facts = {
            "host": host[:100], "pid": int(pid), "seen_at": clock.now(),
            "knows": queries.describe_known(), "units": self.engine.units,
            "draining": self.engine.stop(), "lease_seconds": self.engine.tunables.lease_seconds,
            "cluster": self.cluster, "skew": self.engine.orders.skew,
            "memory": psutil.Process().memory_info().rss,
        }  # fmt: skip
        with sql.atomic():
            rows = Worker.objects.filter(owner=self.engine.owner)
            # One that stood still since its last look may not have heard that it was declared dead.
            if not rows.exclude(told__in=DEADS).update(**facts) and not rows.exists():
                facts |= self._inherit()
                Worker.objects.bulk_create(
                    [Worker(owner=self.engine.owner, started_at=clock.now(), **facts)]
                )
        self._due = time.monotonic() + self.engine.tunables.heartbeat_seconds
        return self.engine.tunables.heartbeat_seconds

    def _inherit(self) -> dict[str, Any]:
        """What a new process of a cluster is told that drains as a whole, as it is from the start:
        before it is on record it claims nothing."""
        if not self.cluster:
            return {}
        await_lock(f"cluster:{self.cluster}")  # who tells the whole cluster something has told it
        rows = Worker.objects.filter(cluster=self.cluster, told__in=(DRAIN_ALL, DEAD_ALL))
        found = rows.values("told_by", "told_at").first()
        return {"told": DRAIN_ALL, **found} if found else {}

    def _can_claim(self) -> bool:
        """A unit is in hand, or work was looked for of late. A process that gets no ticket, or
        hangs where it claims, is no worker, however well its guardian is."""
        late = self.engine.looked + MISSED_BEATS * self.engine.tunables.heartbeat_seconds
        return self.engine.heart.held is not None or time.monotonic() < late
