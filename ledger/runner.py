"""The life of one attempt: claim, step, settle, and the loop around it.

An error of the ledger is never a failed step: while the database is away the finished unit is
kept and written again under the same fence, and only the fence decides whether it still counts.
"""

from __future__ import annotations

import faulthandler
import functools
import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from ledger import (
    asynchronous,
    compensating,
    hours,
    isolation,
    limits,
    livelogs,
    processes,
    scopes,
    settling,
    sql,
    states,
    steplog,
    workflows,
)
from ledger.capture import find_stderr
from ledger.conf import Tunables, load
from ledger.context import Context
from ledger.deadlines import UnitStopped, UnitTimeout, cancel_hard_stop, unit_deadline
from ledger.durability import close_left_open, forget_connections, insist_on
from ledger.errors import LeaseLost, LedgerError, LimitReached, Unserialisable
from ledger.failures import describe_failure
from ledger.fitness import FILES_CLOSED, OVERDUE, Fitness
from ledger.guardian import Guardian
from ledger.heartbeat import Heart
from ledger.orders import Orders
from ledger.picking import Picker
from ledger.resting import BUSY_SECONDS, rest
from ledger.sql import Claimed, claim_task
from ledger.sweeper import Sweeper
from ledger.transitions import budgets, endings, holder
from ledger.transitions.moves import refuse_beat, refuse_write
from ledger.workflows import Fail, RetryLater, Step, Workflow

log = logging.getLogger(__name__)

CONTACT_SECONDS = 0.05
"""Between two looks whether the guardian has the database."""


class TransactionLeftOpen(Exception):
    """The step ended inside a transaction that it had opened; it is rolled back."""


class Engine:
    """What one worker process keeps between attempts."""

    def __init__(self, owner: str, tunables: Tunables | None = None) -> None:
        self.owner = owner
        self.tunables = tunables or load()
        self.heart = Heart(owner, self.tunables)
        self.picker = Picker()
        self.sweeper = Sweeper(self.tunables)
        self.fitness: Fitness | None = None
        """In a worker, which has to go on after whatever a step did to it."""
        self.retire: Callable[[], None] = lambda: None
        self.stop: Callable[[], bool] = lambda: False
        self.can_beat: Callable[[], bool] = lambda: True
        """Whether the guardian has the database: a lease that can't be kept is not taken."""
        self.resident = False
        """Units follow each other in `run_resident`, which tidies up after them."""
        self.suspect = False
        """A statement's outcome is unknown: look for a task that is ours before claiming."""
        self.idle = False
        """The last look at the queues found nothing."""
        self.units = 0
        self.slice_ends = self.began = 0.0
        """When the task in hand gives way to others, and when its unit began."""
        self.orders = Orders()
        self.looked = time.monotonic()
        """When it last looked for work."""

    @property
    def may_claim(self) -> bool:
        """Whether a lease could be kept, and nobody wants it otherwise."""
        return self.can_beat() and not self.orders.drained

    def leave_dead(self) -> None:
        """A person declared this worker dead: what it claimed before it heard of that goes to
        another, and so does its place."""
        self.retire()
        self.heart.let_go()

    def claim(self) -> Claimed | None:
        """The next task to run, if any; opens its slice."""
        self.looked = time.monotonic()
        found = settling.adopt_running(self) if self.suspect else None
        self.suspect = False
        if not self.may_claim:
            return found
        self.picker.take_wait()
        if self.idle:  # only then: a lane that never runs dry would be the only one looked at
            found = found or self._claim(self.picker.recall())
        found = found or self._claim_any()
        self.idle = found is None
        self.open_slice(None if found is None else found.lane)
        return found

    def _claim_any(self) -> Claimed | None:
        groups = self.picker.choose(fresh=True, woken=self.idle)
        found = self.picker.claim_through(self.owner, self.tunables.lease_seconds)
        return found or self._claim(groups) or self._claim(self.picker.list_gated(groups))

    def _claim(self, groups: Sequence[sql.Group]) -> Claimed | None:
        lease = self.tunables.lease_seconds
        return self.picker.admit(groups, lambda of, this: claim_task(self.owner, of, lease, this))

    def open_slice(self, lane: str | None) -> None:
        """From here on the worker goes on with one task, a turn of its lane, for
        `slice_seconds`."""
        self.slice_ends = time.monotonic() + self.tunables.slice_seconds
        if lane is not None:
            self.picker.count_turn(lane)


