"""What the machine's workers do outside: effects, and what undoes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ledger import states
from ledger.errors import AlreadySettled, EffectConflict, LeaseLost
from ledger.models import Effect, Task
from ledger.sql import Claimed
from ledger.transitions import effects, endings, holder, operators
from tests.factories import attempt
from tests.ledger.machine_people import PERSON
from tests.ledger.replay import Record, list_undone

UNDOES = {states.QUEUED, states.RUNNING, states.SCHEDULED, states.PAUSED, states.DEAD}
"""Where a task may stand that has an end before it."""


class Effects:
    """A part of the machine of test_machine.py."""

    known: dict[Any, Record]
    leases: list[Claimed]
    undoing: list[Claimed]
    restart_task: Callable[[Any], None]
    rewrite: Callable[..., None]

    def choose(self, *of: Any) -> Any:
        """See Ledger."""
        raise NotImplementedError

    def choose_lease(self) -> tuple[Claimed, bool]:
        """See Ledger."""
        raise NotImplementedError

    def is_live(self, held: Claimed) -> bool:
        """See Ledger."""
        raise NotImplementedError

    def settle(self, held: Claimed, live: bool, write: Callable[[], Any]) -> None:
        """See Ledger."""
        raise NotImplementedError

    def list_outside(self) -> list[Callable[[], None]]:
        """What could happen now, each as often as it should be drawn."""
        possible: list[Callable[[], None]] = []
        if any(self.is_live(held) for held in self.leases):
            possible += [self.act_outside] * 8
        if owing := self.list_owing():
            stored = any(
                o.superseded_in_round is None for k in owing for o in self.known[k].outputs
            )
            possible += [self.end_owing] * (10 if stored else 1)
        if self.leases:
            possible += [self.tell_late]
        if any(self.is_live(held) for held in self.undoing):
            possible += [self.undo_last] * 25 + [self.fail_to_undo] * 3
        if self.undoing:
            possible += [self.undo_last]
        if any(self.list_standing()):
            possible += [self.go_on_undone] * 10
        return possible

    def list_standing(self) -> list[Any]:
        """The tasks that can be set going, and have outputs that stand on what is undone."""
        going = {key: r for key, r in self.known.items() if r.task.status not in states.FINAL}
        return sorted(key for key, record in going.items() if list_undone(record))

    def go_on_undone(self) -> None:
        """A person has one of them go on from any step, or as another output says."""
        key = self.choose(self.list_standing())
        live = [o for o in self.known[key].outputs if o.superseded_in_round is None]
        self.choose(self.restart_task, self.restart_task, lambda _: self.rewrite(live))(key)

    def list_owing(self) -> list[Any]:
        """The tasks that would have something to undo first, if they were to end now."""
        return sorted(
            key
            for key, record in self.known.items()
            if record.task.ending is None and record.task.status not in states.FINAL
            and any(e.compensation and e.status in {"done", "intent"} for e in record.effects)
        )  # fmt: skip

    def end_owing(self) -> None:
        """A person ends one of them, or its holder does."""
        key = self.choose(self.list_owing())
        held = next((one for one in self.leases if one.task_id == key and self.is_live(one)), None)
        if held is not None:
            return self.settle(held, True, lambda: holder.fail_task(held, attempt()))
        operators.cancel_task(key, actor=PERSON)
        assert Task.objects.get(pk=key).status in {states.QUEUED, states.RUNNING}
        return None

    def act_outside(self) -> None:
        """Begun by a holder alone, and mostly done."""
        held, live = self.choose_lease()
        for name in self.choose(["one"], ["two"], ["one", "two"]):
            self.act_once(held, live, name)

    def act_once(self, held: Claimed, live: bool, name: str) -> None:
        """One of them."""
        undo = self.choose("refund", "refund", "")
        try:
            begun = effects.begin_effect(held, name, None, undo)
        except (LeaseLost, AlreadySettled):
            assert not live
            return
        except EffectConflict:
            unit = self.find_effect(held, name)
            assert unit is not None
            assert unit.status == "compensated"
            return
        assert live
        if begun.state != "done" and self.choose(True, True, False):
            effects.finish_effect(held, name, held.fence)

    def tell_late(self) -> None:
        """Accepted from whoever began it, and the first result stands."""
        held, _ = self.choose_lease()
        name = self.choose("one", "two")
        effect = self.find_effect(held, name)
        mine = effect is not None and f"{held.fence}:{held.owner}" in effect.fences
        try:
            told = effects.finish_effect(held, name, held.fence)
        except LeaseLost:
            assert not mine
            return
        assert mine
        assert effect is not None
        assert told == (held.fence if effect.done_at is None else effect.result)

    def find_effect(self, held: Claimed, name: str) -> Effect | None:
        """The unit's effect of that name, as it was after the last step."""
        unit = (held.step_name, held.turn, held.round, name)
        every = self.known[held.task_id].effects
        return next((e for e in every if (e.step, e.turn, e.round, e.name) == unit), None)

    def choose_undoing(self) -> tuple[Claimed, bool]:
        """A claim of a task that undoes its effects, mostly a live one."""
        live = [held for held in self.undoing if self.is_live(held)]
        held = self.choose(live if live and self.choose(True, True, False) else self.undoing)
        return held, self.is_live(held)

    def undo_last(self) -> None:
        """The last effect that is open, begun, done and settled; or lost on the way."""
        held, live = self.choose_undoing()
        effect = endings.list_open(held.task_id).first()
        if effect is not None:
            if not live:
                self.tell_undone_late(held, effect)
                with pytest.raises((LeaseLost, AlreadySettled)):
                    effects.begin_undo(held, effect.pk)
            else:
                effects.begin_undo(held, effect.pk)
                if self.choose(True, False, False):
                    return
                effects.finish_undo(held, effect.pk, "refunded")
        self.settle(held, live, lambda: endings.settle_undo(held))

    def tell_undone_late(self, held: Claimed, effect: Effect) -> None:
        """Accepted from whoever began it."""
        if f"{held.fence}:{held.owner}" in (effect.undo_fences or []):
            effects.finish_undo(held, effect.pk, "refunded late")
        else:
            with pytest.raises(LeaseLost):
                effects.finish_undo(held, effect.pk, "refunded late")

    def fail_to_undo(self) -> None:
        """Not this time."""
        held, live = self.choose_undoing()
        self.settle(held, live, self.choose([
            lambda: holder.record_failure(held, attempt(), retries=0, backoff=3.0),
            lambda: holder.record_failure(held, attempt(), retries=9, backoff=3.0),
            lambda: holder.release_task(held, why="drain"),
            lambda: holder.release_task(held, why="busy", delay=12.0),
            lambda: holder.misfit_task(held, problem="no such compensation"),
        ]))  # fmt: skip


