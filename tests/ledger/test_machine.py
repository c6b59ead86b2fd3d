"""A ledger under three workers, operators, approvers, sweeps and a clock that jumps.

Hypothesis draws what happens; after each thing everything on record must hold together. The full
proof is LONGWATCH_TEST_PROOF=1 (500 runs on SQLite, 100 on PostgreSQL).
"""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
import json
import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from hypothesis import HealthCheck, Phase, Verbosity, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from ledger import clock, sql, states, sweeper
from ledger.errors import AlreadySettled, InvalidInput, LeaseLost
from ledger.events import Actor
from ledger.models import StepOutput, Task
from ledger.sql import Claimed, Unit
from ledger.transitions import (
    asking,
    budgets,
    children,
    holder,
    sweeps,
    waits,
)
from ledger.transitions.submit import submit_task
from ledger.workflows import AskApproval, Child, Spawn, WaitFor, Workflow, registered
from tests.durable import DURABLE
from tests.factories import LEASE, attempt, make_workflow
from tests.ledger.machine_effects import Effects, check_effects
from tests.ledger.machine_money import SHORT, Money, check_reserved
from tests.ledger.machine_people import PERSON, People
from tests.ledger.replay import (
    STEPS,
    Record,
    check_columns,
    check_record,
    read_records,
    write_output,
)

PROOF = bool(os.environ.get("LONGWATCH_TEST_PROOF"))
OWNERS = ("host:1:boot", "host:2:boot", "host:3:boot")
LANES = ("default", "other")
NUMBERS, RISKS = st.integers(0, 2**32 - 1), ["low", "low", "high"]
TABLES = (
    "effect reservation signal spend artifact approval_vote approval event step_output task".split()
)


