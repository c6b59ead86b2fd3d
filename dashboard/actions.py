"""What an operator can do to a task, and why not when it can't be done now."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from dashboard import forms, task_forms, words
from ledger import states
from ledger.errors import CONTENTS_REMOVED, StaleRevision
from ledger.events import Actor
from ledger.models import Task
from ledger.queries import STOP_AFTER, find_task, may_stop
from ledger.transitions import operators
from ledger.transitions.effects import compensate_task, mark_effect
from ledger.transitions.endings import is_undoing
from ledger.transitions.forks import fork_task
from ledger.transitions.outputs import edit_output
from ledger.transitions.steering import steer_task, withdraw_message
from ledger.transitions.waits import send_signal

MAX_TRIES = 3
GOES_ON = frozenset("retry_task restart_task extend_limits compensate_task fork_task".split())
"""What needs the contents of a task, which retention may have taken."""


@dataclasses.dataclass(frozen=True, slots=True)
class Action:
    """One button. `run` is its transition, and by its name the edges of the state diagram.

    `form` is asked in a dialog (without a script: on a page) first; None acts at once. `key` opens
    that dialog, with the focus on the safe button: a letter alone does nothing to a task. One that
    is not `guarded` counts whatever the task does meanwhile. A `quiet` one stands below the others.
    """

    name: str
    label: str
    icon: str
    run: Callable[..., Any]
    done: str
    form: type[forms.ActionForm] | None = None
    danger: bool = False
    safe: str = "Leave it as it is"
    hint: str = ""
    key: str = ""
    guarded: bool = True
    quiet: bool = False

    @property
    def asks(self) -> bool:
        """True when something is asked before the deed."""
        return self.form is not None

    @property
    def verb(self) -> str:
        """What the dialog's own button says: the same word, now as the deed."""
        return "Cancel task" if self.name == "cancel" else self.label.removesuffix("…")

    @property
    def verb_from(self) -> str:
        """The same of one that chooses a step, whose name follows."""
        return self.verb.removesuffix(" step")

    def find_obstacle(self, task: Task) -> str:
        """Why it can't be done to `task` as it is now; empty when it can."""
        edge = self.run.__name__
        if not any(states.allow_edge(edge, task.status, target) for target in states.STATUSES):
            return f"Not while its status is {words.LOOKS[task.status].label}."
        if task.thinned_at is not None and edge in GOES_ON:
            return CONTENTS_REMOVED
        if edge in {"cancel_task", "stop_task"} and is_undoing(task):
            return "It is undoing its effects, and ends after that."
        no_limit = task.status == states.DEAD and task.status_reason not in states.LIMIT_REASONS
        if edge == "extend_limits" and no_limit:
            return "No limit ended this task; retry it, or restart it from a step."
        return ""


PAUSE = Action("pause", "Pause", "pause", operators.pause_task, "Paused.")
RESUME = Action("resume", "Resume", "right", operators.resume_task, "Resumed.")
RETRY = Action(
    "retry", "Retry now…", "retry", operators.retry_task, "Queued again.", forms.ReasonForm,
)  # fmt: skip
RESTART = Action(
    "restart", "Restart from step…", "undo", operators.restart_task, "Restarted.",
    forms.RestartForm, key="R",
    hint="Outputs of that step and of all later ones are superseded, not deleted.",
)  # fmt: skip
LIMITS = Action(
    "limits", "Extend limit…", "hour", operators.extend_limits, "Limits changed.",
    forms.LimitsForm,
)  # fmt: skip
CANCEL = Action(
    "cancel", "Cancel…", "x", operators.cancel_task, "Cancelled.", forms.ReasonForm, danger=True,
    safe="Keep the task", key="c",
)  # fmt: skip
STOP = Action(
    "stop", "Stop now…", "x", operators.stop_task, "Stopped.", forms.ReasonForm, danger=True,
    safe="Let the unit end",
)  # fmt: skip
CHANGE = Action(
    "change", "Change…", "edit", operators.change_task, "Changed.", task_forms.ChangeForm,
    hint="Title, lane, priority and tags. What runs goes on.", quiet=True,
)  # fmt: skip
SIGNAL = Action(
    "signal", "Send signal…", "say", send_signal, "Signal sent.", task_forms.SignalForm,
    safe="Send nothing", guarded=False, quiet=True,
)  # fmt: skip
STEER = Action(
    "steer", "Tell the agent…", "say", steer_task, "Sent; the agent is told at its next turn.",
    task_forms.SteerForm, safe="Send nothing", guarded=False,
)  # fmt: skip
WITHDRAW = Action(
    "withdraw", "Withdraw message…", "undo", withdraw_message, "Withdrawn.",
    task_forms.WithdrawForm, safe="Leave it", guarded=False,
)  # fmt: skip
FORK = Action(
    "fork", "Copy from step…", "copy", fork_task, "This is the copy.", task_forms.ForkForm,
    safe="Copy nothing", quiet=True,
    hint="A new task with the outputs before that step; this one stays as it is.",
)  # fmt: skip
EDIT = Action(
    "edit", "Edit and go on…", "edit", edit_output, "Output edited.", task_forms.EditForm,
    hint="The task goes on as if the unit had left this.",
)  # fmt: skip
EFFECT = Action(
    "effect", "Settle effect…", "check", mark_effect, "Settled.", forms.EffectForm,
    safe="Leave it open", hint="Look where it happens first: the step believes what you say.",
)  # fmt: skip
COMPENSATE = Action(
    "compensate", "Undo effects…", "undo", compensate_task, "It undoes its effects.",
    forms.ReasonForm, danger=True,
)  # fmt: skip

