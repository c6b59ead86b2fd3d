"""A unit that undoes an effect: what its compensation is handed, and how it is called.

Like the effect itself it is begun on record before the call and done on record after it, so that an
attempt that comes after a lost one knows, asks `verify`, or calls again under the same key.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from typing import TYPE_CHECKING, Any, NoReturn

from ledger import artifacts, limits
from ledger.compensations import PastEffect
from ledger.context import Context
from ledger.deadlines import holding_soft_stop
from ledger.durability import insist_on
from ledger.errors import LimitReached, UnknownStep
from ledger.models.effects import DONE
from ledger.queries.effects import UNKNOWN
from ledger.transitions.effects import begin_undo, finish_undo
from ledger.transitions.endings import list_open
from ledger.workflows import Step, Workflow

if TYPE_CHECKING:
    from ledger.blobs import Source
    from ledger.context import Signals
    from ledger.models import Artifact, Effect
    from ledger.sql import Claimed


class UndoContext(Context):
    """`ctx` of a compensation: it stands at the unit of the effect, and no limit stops it."""

    def __init__(
        self, claimed: Claimed, workflow: Workflow, step: Step, signals: Signals, effect: Effect
    ) -> None:
        super().__init__(claimed, workflow, step, signals)
        self.step, self.turn, self.round = effect.step, effect.turn, effect.round
        self.answer = self.signal = self._spawned = None
        self._effect = effect
        with contextlib.suppress(UnknownStep):  # gone with the version that had it
            claimed = dataclasses.replace(claimed, step_index=workflow.index_of(effect.step))
        self._place = dataclasses.replace(
            claimed, step_name=effect.step, turn=effect.turn, round=effect.round
        )

    def save_artifact(self, name: str, source: Source, media_type: str | None = None) -> Artifact:
        """Kept with the unit of the effect, and beside what that saved: as `EFFECT.undo.NAME`."""
        artifacts.check_name(name)
        return super().save_artifact(f"{self._effect.name}.undo.{name}", source, media_type)

    def once(self, *args: Any, **options: Any) -> NoReturn:
        """Refused: the compensation itself is called once, under `effect.undo_key`."""
        raise RuntimeError("once(): a compensation is one action itself, under effect.undo_key")

    def begin(self) -> tuple[str, PastEffect]:
        """Store the intent; what is known of the undoing, and what is to be undone."""
        with self._write("a compensation"):
            state, row = insist_on(lambda: begin_undo(self._claimed, self._effect.pk), self.check)
        return state, PastEffect(
            name=row.name, key=row.key, undo_key=row.undo_key, args=self._open(row.args),
            result=self._open(row.result), known=row.status == DONE,
            step=row.step, turn=row.turn, round=row.round,
        )  # fmt: skip

    def finish(self, result: Any) -> None:
        """Store that it is undone, lease or no lease."""
        with self._write("a compensation"), holding_soft_stop():
            told = self._pack_result(f"{self._effect.name}.undo", result)
            given = (self._claimed, self._effect.pk, told, self.log_tail())
            insist_on(lambda: finish_undo(*given), lambda: None)

    def _spend(self, given: dict[str, Any], reservation: str = "") -> None:
        with contextlib.suppress(LimitReached):
            super()._spend(given, reservation)

    def _reserve(self, cost: Any, tokens: int, key: str | None) -> str:
        key = key or self._make_key()
        try:
            return super()._reserve(cost, tokens, key)
        except LimitReached:
            return limits.fit_key(key)


def find_next(held: Claimed) -> Effect | None:
    """The effect that is undone next, the last one first; None when all are."""
    return list_open(held.task_id).first()


def make_step(workflow: Workflow, effect: Effect) -> Step:
    """The unit that undoes the effect. Raises UnknownCompensation if its code is gone."""
    undo = workflow.find_compensation(effect.compensation)

    async def undo_it(ctx: UndoContext) -> None:
        state, past = ctx.begin()
        if state == DONE:
            return
        found = await call(undo.verify, ctx, past) if state == UNKNOWN else None
        ctx.finish(await call(undo.fn, ctx, past) if _is_missing(found) else found)

    async def call(fn: Any, ctx: UndoContext, past: PastEffect) -> Any:
        found = None if fn is None else fn(ctx, past)
        return await found if undo.is_async and inspect.isawaitable(found) else found

    def undo_plainly(ctx: UndoContext) -> None:
        # Where nothing is awaited it ends at once, and the functions are in no loop.
        with contextlib.suppress(StopIteration):
            undo_it(ctx).send(None)

    fn = undo_it if undo.is_async else undo_plainly
    return Step(undo.name, fn, undo.timeout, undo.retries)


def _is_missing(found: Any) -> bool:
    return found is None or found is False
