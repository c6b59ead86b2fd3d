"""What an author of workflows uses: everything imports from here.

A workflow is code: a name, a version and an ordered list of steps. docs/workflows.md is the guide.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

from pydantic import BaseModel, ValidationError

from ledger import bounds, canonical, conf
from ledger.bounds import Limits, days, hours, minutes, seconds
from ledger.compensations import Compensates, PastEffect
from ledger.concurrency import Concurrency
from ledger.errors import InvalidInput, UnknownStep, Unserialisable
from ledger.filerules import PLAIN, Workspace
from ledger.outcomes import (
    RISKS,
    Advance,
    Again,
    AskApproval,
    Child,
    Fail,
    Finish,
    Json,
    Outcome,
    Repair,
    RetryLater,
    Sleep,
    Spawn,
    StepRef,
    WaitFor,
    normalise,
)
from ledger.posting import post_json
from ledger.registry import all_workflows, get, known, load_all, load_errors, register, registered
from ledger.scopes import OWN_LANE, Scope
from ledger.sources import read_source, unwrap_partial

__all__ = [
    "OWN_LANE",
    "Advance",
    "Again",
    "AskApproval",
    "Child",
    "Concurrency",
    "Fail",
    "Finish",
    "Limits",
    "Outcome",
    "PastEffect",
    "Repair",
    "RetryLater",
    "Scope",
    "Sleep",
    "Spawn",
    "Step",
    "WaitFor",
    "Workflow",
    "Workspace",
    "all_workflows",
    "days",
    "get",
    "hours",
    "known",
    "load_all",
    "load_errors",
    "minutes",
    "normalise",
    "post_json",
    "register",
    "registered",
    "seconds",
]

type StepFunction = Callable[[Any], Any]

MAX_NAME = 100
MAX_VERSION = 50
MAX_ERRORS_SHOWN = 5
IN_WORKER = "longwatch_in_worker"
"""An attribute of a step's function that can't run in a process apart: why."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_VERSION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")


@dataclasses.dataclass(frozen=True)
class Step:
    """One named position of a workflow."""

    name: str
    fn: StepFunction
    own_timeout: float | None = None
    own_retries: int | None = None
    isolation: bounds.Isolation | None = None
    """Bounds of the process of its own that it runs in; None: in the worker."""

    @property
    def timeout(self) -> float:
        """Seconds that one unit may take; the site's default unless the step says otherwise."""
        return conf.load().unit_seconds if self.own_timeout is None else self.own_timeout

    @property
    def retries(self) -> int:
        """Runs of one unit after the first that failed; the site's default unless said."""
        return conf.load().retries if self.own_retries is None else self.own_retries

    @functools.cached_property
    def is_async(self) -> bool:
        """True when the function is a coroutine function."""
        return inspect.iscoroutinefunction(inspect.unwrap(unwrap_partial(self.fn)))