ACTIONS = {
    action.name: action
    for action in (
        PAUSE, RESUME, RETRY, RESTART, LIMITS, CHANGE, SIGNAL, STEER, WITHDRAW, FORK, EDIT, EFFECT,
        COMPENSATE, CANCEL, STOP,
    )
}  # fmt: skip


def list_offers(task: Task) -> list[tuple[Action, str]]:
    """The buttons of a task, each with why it is disabled. They never change their places.

    A cancel that a unit does not heed becomes Stop now after a while; what is final can only be
    copied. `task` is of `find_task`.
    """
    if task.status in states.FINAL:
        return [(FORK, FORK.find_obstacle(task))]
    paused = task.status == states.PAUSED or task.pause_requested
    asked = task.status == states.RUNNING and task.cancel_requested
    cancel = STOP if may_stop(task) else CANCEL
    shown = (RESUME if paused else PAUSE, RETRY, RESTART, LIMITS, cancel, CHANGE, SIGNAL, FORK)
    offers = [(action, action.find_obstacle(task)) for action in shown]
    if asked and cancel is CANCEL:
        soon = f"It is asked; if the unit goes on, Stop now comes after {STOP_AFTER:.0f} s."
        offers[shown.index(CANCEL)] = (CANCEL, soon)
    return offers


def offer_edit(task: Task, unit: Mapping[str, Any] | None) -> list[str]:
    """The button that edits the output `unit`, by why it is disabled ("" when it is not).

    None stands beside a superseded output, nor where nothing can be changed any more.
    """
    if unit is None or unit["superseded_in_round"] is not None or task.status in states.FINAL:
        return []
    return [task_forms.explain_edit(task, unit["seq"], unit)]


def explain_obstacles(offers: list[tuple[Action, str]]) -> list[tuple[str, str]]:
    """(labels, why) of the disabled buttons, those with one reason together."""
    reasons: dict[str, list[str]] = {}
    for action, why in offers:
        if why:
            reasons.setdefault(why, []).append(action.label.removesuffix("…"))
    return [(", ".join(labels), why) for why, labels in reasons.items()]


def name_position(task: Task) -> str:
    """A digest of what an operator decides on: everything that `revision` counts but the turn.

    A busy task has a new revision every second. Units of the same step that came in between
    change nothing an operator was shown; a new status, step, round, limit or label does.
    """
    seen = (
        task.status, task.status_reason, task.step_name, task.round, task.cancel_requested,
        task.pause_requested, task.limit_units, task.limit_tokens, task.limit_cost,
        task.limit_wall, task.title, task.lane, task.priority, task.tags,
    )  # fmt: skip
    return hashlib.sha256(repr(seen).encode()).hexdigest()[:16]


def take_action(
    action: Action, task: Task, actor: Actor, values: dict[str, Any], revision: int, seen: str
) -> Any:
    """Run the transition on what the operator saw: `revision`, or a later one at `seen`.

    Returns what the transition returns and raises what it raises; StaleRevision when the task
    moved on for good.
    """
    if not action.guarded:
        return action.run(task.pk, actor=actor, **values)
    for _ in range(MAX_TRIES):
        try:
            return action.run(task.pk, actor=actor, revision=revision, **values)
        except StaleRevision:
            task = find_task(task.pk)
            if name_position(task) != seen:
                raise
            revision = task.revision
    return action.run(task.pk, actor=actor, revision=revision, **values)
