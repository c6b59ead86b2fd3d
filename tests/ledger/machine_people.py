"""What the machine's people do: operators, admins and approvers."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest

from ledger import states
from ledger.errors import InvalidInput, LedgerError
from ledger.events import Actor
from ledger.models import Approval, Effect, StepOutput, Task
from ledger.transitions import approvals, edits, effects, forks, operators, outputs
from ledger.transitions.moves import count_reached
from tests.ledger.replay import STEPS, Record, list_undone, read_records

LATER = dt.datetime(2999, 1, 1, tzinfo=dt.UTC)
LIMITS = [{"deadline_at": LATER}, {"units": 60}, {"units": 2}, {"tokens": 5000}, {"wall": 10},
          {"wall": 90_000}]  # fmt: skip
EDITS = [{"status": "queued"}, {"status": "paused"}, {"title": "new"}, {"step_name": "a"},
         {"status": "cancelled"}]  # fmt: skip
PERSON, APPROVER = Actor("user", "1"), Actor("user", "2")
CHANGES = [{"priority": 50}, {"priority": -5}, {"lane": "other"}, {"title": "t", "tags": ["x"]}]


class People:
    """A part of the machine of test_machine.py."""

    known: dict[Any, Record]

    def choose(self, *of: Any) -> Any:
        """See Ledger."""
        raise NotImplementedError

    def choose_task(self) -> Task:
        """A task as it is now."""
        return self.known[self.choose(sorted(self.known))].task

    def try_to(self, act: Callable[[], Any]) -> None:
        """A person's wish: done, or refused by a named error. Anything else is our bug."""
        refusal = None
        try:
            act()
        except LedgerError as error:
            refusal = error
        assert type(refusal) is not LedgerError

    def operate(self) -> None:
        task, what = self.choose_task(), self.choose("cancel", "stop", "pause", "resume", "retry")
        act = getattr(operators, f"{what}_task")
        self.try_to(lambda: act(task.pk, actor=PERSON, revision=task.revision))

    def restart(self) -> None:
        self.restart_task(self.choose_task().pk)

    def restart_task(self, key: Any) -> None:
        """At any step."""
        step = self.choose(STEPS)
        round_ = self.known[key].task.round
        self.try_to(lambda: operators.restart_task(key, to_step=step, note="better", actor=PERSON))
        self.check_set_going(key, round_)

    def check_set_going(self, key: Any, round_: int) -> None:
        """What a person has it do anew stands on nothing that is undone."""
        record = read_records([key])[key]
        assert record.task.round == round_ or list_undone(record) == []

    def extend(self) -> None:
        key, given = self.choose_task().pk, self.choose(LIMITS)
        self.try_to(lambda: operators.extend_limits(key, limits_given=given, actor=PERSON))

    def edit(self) -> None:
        task, changes = self.choose_task(), self.choose(EDITS)
        self.try_to(lambda: edits.edit_task(
            task.pk, changes=changes, actor=PERSON, reason="by hand", revision=task.revision
        ))  # fmt: skip

    def change(self) -> None:
        task, given = self.choose_task(), self.choose(CHANGES)
        self.try_to(lambda: operators.change_task(task.pk, actor=PERSON, **given))

    def rewrite(self, found: list[StepOutput] | None = None) -> None:
        """An output (one of `found`) of any task that has one, led to where the old one led."""
        found = found or [output for record in self.known.values() for output in record.outputs]
        if not found:
            return
        old: StepOutput = self.choose(found)
        new = {**old.output, "kind": "rewritten"}
        self.try_to(lambda: outputs.edit_output(
            old.task_id, old.seq, output=new, actor=PERSON, reason="better"
        ))  # fmt: skip
        self.check_set_going(old.task_id, self.known[old.task_id].task.round)

    def fork(self) -> None:
        """A copy of anything, at any step that it has reached."""
        task, step = self.choose_task(), self.choose(STEPS)
        if STEPS.index(step) >= count_reached(task):
            if task.status_reason == states.VERSION_MISFIT:
                return  # any step will do then, at a place that the replay does not know
            with pytest.raises(InvalidInput):
                forks.fork_task(task.pk, from_step=step, actor=PERSON)
        elif any(STEPS.index(e.step) < STEPS.index(step) for e in list_undone(self.known[task.pk])):
            with pytest.raises(InvalidInput, match="undone"):
                forks.fork_task(task.pk, from_step=step, actor=PERSON)
        elif len(self.known) < 6:
            copy, created = forks.fork_task(task.pk, from_step=step, actor=PERSON)
            assert created
            self.known |= read_records([copy.pk])

    def answer(self) -> None:
        request = self.choose_request()
        decision, undo = self.choose("approve", "approve", "reject", "send_back"), self.choose(0, 8)
        name, more = (request.payload or {}).get("limit"), self.choose(2, 9000)
        values = name and {name: LATER.isoformat() if name == "deadline_at" else more}
        self.try_to(lambda: approvals.decide_approval(
            request.pk, decision=decision, actor=APPROVER, digest=request.digest,
            undo_seconds=undo, values=values,
        ))  # fmt: skip

    def undo(self) -> None:
        request = self.choose_request()
        self.try_to(lambda: approvals.undo_decision(request.pk, actor=APPROVER))

    def choose_request(self) -> Approval:
        """A question, mostly one that is still of consequence."""
        every = [a for r in self.known.values() for a in r.approvals]
        pending = [a for a in every if a.applied_at is None and a.status != "void"]
        chosen = pending if pending and self.choose(True, True, False) else every
        found: Approval = self.choose(chosen)
        return found

    def mark(self) -> None:
        """A person's word on any effect."""
        every = [effect for record in self.known.values() for effect in record.effects]
        if not every:
            return
        effect: Effect = self.choose(every)
        to = self.choose("done", "not_done", "compensated")
        self.try_to(lambda: effects.mark_effect(effect.task_id, effect.pk, to=to, actor=PERSON))

    def compensate(self) -> None:
        """What gave up undoes its effects after all."""
        key = self.choose_task().pk
        self.try_to(lambda: effects.compensate_task(key, actor=PERSON))
