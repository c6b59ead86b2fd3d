"""What a step may return or raise, and `normalise`, which brings it to one form."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel

from ledger import bounds
from ledger.errors import UnknownStep

if TYPE_CHECKING:
    from ledger.workflows import Step, Workflow

type Json = dict[str, Any]
type StepRef = str | int
"""A step by its name or by its index from 0."""

MAX_SUBJECT = 500
MAX_CHILDREN = 1_000
RISKS = ("low", "medium", "high")
MAX_VOTES = 100
MAX_ESCALATIONS = 10
MAX_ATTACHED = 100
LEAST_REMINDER = 60.0
"""Seconds between two reminders, at least."""

ASSIGNED = ("group", "user", "token")
_REPAIR_KEYS = {"needs_repair", "restart_step", "feedback"}


class Outcome:
    """Root of what a step returns. `data` is stored as its output and merged into progress."""

    __slots__ = ()
    data: Json


@dataclasses.dataclass(frozen=True)
class Advance(Outcome):
    """On to the next step: what a plain dict, or None, means."""

    data: Json = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Again(Outcome):
    """The same step once more, as its next turn, `after` seconds: an agent's loop."""

    data: Json = dataclasses.field(default_factory=dict)
    after: float = 0.0

    def __post_init__(self) -> None:
        _check_data(self)
        bounds.check_seconds(self.after, "Again(after=)")


@dataclasses.dataclass(frozen=True, init=False)
class Repair(Outcome):
    """Restart from the step `to`, this one or an earlier one, which then sees `feedback`.

    Bounded by the workflow's `max_repairs`. Progress is never rolled back; other keyword
    arguments merge into it.
    """

    to: StepRef
    feedback: Any
    data: Json

    def __init__(self, to: StepRef, feedback: Any = None, **data: Any) -> None:
        object.__setattr__(self, "to", to)
        object.__setattr__(self, "feedback", feedback)
        object.__setattr__(self, "data", data)


@dataclasses.dataclass(frozen=True)
class Sleep(Outcome):
    """Store the output, then go on with the next step after `seconds`, or at `until`."""

    seconds: float | None = None
    until: dt.datetime | None = None
    data: Json = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_data(self)
        if (self.seconds is None) == (self.until is None):
            raise ValueError("Sleep takes either seconds or until")
        if self.seconds is not None:
            bounds.check_seconds(self.seconds, "Sleep(seconds=)")
        if self.until is not None:
            bounds.check_moment(self.until, "Sleep(until=)")


@dataclasses.dataclass(frozen=True)
class AskApproval(Outcome):
    """Store the output, then wait for people, holding no worker; the answer is `ctx.answer`.

    `then` names what an approval does: the next step, or this one again. `send_back_to` is where
    "Send back" restarts from (None: no such button). `on_reject` is "fail", "again" (this step once
    more, which sees the answer) or a step to go to;
    `on_expiry` is "dead", "fail", "reject" (what a rejection does) or a step. `expires` is in
    seconds. `form` is a JSON Schema or a pydantic model, `proposal` its default values.
    `outside_effect` and `money` say that an approval can't be undone, as a high `risk` does.
    `votes` people must approve, one rejects; only `assignees` (`group:legal`, `user:3`,
    `token:ID`) may answer, all approvers if none. `escalate` are the next ones to ask and for how
    long, each when the time of those before is over; `remind` is the seconds between reminders.
    `artifacts` and the two of `diff` (before, after) are shown: each an Artifact, an id or a name.
    """

    subject: str
    body: str = ""
    payload: Any = None
    form: Json | type[BaseModel] | None = None
    proposal: Json | BaseModel | None = None
    risk: Literal["low", "medium", "high"] = "low"
    then: Literal["next", "again"] = "next"
    send_back_to: StepRef | None = None
    on_reject: StepRef = "fail"
    on_expiry: StepRef = "dead"
    expires: float | None = None
    outside_effect: bool = False
    money: bool = False
    votes: int = 1
    assignees: Sequence[str] = ()
    escalate: Sequence[tuple[str | Sequence[str], float]] = ()
    remind: float | None = None
    artifacts: Sequence[Any] = ()
    diff: tuple[Any, Any] | None = None
    data: Json = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_data(self)
        if not isinstance(self.subject, str) or not self.subject.strip():
            raise ValueError("AskApproval needs a subject: the question in a few words")
        if len(self.subject) > MAX_SUBJECT:
            raise ValueError(f"AskApproval's subject is over {MAX_SUBJECT} characters; use body")
        if self.risk not in RISKS:
            raise ValueError(f"AskApproval(risk=): {self.risk!r} is none of {', '.join(RISKS)}")
        if self.then not in {"next", "again"}:
            raise ValueError(f"AskApproval(then=): {self.then!r} is neither next nor again")
        if self.expires is not None:
            bounds.check_seconds(self.expires, "AskApproval(expires=)", least=0.001)
        if isinstance(self.votes, bool) or not 1 <= self.votes <= MAX_VOTES:
            raise ValueError(f"AskApproval(votes=): {self.votes!r} is none of 1 to {MAX_VOTES}")
        if self.remind is not None:
            bounds.check_seconds(self.remind, "AskApproval(remind=)", least=LEAST_REMINDER)
        # Lists of plain values: an outcome may come by wire, and is brought to this form again.
        object.__setattr__(self, "assignees", _read_assignees(self.assignees, "assignees"))
        object.__setattr__(self, "escalate", _read_escalation(self.escalate))
        object.__setattr__(self, "artifacts", _read_attached(self.artifacts, "artifacts"))
        if self.diff is not None:
            object.__setattr__(self, "diff", _read_attached(self.diff, "diff", count=2))
        if isinstance(self.form, type):
            object.__setattr__(self, "form", self.form.model_json_schema())
        if isinstance(self.proposal, BaseModel):
            object.__setattr__(self, "proposal", self.proposal.model_dump(mode="json"))