class Ledger(Money, Effects, People, RuleBasedStateMachine):
    """Each step throws dice for one of the things that can happen; `known` was true before it.

    One rule, not twenty, and one number a step: hypothesis leaves whole rules out of a run, and
    prefers the first of several, so that most runs would claim or submit nothing. And what can
    happen depends on the database's clock a little, while its draws must not.
    """

    flow: Workflow

    def __init__(self) -> None:
        super().__init__()
        self.leases: list[Claimed] = []
        self.undoing: list[Claimed] = []
        self.known: dict[Any, Record] = {}
        self.keys = 0
        self.let_go: Any = None
        self.dice = random.Random()

    @initialize(number=NUMBERS)
    def begin(self, number: int) -> None:
        self.dice.seed(number)
        self.submit()
        self.submit()

    def teardown(self) -> None:
        clock.offset = 0.0
        with connection.cursor() as cursor:
            for table in TABLES:
                cursor.execute(f"DELETE FROM longwatch_{table}")

    @rule(number=NUMBERS)
    def happen(self, number: int) -> None:
        self.dice.seed(number)
        self.let_go = None
        act = self.choose(self.list_possible())
        note(act.__name__)
        act()

    def list_possible(self) -> list[Callable[[], None]]:
        """What could happen now, each as often as it should be drawn."""
        tasks = [record.task for record in self.known.values()]
        possible: list[Callable[[], None]] = []
        if any(self.is_live(held) for held in self.leases):
            possible += [self.checkpoint] * 5 + [self.fail] * 2 + [self.ask] * 4
            possible += [self.sleep, self.repair, self.repair, self.jump, self.sweep]
            possible += [self.await_signal] * 2 + [self.spawn] * (len(tasks) < 9)
        if any(task.status == states.QUEUED for task in tasks):
            possible += [self.claim] * 6
        if any(task.status_reason == states.COMPENSATING for task in tasks):
            possible += [self.claim] * 25
        if any(task.status == states.WAITING for task in tasks):
            possible += [self.jump, self.sweep, self.operate, self.signal, self.signal]
        if any(record.approvals for record in self.known.values()):
            possible += [self.answer] * 4 + [self.undo] * 2
        if any(task.status in {states.DEAD, states.FAILED} for task in tasks):
            possible += [self.extend] * 3 + [self.operate] * 2
        possible += self.list_outside()
        possible += [self.mark] * any(record.effects for record in self.known.values())
        if self.leases:
            possible += [
                self.spend,
                self.reserve,
                self.free,
                self.beat,
                self.checkpoint,
                self.ask,
                self.fail,
                self.report,
            ]
        if len(tasks) < 5:
            possible += [self.submit] * 2
        return [*possible, self.sweep, self.jump, self.jump, self.operate, self.reclaim,
                self.extend, self.edit, self.restart, self.fork, self.change,
                self.rewrite, self.signal, self.compensate]  # fmt: skip

    # --- How a step picks and tries ---------------------------------------------------------------

    def choose(self, *of: Any) -> Any:
        """One of `of`; a single list stands for its members."""
        return self.dice.choice(of[0] if len(of) == 1 else of)

    def choose_lease(self) -> tuple[Claimed, bool]:
        """A claim, and whether it is in force: mostly a live one, if there is one."""
        live = [held for held in self.leases if self.is_live(held)]
        chosen = live if live and self.choose(True, True, True, True, False) else self.leases
        held = copy.deepcopy(self.choose(chosen))
        return held, self.is_live(held)

    def is_live(self, held: Claimed) -> bool:
        """The guard of a holder, from the rows as they were after the last step."""
        task = self.known[held.task_id].task
        mine = (task.status, task.fence, task.lease_owner)
        return mine == (states.RUNNING, held.fence, held.owner)

    def settle(self, held: Claimed, live: bool, write: Callable[[], Any]) -> None:
        """A holder's write goes through if and only if its lease is in force."""
        if not live:
            with pytest.raises((LeaseLost, AlreadySettled)):
                write()
            return
        write()
        self.let_go = held.task_id

    def choose_groups(self) -> list[sql.Group]:
        """What a worker looks at, one lane or the other first."""
        lanes = self.choose(LANES, LANES[::-1])
        return [(lane, self.flow.name, self.flow.version) for lane in lanes]

    def make_unit(self, held: Claimed, kind: str) -> Unit:
        """A finished unit whose output says where it leads."""
        index, turn = held.step_index, held.turn
        if kind == "next" and index + 1 < len(STEPS):
            index, turn = index + 1, 0
        elif kind == "again":
            turn += 1
        elif kind == "next":
            kind = "finish"
        return Unit(
            output=write_output(kind, index, turn), progress=json.dumps({"turn": turn}),
            next_index=index, next_name=STEPS[index], next_turn=turn,
            result='"done"' if kind == "finish" else None,
        )  # fmt: skip

    # --- Clients and workers ----------------------------------------------------------------------

    def submit(self) -> None:
        self.flow.on_limit = self.choose("dead", "ask", "ask")
        now, later = clock.read(), self.choose(False, False, True)
        bounds = {"units": self.choose(100, 100, 3, 1), "tokens": 100, "wall": 5000}
        if self.choose(False, True):
            bounds["deadline_at"] = now + dt.timedelta(seconds=200)
        task, created = submit_task(
            workflow=self.flow, input={}, actor=Actor("cli", "tester"), lane=self.choose(LANES),
            priority=self.choose(0, 0, 5, -5), max_repairs=self.choose(0, 1, 2),
            limits_given=bounds, not_before=now + dt.timedelta(seconds=20) if later else None,
        )  # fmt: skip
        assert created
        self.known |= read_records([task.pk])

    def claim(self) -> None:
        groups = self.choose_groups()
        held = sql.claim_task(self.choose(OWNERS), groups, LEASE)
        self.check_claim(held, groups)

    def check_claim(self, held: Claimed | None, groups: list[sql.Group]) -> None:
        """The best of the first lane that has something; nothing only where nothing is queued."""
        queued = [r.task for r in self.known.values() if r.task.status == states.QUEUED]
        ranked = sorted((t.rank, t.pk) for lane, *_ in groups[:1] for t in queued if t.lane == lane)
        ranked += sorted(
            (t.rank, t.pk) for lane, *_ in groups[1:] for t in queued if t.lane == lane
        )
        assert (held and held.task_id) == (ranked[0][1] if ranked else None)
        if held is not None:
            (self.leases if held.ending is None else self.undoing).append(held)

    def checkpoint(self) -> None:
        held, live = self.choose_lease()
        unit = self.make_unit(held, self.choose("next", "next", "again", "finish"))
        groups = self.choose_groups()
        in_slice = unit.result is None and self.choose(True, False)
        settled = sql.checkpoint_unit(
            held, unit, lease_seconds=LEASE, groups=None if in_slice else groups
        )
        if settled is None:
            # The slow way, as the worker goes it; a flag or a limit is why.
            return self.settle(held, live, lambda: holder.settle_unit(held, unit))
        assert live
        if settled.kept_fence is None:
            self.let_go = held.task_id
            return self.check_claim(settled.claimed, groups)
        assert settled.kept_fence == held.fence + 1
        assert settled.claimed is None
        held.fence, held.step_index, held.step_name = (
            settled.kept_fence, unit.next_index, unit.next_name,
        )  # fmt: skip
        held.turn, held.started_at = unit.next_turn, settled.kept_at or held.started_at
        self.leases.append(held)

    def sleep(self) -> None:
        held, live = self.choose_lease()
        unit, delay = self.make_unit(held, "again"), self.choose(0.0, 7.0, 300.0)
        self.settle(held, live, lambda: holder.settle_unit(held, unit, delay=delay))

    def fail(self) -> None:
        held, live = self.choose_lease()
        retries = self.choose(0, 1, 2)
        self.settle(held, live, self.choose([
            lambda: holder.record_failure(held, attempt(), retries=retries, backoff=3.0),
            lambda: holder.record_failure(held, attempt(), retries=9, backoff=0.0),
            lambda: holder.release_task(held, why="drain"),
            lambda: holder.release_task(held, why="busy", delay=12.0),
            lambda: holder.misfit_task(held, problem="no such step"),
            lambda: holder.fail_task(held, attempt()),
            lambda: budgets.await_budget(held, attempt(), self.choose(SHORT)),
            lambda: holder.bury_task(held, attempt(), states.LIMIT_TOKENS, self.choose(0, 500)),
        ]))  # fmt: skip

    def repair(self) -> None:
        held, live = self.choose_lease()
        to, unit = self.choose(list(range(held.step_index + 1))), self.make_unit(held, "repair")
        self.settle(held, live, lambda: holder.repair_task(
            held, unit, to_index=to, to_name=STEPS[to], feedback="once more"))  # fmt: skip

    def ask(self) -> None:
        held, live = self.choose_lease()
        question = AskApproval(
            "Go on?", expires=100, send_back_to="a", remind=self.choose(None, 60),
            escalate=self.choose([], [("user:2", 100)], [("user:3", 9), ("user:2", 9)]),
            then=self.choose("next next again".split()), on_reject=self.choose("fail", "a"),
            on_expiry=self.choose("dead fail reject a".split()), risk=self.choose(RISKS),
        )  # fmt: skip
        unit = self.make_unit(held, "ask")
        self.settle(held, live, lambda: asking.ask_approval(held, unit, question, self.flow))

    def await_signal(self) -> None:
        held, live = self.choose_lease()
        unit = self.make_unit(held, "next")
        last, wait = unit.result is not None, WaitFor("go", timeout=self.choose(None, 9, 100))
        unit = dataclasses.replace(unit, result=None)
        self.settle(held, live, lambda: waits.await_signal(held, unit, wait, last=last))

    def spawn(self) -> None:
        held, live = self.choose_lease()
        unit = self.make_unit(held, "next")
        last, unit = unit.result is not None, dataclasses.replace(unit, result=None)
        what = Spawn(
            [Child(self.flow, lane=self.choose(LANES))] * self.choose(1, 2),
            until=self.choose("all", "any"), max_failed=self.choose(None, 1),
        )  # fmt: skip
        try:
            drafts = children.draft_children(held, what)
        except InvalidInput:
            return  # eight generations
        self.settle(held, live, lambda: children.spawn_children(
            held, unit, drafts, what, last=last))  # fmt: skip
        made = Task.objects.exclude(pk__in=self.known).values_list("pk", flat=True)
        self.known |= read_records(list(made))

    def signal(self) -> None:
        task, self.keys = self.choose_task(), self.keys + self.choose(0, 1)
        name, key = self.choose("go", "go", "else"), self.choose(None, f"s{self.keys}")
        self.try_to(lambda: waits.send_signal(task.pk, name=name, key=key, actor=PERSON))

    def beat(self) -> None:
        held, live = self.choose_lease()
        beaten = sql.beat_leases(held.owner, [held.lease], LEASE)
        assert [b.fence for b in beaten] == ([held.fence] if live else [])
        other = next(owner for owner in OWNERS if owner != held.owner)
        assert sql.beat_leases(other, [held.lease], LEASE) == []

    def report(self) -> None:
        held, live = self.choose_lease()
        self.settle(held, live, lambda: holder.report_progress(held.lease, 1, 2, "half"))

    # --- Time -------------------------------------------------------------------------------------

    def jump(self) -> None:
        clock.offset += self.choose(1.0, 9.0, 9.0, 61.0, 61.0, 130.0, 1000.0, -1.0, -30.0, -300.0)

    def sweep(self) -> None:
        swept = sweeper.sweep(reclaim=self.choose(True, False))
        due = [r.task for r in self.known.values() if r.task.status == states.SCHEDULED]
        assert swept.promoted <= len(due)
        again = sweeper.sweep()
        assert (again.promoted, again.applied, again.expired, again.reminded) == (0, 0, 0, 0)
        # What slept, was lost or waited for people may be over a limit as soon as it is queued.
        woken = swept.promoted + swept.reclaimed + swept.applied + swept.expired
        assert again.enforced <= woken

    def reclaim(self) -> None:
        """A lease that is in force by the database's clock is nobody's to take."""
        task, now = self.choose_task(), clock.read()
        reclaimed = sweeps.reclaim_task(task.pk, LEASE)
        if task.lease_until is not None:
            ahead = (task.lease_until - now).total_seconds()
            assert (reclaimed is None) or not 1 < ahead < 2 * LEASE
            assert (reclaimed is not None) or -1 < ahead < 2 * LEASE + 1
        else:
            assert reclaimed is None

    # --- What holds whatever happens --------------------------------------------------------------

    @invariant()
    def check_all(self) -> None:
        records = read_records()
        assert records.keys() == self.known.keys()
        for key, record in records.items():
            check_columns(record.task)
            check_record(record)
            check_change(self.known[key], record, by_holder=key == self.let_go)
            check_effects(self.known[key], record)
        check_reserved([record.task for record in records.values()])
        self.known = records