def check_effects(before: Record, after: Record) -> None:
    """Nothing fails or is cancelled before it has undone what it can; undone is undone."""
    task = after.task
    assert task.ending is None or task.status in UNDOES
    undoes = task.status == states.QUEUED and task.ending is not None
    assert (task.status_reason == states.COMPENSATING) == undoes
    if before.task.status not in states.UNDONE_FIRST and task.status in states.UNDONE_FIRST:
        left = {e.name for e in after.effects if e.compensation and e.status in {"done", "intent"}}
        assert left == set()
    check_undone(before, after)
    known = {effect.pk: effect for effect in before.effects}
    assert known.keys() <= {effect.pk for effect in after.effects}
    for effect in after.effects:
        if effect.undone_at is not None:
            assert effect.status == "compensated"
        old = known.get(effect.pk)
        if old is not None and old.undone_at is not None:
            assert (old.undone_at, old.undo_result) == (effect.undone_at, effect.undo_result)


def check_undone(before: Record, after: Record) -> None:
    """Nothing is set going, or goes on and is undone behind its back, on what is undone; but for
    what people said."""
    was, now = before.task, after.task
    if now.ending is not None or now.status in {states.FAILED, states.DEAD, states.CANCELLED}:
        return
    found = list_undone(after)
    if was.ending is not None or was.status in states.FINISHED - states.FINAL:
        assert found == []
        unit = (now.step_name, now.turn, now.round)
        here = [e for e in after.effects if (e.step, e.turn, e.round) == unit and e.compensation]
        assert "compensated" not in {e.status for e in here}
    told = {e.pk for e in before.effects if e.undone_at is not None}
    for effect in found:
        if effect.undone_at is not None and effect.pk not in told:
            assert any(one.startswith("user:") for one in effect.undo_fences)