def _read_assignees(given: Sequence[str], field: str) -> list[str]:
    for one in given:
        kind, _, name = one.partition(":")
        if kind not in ASSIGNED or not name:
            allowed = ", ".join(f"{kind}:…" for kind in ASSIGNED)
            raise ValueError(f"AskApproval({field}=): {one!r} is none of {allowed}")
    return list(given)


def _read_escalation(given: Sequence[Any]) -> list[list[Any]]:
    """Who is asked next and for how many seconds: `[["group:leads"], 3600.0]` each."""
    read = []
    for one in given:
        if not isinstance(one, list | tuple) or len(one) != 2 or not one[0]:
            raise ValueError(f"AskApproval(escalate=): {one!r} is no pair of people and seconds")
        who = [one[0]] if isinstance(one[0], str) else one[0]
        length = bounds.check_seconds(one[1], "AskApproval(escalate=)", least=0.001)
        read.append([_read_assignees(who, "escalate"), length])
    if len(read) > MAX_ESCALATIONS:
        raise ValueError(f"AskApproval(escalate=): more than {MAX_ESCALATIONS}")
    return read


def _read_attached(given: Any, field: str, count: int | None = None) -> list[str]:
    """Artifacts by id or name; the ledger looks for them among the task's own."""
    if isinstance(given, str) or (count is not None and len(given) != count):
        what = "artifacts" if count is None else f"{count} artifacts"
        raise ValueError(f"AskApproval({field}=): {given!r} is no list of {what}")
    if len(given) > MAX_ATTACHED:
        raise ValueError(f"AskApproval({field}=): more than {MAX_ATTACHED}")
    return [str(getattr(one, "id", one)) for one in given]


@dataclasses.dataclass(frozen=True)
class WaitFor(Outcome):
    """Store the output, then wait for a signal, holding no worker; the next step's `ctx.signal`.

    A signal that was sent before counts. After `timeout` seconds the next step runs with
    `ctx.signal` None; without one the task is dead (`signal_expired`) after the site's bound for
    questions. On a last step the signal completes the task.
    """

    signal: str
    timeout: float | None = None
    data: Json = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_data(self)
        bounds.check_signal(self.signal, "WaitFor(signal)")
        if self.timeout is not None:
            bounds.check_seconds(self.timeout, "WaitFor(timeout=)", least=0.001)


@dataclasses.dataclass(frozen=True)
class Child:
    """A task to be spawned: a workflow's name (or the workflow) and what a client would submit.

    Lane and priority are the parent's unless given; units and deadline never go beyond what it has
    left, and tokens and money it shares.
    """

    workflow: Any
    input: Any = dataclasses.field(default_factory=dict)
    version: str | None = None
    title: str = ""
    lane: str | None = None
    priority: int | None = None
    tags: Sequence[str] = ()
    limits: Mapping[str, Any] | bounds.Limits | None = None
    max_repairs: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.workflow, str):
            object.__setattr__(self, "version", self.version or self.workflow.version)
            object.__setattr__(self, "workflow", self.workflow.name)
        if isinstance(self.limits, bounds.Limits):
            object.__setattr__(self, "limits", self.limits.list_given())