class Workflow(Compensates):
    """A name, a version and an ordered list of steps.

    `input` is a pydantic model of what a submitter gives (None: any JSON object). `max_repairs`
    bounds the restarts that the workflow itself asks for (None: the site's default).
    `self_approval=True` lets the submitter of a task answer its questions; none of them has a
    lower risk than `risk_floor`, whatever the step says. With `on_limit="ask"` a used-up limit is
    a question to people; otherwise the task is dead by it.
    `scope` names what the steps may use (None: anything). `workspace` says which files are not
    kept, and how a rebuilt folder is set up. `concurrency` bounds how many of its tasks are under
    way at once.
    Raises ValueError for a name or a bound that can't be.
    """

    def __init__(
        self,
        name: str,
        version: str = "1",
        *,
        input: type[BaseModel] | None = None,
        max_repairs: int | None = None,
        limits: Limits | None = None,
        self_approval: bool = False,
        on_limit: Literal["dead", "ask"] = "dead",
        risk_floor: Literal["low", "medium", "high"] = "low",
        scope: Scope | None = None,
        workspace: Workspace | None = None,
        concurrency: Concurrency | None = None,
        description: str = "",
    ) -> None:
        self.name = _check_name(name, "a workflow's name")
        self.version = _check_name(version, "a workflow's version", _VERSION)
        if input is not None and not (isinstance(input, type) and issubclass(input, BaseModel)):
            raise ValueError(f"workflow {name}: input= takes a pydantic model class, not {input!r}")
        self.input = input
        if max_repairs is not None:
            bounds.check_count(max_repairs, "max_repairs")
        self.max_repairs = max_repairs
        self.limits = limits or Limits()
        self.self_approval = self_approval
        if on_limit not in {"dead", "ask"}:
            raise ValueError(f"workflow {name}: on_limit={on_limit!r} is neither 'dead' nor 'ask'")
        self.on_limit = on_limit
        if risk_floor not in RISKS:
            raise ValueError(f"workflow {name}: risk_floor= takes one of {', '.join(RISKS)}")
        self.risk_floor = risk_floor
        if scope is not None and not isinstance(scope, Scope):
            raise ValueError(f"workflow {name}: scope= takes a Scope, not {scope!r}")
        self.scope = scope
        if workspace is not None and not isinstance(workspace, Workspace):
            raise ValueError(f"workflow {name}: workspace= takes a Workspace, not {workspace!r}")
        self.workspace = workspace or PLAIN
        if concurrency is not None:
            if not isinstance(concurrency, Concurrency):
                raise ValueError(f"workflow {name}: concurrency= takes a Concurrency")
            concurrency.check_model(name, input)
        self.concurrency = concurrency
        self.description = description
        self.steps: list[Step] = []
        self.compensations = {}
        self._digest: str | None = None

    def __repr__(self) -> str:
        return f"<Workflow {self.name} version {self.version}: {self._list_steps()}>"

    @overload
    def step[F: StepFunction](self, fn: F) -> F: ...
    @overload
    def step[F: StepFunction](
        self,
        fn: F,
        *,
        name: str | None = None,
        timeout: float | None = None,
        retries: int | None = None,
        isolate: bool = False,
        memory: int | str | None = None,
        cpu: float | None = None,
    ) -> F: ...
    @overload
    def step[F: StepFunction](
        self,
        *,
        name: str | None = None,
        timeout: float | None = None,
        retries: int | None = None,
        isolate: bool = False,
        memory: int | str | None = None,
        cpu: float | None = None,
    ) -> Callable[[F], F]: ...
    def step(
        self,
        fn: StepFunction | None = None,
        *,
        name: str | None = None,
        timeout: float | None = None,
        retries: int | None = None,
        isolate: bool = False,
        memory: int | str | None = None,
        cpu: float | None = None,
    ) -> Any:
        """Append a step: `@wf.step`, `@wf.step(timeout=…)` or `wf.step(fn, name=…)`.

        The name is the function's unless `name=`; `timeout` is the seconds of one unit; `retries`
        is how often a failed unit runs again. `isolate=True` runs it in a process of its own, with
        at most `memory` (bytes, or "512M") and `cpu` seconds of processor time. Returns the
        function itself, unchanged.
        """
        if fn is None:
            return functools.partial(
                self.step, name=name, timeout=timeout, retries=retries,
                isolate=isolate, memory=memory, cpu=cpu,
            )  # fmt: skip
        if not callable(fn):
            raise ValueError(f"workflow {self.name}: {fn!r} can't be called, so it is no step")
        given = name if name is not None else getattr(unwrap_partial(fn), "__name__", "")
        step_name = _check_name(given, f"the name of a step of {self.name}")
        if any(step.name == step_name for step in self.steps):
            raise ValueError(f"workflow {self.name} has two steps named {step_name}; give name=")
        if timeout is not None:
            bounds.check_seconds(timeout, f"timeout of step {step_name}", least=0.001)
        if retries is not None:
            bounds.check_count(retries, f"retries of step {step_name}")
        if isolate and hasattr(fn, IN_WORKER):
            raise ValueError(f"step {step_name}: {getattr(fn, IN_WORKER)}, so no isolate=True")
        isolation = _read_isolation(step_name, isolate, memory, cpu)
        self.steps.append(Step(step_name, fn, timeout, retries, isolation))
        self._digest = None
        return fn

    def evaluate(
        self,
        name: str,
        layers: Sequence[Any],
        *,
        of: StepRef | None = None,
        repair_to: StepRef | None = None,
        timeout: float | None = None,
        retries: int | None = None,
    ) -> None:
        """Append a step that judges the output of the step `of`, or without it all progress so far,
        by these evaluators (`ledger.evaluators`), the cheapest first.

        What they find is feedback of a repair to `repair_to`, by default `of`. Without a finding
        the task goes on; a Person among the layers is asked before that. Raises ValueError for
        layers that can't be, UnknownStep for a step that is not there yet.
        """
        from ledger.evaluators.judging import EvaluationStep  # which loads jsonschema

        to = of if repair_to is None else repair_to
        if to is None:
            raise ValueError(f"evaluation {name}: repair_to= names where a finding leads back to")
        named = [self.steps[self.index_of(ref)].name for ref in (to, to if of is None else of)]
        step = EvaluationStep(name, layers, None if of is None else named[1], named[0])
        self.step(step, timeout=timeout, retries=retries)

    def index_of(self, ref: StepRef) -> int:
        """The position of a step given by name or by index (also as digits). Raises UnknownStep."""
        for index, step in enumerate(self.steps):
            if step.name == ref:
                return index
        if isinstance(ref, str) and ref.isascii() and ref.isdigit() and len(ref) < 10:
            ref = int(ref)
        if isinstance(ref, int) and not isinstance(ref, bool) and 0 <= ref < len(self.steps):
            return ref
        raise UnknownStep(ref, self._list_steps())

    def list_commands(self) -> list[str]:
        """The commands of LONGWATCH_CHECKS that its evaluations run."""
        layers = (one for step in self.steps for one in getattr(step.fn, "layers", ()))
        return [one.command for one in layers if one.kind == "command"]

    def digest(self) -> str:
        """SHA-256 (hex) over names and sources of steps and compensations; a change under one
        version is warned of."""
        if self._digest is None:
            every: list[Any] = [*self.steps, *self.compensations.values()]
            parts = [f"{one.name}\n{read_source(one.fn)}" for one in every]
            self._digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        return self._digest

    def clean_input(self, data: Any) -> Json:
        """What a submitter gave as the JSON to store, defaults filled in.

        Takes a dict or an instance of the input model. Raises InvalidInput naming the field.
        """
        if self.input is None:
            if not isinstance(data, dict):
                raise InvalidInput("input", f"takes a JSON object, not a {type(data).__name__}.")
            cleaned: Json = data
        else:
            model = self._validate(lambda of: of.model_validate(data))
            cleaned = model.model_dump(mode="json", by_alias=True, round_trip=True)
        try:
            canonical.check_json(cleaned, "input")
        except Unserialisable as error:
            raise InvalidInput(error.path, f"{error.why}.") from error
        if self.input is not None:
            self.read_input(cleaned)  # an alias that can't be read back shows here, not in a step
        return cleaned

    def read_input(self, data: Json) -> Any:
        """The stored input as a step sees it: the model's instance, or the dict itself.

        Raises InvalidInput naming the field.
        """
        if self.input is None:
            return data
        # As JSON, not as Python objects: a strict model takes a date's text from JSON only.
        text = canonical.dump_json(data, "input")
        return self._validate(lambda of: of.model_validate_json(text))

    def _validate(self, read: Callable[[type[BaseModel]], BaseModel]) -> BaseModel:
        assert self.input is not None
        try:
            return read(self.input)
        except ValidationError as error:
            raise _explain_refusal(error) from None

    def _list_steps(self) -> str:
        return ", ".join(step.name for step in self.steps) or "none"