_engine: tuple[int, Engine] | None = None
_changed: set[tuple[str, str, str]] = set()


def open_engine(owner: str, guardian: Guardian) -> Engine:
    """This process's engine, its heart and sweeps on the guardian; one for all tickets."""
    global _engine
    if _engine is None or _engine[0] != os.getpid():
        engine = Engine(owner)
        engine.fitness = Fitness()
        engine.sweeper.explain, engine.retire = guardian.explain, guardian.retire
        registration = settling.Registration(engine, guardian.cluster)
        engine.orders.follow(engine.sweeper, owner)
        engine.orders.on_change, engine.orders.on_dead = registration.hurry, engine.leave_dead
        guardian.on_tick += [
            engine.heart.tick, engine.sweeper.tick, registration.tick, hours.Summing().tick,
            livelogs.Follower(steplog.find_running).tick,
        ]  # fmt: skip
        guardian.let_go, guardian.rests = engine.heart.let_go, lambda: engine.idle
        if guardian.is_alive():
            guardian.doubt(engine.sweeper.tick)
            # A first unit that never lets go of the GIL would stop the guardian inside this write,
            # and on SQLite everybody with it.
            guardian.doubt(registration.tick)
        guardian.nudge()
        _engine = (os.getpid(), engine)
    return _engine[1]


def run_resident(
    *,
    owner: str,
    stop: Callable[[], bool],
    until: float,
    guardian: Guardian,
    idle: Callable[[float], bool | None],
    turn_away: Callable[[], None] = lambda: None,
) -> int:
    """Run units of any tasks until `stop` or `until` (monotonic); returns how many.

    Idles through `idle`, which a wake-up cuts short; `turn_away` wants none while it is busy.
    Database errors leave it, and the next ticket looks first for what this process still holds.
    """
    engine = open_engine(owner, guardian)
    hears = guardian.is_alive()
    engine.stop = lambda: stop() or engine.orders.drained
    engine.can_beat = lambda: guardian.in_contact and (engine.orders.fresh or not hears)
    engine.resident = True
    before = engine.units
    while not stop() and time.monotonic() < until:
        drained = engine.orders.drained and not engine.suspect
        if drained or not engine.can_beat():
            if drained:
                engine.looked = time.monotonic()  # it would, if it was let
            # Where connections are short, this thread's own may be the one that the beats lack.
            forget_connections()
            time.sleep(CONTACT_SECONDS)
            continue
        try:
            held = engine.claim()
            if found := held is not None:
                guardian.rouse()
            while held is not None:
                held = run_attempt(engine, held)
                if time.monotonic() - engine.looked > BUSY_SECONDS:
                    turn_away()
        except BaseException:
            engine.suspect = True
            engine.heart.drop()
            raise
        finally:
            cancel_hard_stop()
        if not found and not stop():
            rest(engine, idle, until)
    if stop():
        settling.sign_off(owner)
    return engine.units - before