@dataclasses.dataclass(frozen=True)
class Spawn(Outcome):
    """Store the output, make `children` in the same commit, and wait for them, holding no worker.

    `until` "all" have ended, or "any" has completed; then the others are cancelled. The task fails
    when more than `max_failed` end otherwise (by default none may; with "any" all but one). The
    next step sees them in `ctx.children`; on a last step they complete the task. With `then`
    "again" this step runs once more after them, and sees them. No child at all is no wait.
    """

    children: Sequence[Child | Mapping[str, Any]]
    until: Literal["all", "any"] = "all"
    max_failed: int | None = None
    then: Literal["next", "again"] = "next"
    data: Json = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_data(self)
        if len(self.tasks) > MAX_CHILDREN:
            raise ValueError(f"Spawn: {len(self.tasks)} children; at most {MAX_CHILDREN} at once")
        if self.until not in {"all", "any"}:
            raise ValueError(f"Spawn(until=): {self.until!r} is neither all nor any")
        if self.then not in {"next", "again"}:
            raise ValueError(f"Spawn(then=): {self.then!r} is neither next nor again")
        if self.max_failed is not None:
            bounds.check_count(self.max_failed, "Spawn(max_failed=)")

    @functools.cached_property
    def tasks(self) -> list[Child]:
        """The children, those that were given as dicts too."""
        return [one if isinstance(one, Child) else Child(**one) for one in self.children]


@dataclasses.dataclass(frozen=True)
class Finish(Outcome):
    """End the task as completed, with `result`, whatever steps are left."""

    result: Any = None
    data: Json = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_data(self)


class RetryLater(Exception):
    """Raise to run the same unit again after `seconds`, without a charge: a busy service."""

    def __init__(self, seconds: float, reason: str = "") -> None:
        self.seconds = bounds.check_seconds(seconds, "RetryLater(seconds)")
        self.reason = reason
        super().__init__(reason or f"again in {seconds:g} s")


class Fail(Exception):
    """Raise to end the task as failed (`workflow_failed`): no retry would help."""

    def __init__(self, reason: str, message: str = "") -> None:
        self.reason = reason
        self.message = message
        super().__init__(f"{reason}: {message}" if message else reason)


def normalise(value: Any, workflow: Workflow, step: Step) -> Outcome:
    """What `step` returned as an Outcome, with every step that it names given by name.

    A dict or None is Advance; a dict with `"needs_repair": True` is Repair to its `restart_step`
    (by default the first). Raises TypeError for any other value, UnknownStep for a step that the
    workflow lacks and ValueError for a repair forward.
    """
    if value is None:
        return Advance()
    if isinstance(value, dict):
        value = _read_dict(value)
    if isinstance(value, Repair):
        to = _name_earlier(value.to, workflow, step, "Repair(to=)")
        return _make_repair(to, value.feedback, value.data)
    if isinstance(value, AskApproval):
        return _name_steps(value, workflow, step)
    if isinstance(value, Spawn) and value.then == "again" and not value.children:
        return Again(value.data)
    if isinstance(value, Outcome):
        return value
    raise TypeError(
        f"step {step.name} returned a {type(value).__name__}; "
        "return a dict, None or an outcome such as Again, Repair or Finish"
    )


def _read_dict(value: Json) -> Outcome:
    if value.get("needs_repair") is not True:
        return Advance(value)
    data = {key: part for key, part in value.items() if key not in _REPAIR_KEYS}
    return _make_repair(value.get("restart_step", 0), value.get("feedback"), data)


def _make_repair(to: StepRef, feedback: Any, data: Json) -> Repair:
    # Not through **data: it may hold keys named `to` or `feedback`, or keys that are no strings.
    repair = Repair(to, feedback)
    repair.data.update(data)
    return repair


def _name_earlier(ref: StepRef, workflow: Workflow, step: Step, what: str) -> str:
    index, here = workflow.index_of(ref), workflow.index_of(step.name)
    if index > here:
        allowed = ", ".join(s.name for s in workflow.steps[: here + 1])
        raise ValueError(
            f"{what}: {workflow.steps[index].name} comes after {step.name}; "
            f"it can go back to {allowed}"
        )
    return workflow.steps[index].name


def _name_steps(ask: AskApproval, workflow: Workflow, step: Step) -> AskApproval:
    names: dict[str, Any] = {}
    if ask.send_back_to is not None:
        names["send_back_to"] = _name_earlier(
            ask.send_back_to, workflow, step, "AskApproval(send_back_to=)"
        )
    for field, words in (
        ("on_reject", {"fail", "again"}),
        ("on_expiry", {"dead", "fail", "reject"}),
    ):
        ref = getattr(ask, field)
        if ref in words:
            continue
        try:
            names[field] = workflow.steps[workflow.index_of(ref)].name
        except UnknownStep as error:
            raise ValueError(
                f"AskApproval({field}=): {ref!r} is neither {' nor '.join(sorted(words))}, "
                f"and {error.reason}"
            ) from error
    return dataclasses.replace(ask, **names)


def _check_data(outcome: Outcome) -> None:
    given: Any = outcome.data
    if given is None:
        object.__setattr__(outcome, "data", {})
    elif not isinstance(given, dict):
        kind = type(outcome).__name__
        raise TypeError(f"{kind}(data=): a {type(given).__name__} is no dict")