def describe_change(version: str) -> str:
    """What is said of a task whose definition digest is no more the code's."""
    return f"code changed under version {version}"


def _read_isolation(
    step: str, isolate: bool, memory: int | str | None, cpu: float | None
) -> bounds.Isolation | None:
    if not isolate:
        if memory is not None or cpu is not None:
            raise ValueError(f"step {step}: memory= and cpu= are bounds of isolate=True")
        return None
    if memory is not None:
        memory = bounds.parse_bytes(memory, f"memory of step {step}")
    if cpu is not None:
        bounds.check_seconds(cpu, f"cpu of step {step}", least=1.0)
    return bounds.Isolation(memory, cpu)


def _explain_refusal(error: ValidationError) -> InvalidInput:
    found = error.errors(include_url=False, include_context=False, include_input=False)
    texts, first = [], ""
    for problem in found[:MAX_ERRORS_SHOWN]:
        path = ".".join(["input", *(str(part) for part in problem["loc"])])
        first = first or path
        cure = "give it a value" if problem["type"] == "missing" else problem["msg"]
        text = "is missing; give it a value" if problem["type"] == "missing" else cure
        texts.append(text if path == first else f"{path}: {text}")
    if len(found) > MAX_ERRORS_SHOWN:
        texts.append(f"and {len(found) - MAX_ERRORS_SHOWN} more")
    return InvalidInput(first, "; ".join(texts) + ".")


def _check_name(name: object, what: str, pattern: re.Pattern[str] = _NAME) -> str:
    longest = MAX_VERSION if pattern is _VERSION else MAX_NAME
    if not isinstance(name, str) or not pattern.fullmatch(name) or len(name) > longest:
        first = "" if pattern is _VERSION else ", a letter first,"
        raise ValueError(
            f"{what} can't be {name!r}: it stands in web addresses, so it takes ASCII letters, "
            f"digits and _ . -{first} and at most {longest} characters"
        )
    return name