def run_attempt(engine: Engine, held: Claimed) -> Claimed | None:
    """One attempt at one unit, from claim to settle; returns what this worker holds next."""
    engine.units, engine.began = engine.units + 1, time.monotonic()
    undoes = None if held.ending is None else compensating.find_next(held)
    if held.ending is not None and undoes is None:  # a person settled what was left
        return settling.settle(engine, held, lambda: endings.settle_undo(held))
    try:
        workflow = workflows.get(held.workflow, held.workflow_version)
        if undoes is None:
            step = workflow.steps[workflow.index_of(held.step_name)]
        else:
            step = compensating.make_step(workflow, undoes)
    except LedgerError as error:
        problem = str(error)
        return settling.settle(engine, held, lambda: holder.misfit_task(held, problem=problem))
    _warn_of_change(held, workflow)
    if undoes is None and (stop := _plan_stop_by_limit(held)):
        return settling.settle(engine, held, stop)
    sign = engine.heart.hold(held, step.timeout)
    if undoes is None:
        ctx = Context(held, workflow, step, sign)
    else:
        ctx = compensating.UndoContext(held, workflow, step, sign, undoes)
    running = steplog.begin_unit(sign.lease, held, ctx.unit_log)
    try:
        plan = _run_step(engine, held, ctx, workflow, step, sign)
    finally:
        if engine.fitness is not None:
            _tidy_up(engine, engine.fitness, held)
        steplog.end_unit()
        left_open = close_left_open()
        livelogs.keep_rest(running)
    if left_open:
        plan = _plan_failure(held, ctx, step, TransactionLeftOpen("transaction_left_open"))
    try:
        return settling.settle(engine, held, plan)
    finally:
        engine.heart.drop()
        ctx.close()


def _plan_stop_by_limit(held: Claimed) -> settling.Plan | None:
    """What keeps a step from starting: a used-up limit, its own or one that its parents share."""
    if not held.kept and (reason := limits.find_exhausted(held)):
        return lambda: holder.bury_task(held, None, reason)
    if held.parent_id is not None and (short := limits.find_shortage(held.parent_id)):
        found = LimitReached(short[1].reason, str(short[1]), owner=str(short[0].pk))
        return lambda: budgets.await_budget(held, None, found)
    return None


def _warn_of_change(held: Claimed, workflow: Workflow) -> None:
    """Say once a process that tasks go on with other code than they began with. Only that: whether
    a change matters is its author's to know, and a change that does gets a new version."""
    changed = (workflow.name, workflow.version, held.definition_digest)
    if held.definition_digest != workflow.digest() and changed not in _changed:
        _changed.add(changed)
        log.warning("task %s: %s: %s", held.task_id, workflow.name,
                    workflows.describe_change(workflow.version))  # fmt: skip


def _tidy_up(engine: Engine, fitness: Fitness, held: Claimed) -> None:
    """What the step did to its worker must not reach the next unit."""
    unit = (held.task_id, held.step_name)
    if not fitness.keeps_its_files():
        # Nothing may be read or written through descriptors that are something else by now, so
        # not even the failure; what comes of it is a lost worker, and the status says why.
        if steplog.can_tell():
            log.critical("task %s, step %s closed its worker's files, which ends at once", *unit)
        os._exit(FILES_CLOSED)
    try:
        if changed := fitness.restore():
            log.warning("task %s, step %s set %s for its worker: replaced", *unit, changed)
            engine.retire()
        if ended := processes.end_children():
            log.warning("task %s, step %s left running: %s", *unit, ended)
    except Exception:
        log.exception("task %s, step %s left its worker broken; it is replaced", *unit)
        engine.retire()


def _end_overdue(held: Claimed, ctx: Context, step: Step) -> None:
    """In the guardian: the unit is past its hard stop, for it swallowed the soft one. The attempt
    is on record before the process ends; what keeps the GIL can be ended by the timer in C only."""
    try:
        log.critical("task %s, step %s does not end: its worker does", held.task_id, step.name)
        faulthandler.dump_traceback(find_stderr())
        error = UnitTimeout(f"the unit ran longer than {step.timeout:g} s and would not be stopped")
        attempt = holder.Attempt(
            describe_failure(error, held), ctx.log_tail(), ctx.spent_tokens, ctx.spent_nano
        )
        settling.fail_attempt(held, attempt, step)
    except Exception:
        log.exception("task %s: its failure can't be recorded; the lease runs out", held.task_id)
    finally:
        os._exit(OVERDUE)