def check_change(before: Record, after: Record, by_holder: bool) -> None:
    """What is on record stays as it is, ends stay ends, and the fence rises as it has to."""
    known = {o.pk: o for o in before.outputs}
    assert known.keys() <= {o.pk for o in after.outputs}
    for output in after.outputs:
        if output.pk in known:
            check_same_output(known[output.pk], output)
    for old, new in zip(before.events, after.events, strict=False):
        assert (old.pk, old.seq, old.kind, old.data) == (new.pk, new.seq, new.kind, new.data)
    was, now = before.task, after.task
    if was.status in states.FINAL:
        assert (now.status, now.finished_at, now.result) == (
            was.status,
            was.finished_at,
            was.result,
        )
    assert now.revision >= was.revision
    running = (was.status == states.RUNNING, now.status == states.RUNNING)
    stored = len(after.outputs) > len(before.outputs)
    rises = (
        running == (False, True)  # a claim
        or (running == (True, True) and stored)  # a checkpoint that keeps
        or (running == (True, False) and not by_holder)  # thrown out
        or any("superseded" in e.data for e in after.events[len(before.events) :])  # a raw edit
    )
    assert now.fence - was.fence == rises


def check_same_output(old: StepOutput, new: StepOutput) -> None:
    """An accepted output is superseded at most once, and never changed otherwise."""
    fields = [
        f.attname for f in StepOutput._meta.concrete_fields if f.name != "superseded_in_round"
    ]
    assert [getattr(old, name) for name in fields] == [getattr(new, name) for name in fields]
    assert old.superseded_in_round in {None, new.superseded_in_round}


@pytest.mark.timeout(3600 if PROOF else 300)
@pytest.mark.django_db(transaction=True)
def test_nothing_that_happens_in_any_order_breaks_the_ledger() -> None:
    sqlite = connection.vendor == "sqlite"
    if sqlite and not DURABLE:
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA synchronous = OFF")  # no power cut here, and 5 times as fast
    runs = (500 if sqlite else 100) if PROOF else 40
    Ledger.flow = make_workflow()
    with registered(Ledger.flow):
        run_state_machine_as_test(Ledger, settings=settings(
            max_examples=runs, stateful_step_count=50, deadline=None, database=None,
            suppress_health_check=list(HealthCheck), print_blob=True,
            phases=[Phase.generate, Phase.shrink],
            verbosity=Verbosity.normal))  # fmt: skip
