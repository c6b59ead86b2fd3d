"""Layers of evaluators become a verdict: cheapest first, and no further than to the first finding.

An evaluator that fails itself (no such command, a timeout, an exception) has no verdict: it raises,
and the unit is a failed attempt. It is never a pass, and never the work's fault.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol
from uuid import UUID

from ledger import canonical, secrets
from ledger.errors import LedgerError
from ledger.evaluators.findings import Finding, choose_findings, read_findings
from ledger.outcomes import AskApproval, Fail, Repair, RetryLater, StepRef

if TYPE_CHECKING:
    from ledger.evaluators.layers import Person

SLOW = 20
"""From this cost on a layer is announced by `ctx.report`."""

CIRCLES = "The same findings as last time: what was changed did not help. Go about it differently."


class Unit(Protocol):
    """The part of `ctx` that is needed here, in the worker and in an isolated step's process."""

    step: str
    log: logging.Logger

    @property
    def progress(self) -> dict[str, Any]: ...
    @property
    def feedback(self) -> Any: ...
    @property
    def workspace(self) -> Path: ...
    def output_of(self, step: str) -> Any: ...
    def secret(self, name: str) -> str: ...
    def check(self) -> None: ...
    def report(self, done: float | None = ..., total: float | None = ..., note: str = ...) -> None:
        """See Context."""

    def save_artifact(self, name: str, source: Any, media_type: str | None = ...) -> Any: ...
    def open_artifact(self, ref: UUID | str) -> BinaryIO: ...


class Evaluator(Protocol):
    """One layer. `find` yields what is wrong with `value`, as texts or Findings: nothing is a pass.

    Whatever it raises is an error of the evaluator. `kind` says what it is in a word, `cost` is a
    Cost or any number between two of them: layers run in its order.
    """

    @property
    def name(self) -> str:
        """What its findings are signed with."""

    @property
    def kind(self) -> str:
        """`schema`, `predicate`, `lint`, `command`, or one of your own."""

    @property
    def cost(self) -> int:
        """Its class of cost."""

    def find(self, ctx: Unit, value: Any) -> Iterable[Finding | str]:
        """What is wrong."""


class EvaluatorFailed(Exception):
    """An evaluator could not do its work, so nothing is known of what it should judge."""


@dataclasses.dataclass(frozen=True, slots=True)
class Judged:
    """What one layer said."""

    name: str
    kind: str
    findings: list[Finding]
    seconds: float

    @property
    def passed(self) -> bool:
        """True unless it found an error."""
        return all(one.severity != "error" for one in self.findings)

    def describe(self, kept: Sequence[Finding]) -> dict[str, Any]:
        """As JSON, of its findings those that are `kept`, with `left_out` where that is not all."""
        own = [one.describe() for one in kept if one.evaluator == self.name]
        told = {"name": self.name, "kind": self.kind, "passed": self.passed, "findings": own}
        left_out = len(self.findings) - len(own)
        told["seconds"] = round(self.seconds, 3)
        return told | ({"left_out": left_out} if left_out else {})


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What the layers said. `rounds` counts, from 1, how often in a row it was exactly this."""

    layers: list[Judged]
    rounds: int = 1

    @property
    def passed(self) -> bool:
        """True when no layer found an error."""
        return all(layer.passed for layer in self.layers)

    @property
    def findings(self) -> list[Finding]:
        """Those that the bounds have room for, errors first."""
        return choose_findings(self._all)

    @property
    def left_out(self) -> int:
        """How many they have no room for."""
        return len(self._all) - len(self.findings)

    @property
    def _all(self) -> list[Finding]:
        return [one for layer in self.layers for one in layer.findings]

    @property
    def output(self) -> dict[str, Any]:
        """For a step's output: `{"evaluation": [{name, kind, passed, findings, seconds}]}`."""
        kept = self.findings
        return {"evaluation": [layer.describe(kept) for layer in self.layers]}

    @property
    def feedback(self) -> dict[str, Any]:
        """For `Repair(feedback=)`: the findings, how many are left out, whether it goes round."""
        told: dict[str, Any] = {"findings": [one.describe() for one in self.findings]}
        if self.left_out:
            told["left_out"] = f"{self.left_out} more findings, the least useful"
        if self.rounds > 1:
            told |= {"note": CIRCLES, "rounds": self.rounds}
        return told