def _run_step(
    engine: Engine, held: Claimed, ctx: Context, workflow: Workflow, step: Step, sign: Any
) -> settling.Plan:
    """The step's own code and what comes of it, between its soft and its hard stop.

    Both, because what a step returned or raised may run its code as well, or hang in it: an
    exception's `__str__`, a dict of its own.
    """
    margin = engine.tunables.unit_margin_seconds
    if engine.fitness is not None:
        margin *= 3  # the guardian is first to end it, and has the time to record why
        sign.end_overdue = functools.partial(_end_overdue, held, ctx, step)
    try:
        with unit_deadline(step.timeout, margin, keep=engine.resident) as deadline:
            sign.interrupt = deadline.interrupt
            try:
                value = _call(workflow, step, ctx)
                if held.ending is not None:
                    return lambda: endings.settle_undo(held)
                outcome = workflows.normalise(value, workflow, step)
                what = (engine, held, ctx, workflow, step, outcome)
                # Large values and files go to the artifact store here, which may be away too.
                return insist_on(lambda: settling.plan_outcome(*what), ctx.check)
            except BaseException as error:
                return _plan_failure(held, ctx, step, error)
    except BaseException as error:  # the soft stop, on its way through the lines above
        return _plan_failure(held, ctx, step, error)
    finally:
        sign.interrupt = sign.end_overdue = None


def _call(workflow: Workflow, step: Step, ctx: Context) -> Any:
    """Call the step, here or in a process of its own; what it forked must not go on as the worker.

    Before anything else of ours runs in it: the hard stop's thread does not exist there, and
    calling it off would wait for ever.
    """
    pid = os.getpid()
    try:
        if step.isolation is not None:
            return isolation.run_isolated(workflow, step, ctx)
        with scopes.applying(ctx.grant):
            return asynchronous.call_step(step, ctx)
    finally:
        if os.getpid() != pid:
            os._exit(0)


def _plan_failure(held: Claimed, ctx: Context, step: Step, error: BaseException) -> settling.Plan:
    """What an exception of the step means, as the write that settles it."""
    if isinstance(error, UnitStopped):
        return _plan_stop(held, error.reason)
    if isinstance(error, UnitTimeout):
        forget_connections()
    tail, whole = ctx.finish_log(insist=False)
    told = describe_failure(error, held) | {"step": ctx.step, "turn": ctx.turn}
    attempt = holder.Attempt(told, tail, ctx.spent_tokens, ctx.spent_nano, whole)
    if isinstance(error, LeaseLost):
        what = error.what
        return lambda: refuse_write(held.lease, what)
    if isinstance(error, RetryLater):
        seconds, why = error.seconds, str(error)
        return lambda: holder.release_task(held, why=why, delay=seconds, retries=step.retries)
    if isinstance(error, LimitReached) and error.owner and held.ending is None:
        short = error
        return lambda: budgets.await_budget(held, attempt, short)
    if isinstance(error, LimitReached) and held.ending is None:
        reason, least = error.reason, error.least
        return lambda: holder.bury_task(held, attempt, reason, least)
    if isinstance(error, Unserialisable):
        return lambda: holder.bury_task(held, attempt, states.UNSERIALISABLE_OUTPUT)
    if isinstance(error, Fail) and held.ending is not None:  # the end is settled; so: no retry
        return lambda: holder.record_failure(held, attempt, retries=-1, backoff=0.0)
    if isinstance(error, Fail):
        return lambda: holder.fail_task(held, attempt)
    log.warning(
        "task %s, step %s, turn %s failed: %s: %s",
        *(held.task_id, held.step_name, held.turn),
        *(attempt.error["type"], attempt.error["message"]),
    )
    return lambda: settling.fail_attempt(held, attempt, step)


def _plan_stop(held: Claimed, reason: str) -> settling.Plan:
    """The unit was ended from outside: nothing to write without a lease, else give it back."""
    forget_connections()
    if reason == "lease_lost":
        return lambda: refuse_beat(held.lease)
    return lambda: holder.release_task(held, why=reason)


__all__ = ["Engine", "Workflow", "open_engine", "run_attempt", "run_resident"]
