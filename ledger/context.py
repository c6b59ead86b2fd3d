"""What a running step is handed: `ctx`."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol
from uuid import UUID

from ledger import (
    artifacts,
    canonical,
    effects,
    handoff,
    limits,
    livelogs,
    queries,
    scopes,
    secrets,
)
from ledger.blobs import note_start
from ledger.conf import load, parse_money
from ledger.deadlines import UnitStopped, holding_soft_stop
from ledger.durability import insist_on, require_durable, write_blocking
from ledger.errors import LimitReached
from ledger.holds import Hold
from ledger.steplog import StepLog, read_tail
from ledger.transitions import holder
from ledger.transitions.effects import begin_effect, finish_effect
from ledger.unitlog import UnitLog
from ledger.workspaces import TaskFolder, release_folder

if TYPE_CHECKING:
    from ledger.blobs import Source, Stored
    from ledger.handoff import Sent
    from ledger.models import Artifact
    from ledger.sql import Claimed
    from ledger.workflows import Step, Workflow


class Signals(Protocol):
    """What the guardian thread knows of the attempt; it sets these, the step reads them."""

    cancel: bool
    lost: bool
    stop: bool


class Context:
    """One attempt at one unit, as the step sees it.

    What is read is as of the claim, and a copy: the task goes on with what the step returns. What
    is written (`report`, `spend`, `save_artifact`) is durable when the call returns, and a
    RuntimeError inside a transaction that the step opened.
    """

    def __init__(self, claimed: Claimed, workflow: Workflow, step: Step, signals: Signals) -> None:
        self._claimed = self._place = claimed
        """The place is where artifacts stand: the unit's own."""
        self._workflow = workflow
        self._signals = signals
        self.grant = scopes.Grant(workflow.scope, workflow.name, claimed.lane)
        self._workspace: TaskFolder | None = None
        self._pid = os.getpid()
        self._opened: dict[str, None] = {}
        self.task_id: UUID = claimed.task_id
        self.step: str = step.name
        self.turn: int = claimed.turn
        self.round: int = claimed.round
        self.attempt: int = claimed.attempts + claimed.reclaims + claimed.releases + 1
        self.title: str = claimed.title
        self.submitted_by: str = claimed.submitted_by
        led = _read_answer(claimed)
        asked = led is not None and led.keys().isdisjoint({"signal", "children"})
        self.answer: dict[str, Any] | None = led if asked else None
        self.signal: dict[str, Any] | None = (led or {}).get("signal")
        self._spawned: list[Any] | None = (led or {}).get("children")
        self.unit_log = UnitLog()
        self._spends = self.spent_tokens = self.spent_nano = 0

    # --- What the step reads ----------------------------------------------------------------------

    @functools.cached_property
    def log(self) -> StepLog:
        """The attempt's own logger."""
        return StepLog(self.unit_log)

    @functools.cached_property
    def input(self) -> Any:
        """What was submitted: an instance of the workflow's input model, or the JSON object."""
        return self._workflow.read_input(canonical.copy_json(self._claimed.input))

    @functools.cached_property
    def progress(self) -> dict[str, Any]:
        """Every key that accepted units returned so far."""
        return dict(canonical.copy_json(self._open(self._claimed.progress)))

    @functools.cached_property
    def feedback(self) -> Any:
        """What the repair or the person who sent the task back here found; None at first."""
        return canonical.copy_json(self._open(self._claimed.feedback))

    @functools.cached_property
    def children(self) -> list[dict[str, Any]]:
        """The child tasks that the step before waited for, in the order in which it spawned them.

        Each is `{id, workflow, title, status, status_reason, result, error}`; elsewhere none.
        """
        if self._spawned is None:
            return []
        parent, seq = self._spawned
        found = self._read(lambda: queries.list_children(UUID(parent), seq))
        return [{**one, "result": self._open_result(one)} for one in found]

    def _open_result(self, child: dict[str, Any]) -> Any:
        return self._read(lambda: artifacts.resolve(child["result"], UUID(child["id"])))

    def output_of(self, step: str) -> Any:
        """The accepted output of a step's latest unit; None before it has one.

        Raises UnknownStep.
        """
        name = self._workflow.steps[self._workflow.index_of(step)].name
        return self._read(
            lambda: artifacts.resolve(queries.live_output(self.task_id, name), self.task_id)
        )

    def idempotency_key(self, name: str) -> str:
        """The same text at every attempt of this unit, and at no other unit: for other services."""
        return f"{self.task_id}:{self.step}:{self.turn}:{self.round}:{name}"

    def secret(self, name: str) -> str:
        """The secret LONGWATCH_SECRET_NAME (or in the file …_FILE), masked wherever we write.

        Raises SecretUnavailable, naming the cure, and OutOfScope.
        """
        self.grant.require("secrets", name)
        return secrets.read_secret(name)

    def allow_tool(self, name: str) -> None:
        """Nothing, if the workflow's steps may use the tool of this name; else OutOfScope."""
        self.grant.require("tools", name)

    # --- What the step says -----------------------------------------------------------------------

    def check(self) -> None:
        """Raise UnitStopped when a cancel is asked for, the lease is lost or the worker is let go.

        A BaseException, so that `except Exception` lets it pass. Costs nothing: call it often.
        """
        signals = self._signals
        if signals.lost:
            raise UnitStopped("lease_lost")
        if signals.cancel:
            raise UnitStopped("cancel")
        if signals.stop:
            raise UnitStopped("drain")

    def report(self, done: float | None = None, total: float | None = None, note: str = "") -> None:
        """Show how far the unit is, and that it moves. Raises LeaseLost."""
        with self._write("report()"):
            given = (self._claimed.lease, done, total, secrets.mask_text(note))
            report = holding_soft_stop()(holder.report_progress)
            insist_on(lambda: report(*given), self.check)

    def spend(
        self,
        tokens_in: int = 0,
        tokens_out: int = 0,
        cost: Decimal | str | int = 0,
        note: str = "",
        key: str | None = None,
    ) -> None:
        """Record what was just spent; `cost` is a decimal string or Decimal, never a float.

        The same `key` (a provider's request id) counts once a task. Raises LimitReached, after
        recording, when the task's limit is passed.
        """
        given = {"tokens_in": tokens_in, "tokens_out": tokens_out, "cost": cost, "note": note}
        self._spend(given | {"key": self._make_key() if key is None else key})

    def _make_key(self) -> str:
        # Not the idempotency key: each attempt spends anew.
        self._spends += 1
        return f"{self.step}:{self.turn}:{self._claimed.fence}:{self._spends}"

    def _spend(self, given: dict[str, Any], reservation: str = "") -> None:
        amount = (given["tokens_in"] + given["tokens_out"], given["cost"])
        given = given | {"note": secrets.mask_text(given["note"]), "reservation": reservation}
        tries = itertools.count(1)

        def record() -> None:
            again = next(tries) > 1
            try:
                new = limits.record_spend(self._claimed, **given)
            except LimitReached:  # it is recorded all the same
                self._count_spend(*amount)
                raise
            if new or again:  # there already, though it was new: the answer was lost
                self._count_spend(*amount)

        # Nothing ends it before it is on record: what was paid is paid, lease or no lease.
        with self._write("spend()"), holding_soft_stop():
            insist_on(record, lambda: None)

    def reserve(
        self, *, cost: Decimal | str | int = 0, tokens: int = 0, key: str | None = None
    ) -> Hold:
        """Announce what a call may cost, before it is made; `settle` on the hold records what it
        did cost, and as a context manager it is released when it was not.

        Raises LimitReached, with nothing spent, when what is used and reserved leaves too little of
        a limit. An attempt that is lost leaves its hold reserved, of unknown outcome; the next one
        takes over what it reserves by the same `key`. Raises LeaseLost.
        """
        return Hold(self, self._reserve(cost, tokens, key))

    def _reserve(self, cost: Decimal | str | int, tokens: int, key: str | None) -> str:
        key = key or self._make_key()
        with self._write("reserve()"):
            return insist_on(
                lambda: limits.reserve_amount(self._claimed, key=key, tokens=tokens, cost=cost),
                self.check,
            )

    def _settle_hold(self, hold: str, given: dict[str, Any]) -> None:
        self._spend(given, reservation=hold)

    def _release_hold(self, hold: str) -> None:
        with self._write("reserve()"):
            insist_on(lambda: limits.release_reservation(self._claimed, hold), self.check)

    def once(
        self,
        name: str,
        fn: Callable[..., Any],
        *,
        verify: Callable[..., Any] | None = None,
        compensate: effects.Undo | None = None,
        args: Any = None,
    ) -> Any:
        """Do something to the outside world, on record: `fn`'s result, and at a later attempt the
        stored one without a call.

        Where an attempt was lost on the way, `verify` says what came of it: the result, or None
        or False for not done. Without one `fn` is called again. Both get the idempotency key if
        they take `key`; with an async one, await this. `args` (JSON) is what must not differ
        between attempts. `compensate` is the workflow's compensation that undoes it when the task
        fails or is cancelled, by name or itself. Raises LeaseLost, EffectConflict,
        UnknownCompensation, and what the two raise.
        """
        return effects.do_once(self, name, fn, verify, compensate, args)

    def handoff(self, tokens: int | None = None) -> Sent:
        """What this unit must know of the work before it, within so many tokens (site's default):
        `.markdown`, and `.data` as JSON. That it was told this is on record. Raises LeaseLost.
        """
        with self._write("handoff()"):
            return insist_on(lambda: self._hand_off(tokens), self.check)

    def _hand_off(self, tokens: int | None) -> Sent:
        sent = handoff.build_handoff(self.task_id, tokens)
        handoff.record_handoff(self._claimed, sent)
        return sent

    def _begin_effect(self, name: str, args: Any, compensation: str = "") -> dict[str, Any]:
        given = secrets.mask_json(args)
        most = load().inline_output_bytes
        if len(canonical.dump_json(given, "args")) > most:
            raise ValueError(f"once(args=): over {most} bytes; keep them as an artifact, name that")
        with self._write("once()"):
            what = (self._claimed, name, given, compensation)
            begun = insist_on(lambda: begin_effect(*what), self.check)
        return {"state": begun.state, "result": self._open(begun.result)}

    def _finish_effect(self, name: str, result: Any) -> Any:
        # Nothing ends it before it is on record: it is done, lease or no lease.
        with self._write("once()"), holding_soft_stop():
            told = self._pack_result(name, result)
            stored = insist_on(lambda: finish_effect(self._claimed, name, told), lambda: None)
        return self._open(stored)

    def _pack_result(self, name: str, result: Any) -> Any:
        """A result as it is stored: without secrets, a large one as an artifact."""
        told = secrets.mask_json(result)
        text = canonical.dump_json(told, f"the result of effect {name}")
        long = len(text) > load().inline_output_bytes
        return artifacts.spill(self._place, name, told) if long else told

    def _open(self, value: Any) -> Any:
        return self._read(lambda: artifacts.resolve(value, self.task_id))

    def save_artifact(self, name: str, source: Source, media_type: str | None = None) -> Artifact:
        """Keep bytes, text, a Path or an open binary file as an artifact, under `name`.

        The same name again in this unit replaces it. Raises InvalidInput, LeaseLost.
        """
        with self._write("save_artifact()"):
            artifacts.refuse_own(media_type, name)
            stored = self._store(name, source)
            return insist_on(
                lambda: artifacts.record_artifact(
                    self._place, name, stored, media_type, list(self._opened)
                ),
                self.check,
            )

    def _store(self, name: str, source: Source) -> Stored:
        rewind = note_start(source)
        if rewind is None:  # read once, and gone: only the step can make it anew
            return artifacts.store_bytes(name, source)
        return insist_on(lambda: (rewind(), artifacts.store_bytes(name, source))[1], self.check)

    def open_artifact(self, ref: UUID | str, **which: Any) -> BinaryIO:
        """An artifact of this task by name (the newest) or id, or an upload by id: a binary file.

        By name also `version=` (from 1), or the newest of a `step=` or `turn=`. Its bytes are
        verified. Raises NotFound, CorruptArtifact, ArtifactExpired.
        """
        find = artifacts.find_artifact
        found = self._read(lambda: find(ref, self.task_id, **which))
        if len(self._opened) < artifacts.MAX_MADE_FROM:
            self._opened[str(found.pk)] = None
        return self._read(lambda: artifacts.open_content(found))

    @property
    def workspace(self) -> Path:
        """The task's own folder, as the last accepted unit left it; kept when this one is.

        Rebuilt here at first use, wherever the last unit ran, and set up as the workflow says. Its
        path may differ in every unit. Raises SetupFailed.
        """
        if self._workspace is None:
            rules = self._workflow.workspace
            self._workspace = insist_on(
                lambda: TaskFolder(self._claimed, rules, self.log, self.check), self.check
            )
        return self._workspace.path

    # --- What the runner asks ---------------------------------------------------------------------

    @property
    def raw_input(self) -> dict[str, Any]:
        """What was submitted, as JSON."""
        return dict(self._claimed.input)

    def snapshot_workspace(self) -> str:
        """Store the files of a finished unit: the manifest's digest, "" if it used none.

        Raises WorkspaceRefused, LeaseLost.
        """
        return "" if self._workspace is None else self._workspace.snapshot()

    def close(self) -> None:
        """The unit is settled: its folder may give way to others."""
        release_folder()

    def log_tail(self) -> str:
        """The end of what the step logged, secrets masked, as text that can be stored."""
        return read_tail(self.unit_log)

    def finish_log(self, *, insist: bool) -> tuple[str, str]:
        """The same, and the id of the artifact with all of the log where that is only its end."""
        tail = self.log_tail()
        return tail, livelogs.store_whole(self._claimed, self.unit_log, insist=insist)

    def mask(self, value: Any) -> Any:
        """A text or a JSON value without any secret that was handed out."""
        return secrets.mask_json(value)

    def _read[T](self, read: Callable[[], T]) -> T:
        """Ask the ledger, however long it is away."""
        with write_blocking():
            return insist_on(read, self.check)

    @contextmanager
    def _write(self, what: str) -> Iterator[None]:
        if os.getpid() != self._pid:
            raise RuntimeError(f"{what}: only the worker writes, not a process that the step forks")
        with write_blocking():
            require_durable(what)
            yield

    def _count_spend(self, tokens: int, cost: Decimal | str | int) -> None:
        self.spent_tokens += tokens
        self.spent_nano += parse_money(cost)


def _read_answer(claimed: Claimed) -> dict[str, Any] | None:
    """People's answer, for the units that it led to."""
    answer = claimed.answer or {}
    step, turn = answer.get("for_step", claimed.step_name), answer.get("for_turn")
    if claimed.answer is None or step != claimed.step_name or turn not in {None, claimed.turn}:
        return None
    return dict(canonical.copy_json(claimed.answer))