def evaluate(ctx: Unit, layers: Sequence[Evaluator], value: Any) -> Verdict:
    """Judge `value` by the layers, those of the lowest cost first; the first class of cost in which
    one finds an error is the last that runs.

    Raises EvaluatorFailed when a layer fails itself, and ValueError for a Person among them.
    """
    check_layers(layers, people=False)
    judged: list[Judged] = []
    by_cost = itertools.groupby(sorted(layers, key=lambda one: one.cost), lambda one: one.cost)
    for _, group in by_cost:
        for layer in group:
            ctx.check()
            if layer.cost >= SLOW:
                ctx.report(len(judged), len(layers), f"{layer.kind} {layer.name}")
            judged.append(_judge(ctx, layer, value))
        if not all(one.passed for one in judged):
            break
    verdict = Verdict(judged)
    return dataclasses.replace(verdict, rounds=_count_rounds(verdict, ctx.feedback))


def _judge(ctx: Unit, layer: Evaluator, value: Any) -> Judged:
    began = time.monotonic()
    try:
        found = read_findings(layer.find(ctx, value) or (), layer.name)
    except (LedgerError, RetryLater, Fail):
        raise  # the ledger's own, and what an evaluator says by name
    except Exception as error:
        why = str(error) if isinstance(error, EvaluatorFailed) else _describe(error)
        what = f"the {layer.kind} {layer.name} could not judge the work: {why}"
        raise EvaluatorFailed(secrets.mask_text(what)) from error
    one = Judged(layer.name, layer.kind, found, time.monotonic() - began)
    ctx.log.info("%s %s: %s", layer.kind, layer.name,
                 f"findings: {len(found)}" if found else "passed")  # fmt: skip
    return one


def _describe(error: Exception) -> str:
    return f"{canonical.name_type(error)}: {canonical.clean_text(error)}"


def _count_rounds(verdict: Verdict, feedback: Any) -> int:
    """One more than the feedback in hand says, if that is of the same findings."""
    before = feedback.get("findings") if isinstance(feedback, dict) else None
    found = verdict.findings
    if verdict.passed or not isinstance(before, list) or len(before) != len(found):
        return 1
    if not all(one.is_same(told) for one, told in zip(found, before, strict=True)):
        return 1
    rounds = feedback.get("rounds", 1)
    return rounds + 1 if isinstance(rounds, int) else 2


def check_layers(layers: Sequence[Any], *, people: bool) -> None:
    """Raise ValueError unless these can be the layers of one evaluation."""
    if isinstance(layers, str) or not layers:
        raise ValueError("an evaluation takes a list of evaluators, at least one")
    for one in layers:
        if not all(hasattr(one, name) for name in ("name", "kind", "cost")):
            raise ValueError(f"{one!r} is no evaluator")
    names = [one.name for one in layers]
    if double := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"two evaluators are named {double.pop()!r}; give one a name=")
    asked = [one for one in layers if one.kind == "person"]
    if asked and not people:
        raise ValueError("a person is asked by a step of its own: use Workflow.evaluate")
    if len(asked) > 1:
        raise ValueError("one Person at most: ask for more votes, or evaluate in two steps")


class EvaluationStep:
    """The function of the step that `Workflow.evaluate` adds."""

    def __init__(
        self, name: str, layers: Sequence[Any], of: StepRef | None, repair_to: StepRef
    ) -> None:
        check_layers(layers, people=True)
        self.__name__ = name
        self.layers = list(layers)
        self.of = of
        self.repair_to = repair_to
        self.judges: list[Evaluator] = [one for one in layers if one.kind != "person"]
        self.person: Person | None = next((one for one in layers if one.kind == "person"), None)

    def __call__(self, ctx: Unit) -> Repair | AskApproval | dict[str, Any]:
        """Judge, and repair, ask or go on."""
        value = ctx.progress if self.of is None else ctx.output_of(str(self.of))
        verdict = evaluate(ctx, self.judges, value) if self.judges else Verdict([])
        if not verdict.passed:
            return Repair(self.repair_to, verdict.feedback, **verdict.output)
        if self.person is None:
            return verdict.output
        return self.person.make_question(verdict.output, self.repair_to)

    def describe_code(self) -> str:
        """What a change of the code is known by."""
        told = [getattr(one, "describe_code", lambda one=one: repr(one))() for one in self.layers]
        return "\n".join([f"{self.of} {self.repair_to}", *told])
